"""Choose the shares of efficiency.yaml again, on the rows of Megatron-Bridge's releases 25.09 and 25.11.

`python -m railyard.results.theory.step.calibration` prints them. Dense rows choose the share of each platform's low
precision (fp8 and mxfp8 together, as most platforms have only one of them); MoE rows then choose what experts reach,
and what a MoE layer takes beside its size. nvfp4 has no row, and takes the share of the formats of 8 bits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from railyard.results.theory.step.hardware import Hardware, efficiency
from railyard.results.theory.step.holdout.rows import MeasuredStep, measured_steps, predicted_on_s

SHARES: Final = tuple(percent / 100 for percent in range(40, 81))
EXPERT_SHARES: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
MOE_LAYER_S: Final = (0.003, 0.004, 0.005, 0.006, 0.007)
FITTED_TABLES: Final = ("korthikanti", "megatron")
"""Tables of A100s of which some rows are fitted."""
MOE_GRAPH_S: Final = (0.0, 0.001, 0.002, 0.003)


def rows_to_fit(is_moe: bool) -> list[MeasuredStep]:
    """Return the rows that may choose constants, dense or MoE."""
    return [row for row in measured_steps() if row["table"] == "bridge" and row.fitted and row.is_moe == is_moe]


def matmul_share(platform: str) -> float:
    """Return the share of a platform's 8-bit peak that leaves the smallest sum of squared errors of its dense rows."""
    rows = [row for row in rows_to_fit(is_moe=False) if row["platform"] == platform]

    def squared_error(share: float) -> float:
        errors = (_error(row, matmul_share=share) for row in rows)
        return sum(error**2 for error in errors)

    return min(SHARES, key=squared_error)


def expert_constants() -> tuple[float, float, float]:
    """Return the share that experts reach, and the times of a MoE layer without and with CUDA graphs, s.

    They leave the smallest sum of squared errors of MoE rows.
    """
    rows = rows_to_fit(is_moe=True)

    def squared_error(constants: Sequence[float]) -> float:
        expert_share, moe_layer_s, moe_graph_s = constants
        update = {"expert_share": expert_share, "moe_layer_s": moe_layer_s, "moe_graph_s": moe_graph_s}
        errors = (_error(row, **update) for row in rows)
        return sum(error**2 for error in errors)

    expert_share, moe_layer_s, moe_graph_s = min(product(EXPERT_SHARES, MOE_LAYER_S, MOE_GRAPH_S), key=squared_error)
    return expert_share, moe_layer_s, moe_graph_s


@dataclass(frozen=True, slots=True)
class GpuConstants:
    """Shares of its peaks that a GPU reaches in bf16.

    overhead_flops: what a layer's pass takes beside its size, as FLOPs on top of it
    """

    bf16_share: float
    memory_share: float
    overhead_flops: float

    def on(self, hardware: Hardware) -> Hardware:
        """Return hardware with these constants."""
        return replace(
            hardware,
            bf16_share=self.bf16_share,
            matmul_share=self.bf16_share,
            memory_share=self.memory_share,
            pass_s=self.overhead_flops / self.bf16_share / hardware.bf16_flops,
        )


def gpu_constants(rows: Sequence[MeasuredStep]) -> GpuConstants:
    """Return the constants that leave the smallest sum of squared relative errors over rows in bf16.

    Times of jobs without today's overlaps are linear in 1/bf16_share, 1/memory_share and overhead_flops/bf16_share, so
    three slopes say all.
    """
    slopes: list[list[float]] = []
    targets: list[float] = []
    start = GpuConstants(bf16_share=1.0, memory_share=1.0, overhead_flops=1e11)
    for row in rows:
        start_s = _seconds_with(row, start)
        # half the share takes twice the time; the overhead doubles with it, so half of it leaves that part as it was
        matmul_s = _seconds_with(row, GpuConstants(0.5, 1.0, 0.5e11)) - start_s
        memory_s = _seconds_with(row, GpuConstants(1.0, 0.5, 1e11)) - start_s
        overhead_s = _seconds_with(row, GpuConstants(1.0, 1.0, 2e11)) - start_s
        rest_s = start_s - matmul_s - memory_s - overhead_s
        slopes.append([matmul_s / row.seconds, memory_s / row.seconds, overhead_s / row.seconds])
        targets.append(1 - rest_s / row.seconds)
    (matmul, memory, overhead), *_ = np.linalg.lstsq(np.array(slopes), np.array(targets), rcond=None)
    return GpuConstants(1 / matmul, 1 / memory, 1e11 * overhead / matmul)


def errors_with_shapes_left_out(table: str) -> list[float]:
    """Return predicted over measured time, less 1, of the rows of a table of A100s whose constants are fitted.

    Each has the constants that all rows of other shapes give, in all such tables.
    """
    rows = [row for row in measured_steps() if row["table"] in FITTED_TABLES]
    errors: list[float] = []
    for row in rows:
        if row["table"] == table:
            shape = (row.model.layers, row.model.hidden)
            fitted_rows = [fitted for fitted in rows if (fitted.model.layers, fitted.model.hidden) != shape]
            errors.append(_seconds_with(row, gpu_constants(fitted_rows)) / row.seconds - 1)
    return errors


def _seconds_with(row: MeasuredStep, constants: GpuConstants) -> float:
    """Return the predicted time of a row with other constants of its GPU, s."""
    return predicted_on_s(row, constants.on(row.hardware))


def platforms_to_fit() -> Iterable[str]:
    """Return the platforms that have dense rows to choose a share on."""
    return sorted({row["platform"] for row in rows_to_fit(is_moe=False)})


def _error(row: MeasuredStep, **constants: float) -> float:
    """Return predicted over measured time, less 1, with other constants."""
    hardware = replace(row.hardware, **constants)  # type: ignore[arg-type]
    return predicted_on_s(row, hardware) / row.seconds - 1


def main() -> None:
    """Print the constants."""
    constants = gpu_constants([row for row in measured_steps() if row["platform"] == "a100" and row.fitted])
    training = constants.bf16_share / efficiency()["all"]["large_matmul"]
    print(f"training: {training:.3f}, memory: {constants.memory_share:.3f}")
    print(f"overhead_flops: {constants.overhead_flops:.3e}")
    for platform in platforms_to_fit():
        print(f"{platform}: {matmul_share(platform):.2f}")
    expert_share, moe_layer_s, moe_graph_s = expert_constants()
    print(f"experts: {expert_share}, moe_layer_s: {moe_layer_s}, moe_graph_s: {moe_graph_s}")


if __name__ == "__main__":
    main()
