"""The A100's constants from published iteration times: `python -m railyard.results.theory.iteration.fit` prints them,
for constants.py.

The predicted time is linear in 1/matmul_efficiency, overhead_flops/matmul_efficiency and 1/memory_efficiency, so that
ordinary least squares on relative errors finds them, with no start value and no choice on the way.

Which rows are fitted: both ends of Korthikanti's four (22B, 1T), and every other one of Megatron-LM's ten. So a row
held out lies between fitted ones. `leave_model_out_s` is stricter: it leaves out a model altogether, the largest too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from railyard.results.theory.iteration.constants import A100, Constants
from railyard.results.theory.iteration.iteration_time import compute_parts, iteration_time
from railyard.results.theory.iteration.measured import Measured, as_job, measured, predicted_s
from railyard.workloads.models.catalogue import load_gpt


def fitted_constants(rows: Sequence[Measured]) -> Constants:
    """Constants that leave the smallest sum of squared relative errors over `rows`."""
    columns, targets = [], []
    for row in rows:
        job, strategy = as_job(row)
        parts = compute_parts(job, strategy)
        network_s = float(iteration_time(job, strategy).network_s[0])
        columns.append([float(part[0]) / row.seconds for part in (parts.matmul_s, parts.pass_s, parts.memory_s)])
        targets.append(1 - network_s / row.seconds)
    matrix = np.array(columns)
    scale = np.linalg.norm(matrix, axis=0)  # seconds for one FLOP are far smaller than the others
    solved, *_ = np.linalg.lstsq(matrix / scale, np.array(targets), rcond=None)
    slowness, overhead, memory = (float(x) for x in solved / scale)
    return replace(
        A100, matmul_efficiency=1 / slowness, memory_efficiency=1 / memory, overhead_flops=overhead / slowness
    )


def leave_model_out_s(row: Measured) -> float:
    """Seconds with constants fitted on all published rows but those of this model's shape, in either table."""
    others = [r for r in measured() if _shape(r) != _shape(row)]
    job, strategy = as_job(row)
    cluster = replace(job.cluster, constants=fitted_constants(others))
    return float(iteration_time(replace(job, cluster=cluster), strategy).total_s[0])


def _shape(row: Measured) -> tuple[int, int]:
    model = load_gpt(row.model)
    return model.layers, model.hidden


def main() -> None:
    """Print the constants of the rows to be fitted, and every row's error with those of constants.py."""
    found = fitted_constants([row for row in measured() if row.fitted])
    print(f"matmul_efficiency={found.matmul_efficiency:.4f}")
    print(f"memory_efficiency={found.memory_efficiency:.4f}")
    print(f"overhead_flops={found.overhead_flops:.3e}")
    for row in measured():
        error, left_out = (100 * (s / row.seconds - 1) for s in (predicted_s(row), leave_model_out_s(row)))
        use = "fitted" if row.fitted else "held out"
        print(f"{row.table:12}{row.model:12}{row.mode:16}{use:9}{error:+6.1f}%  left out {left_out:+6.1f}%")


if __name__ == "__main__":
    main()
