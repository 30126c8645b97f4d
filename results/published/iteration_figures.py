"""Shared parts of the figures of iteration times: readings of Fig. 8 to 10, and tables of published times.

Rail-only gives equations, models, batches and GPUs; its constraints on strategies and its model of computing are in an
appendix that isn't printed. `AS_PRINTED` adds nothing to Eq. 6-11 that the paper doesn't say. Each of `OTHERS` changes
one assumption, so that its effect can be seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final, NamedTuple

import matplotlib.figure

from railyard.results.plots.style import BLUE, ORANGE, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.iteration.fit import leave_model_out_s, measured, predicted_s
from railyard.results.theory.iteration.iteration_time import A100, Job, Recipe, make_cluster
from railyard.results.theory.iteration.search import Best, Rules, best_strategy
from railyard.results.theory.step.calibration import errors_with_shapes_left_out
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import GptModel

GPT_1T: Final = "gpt-1008b"
GPT_146B: Final = "gpt-145.6b"
PLATFORM: Final = "gh200"
UNROUNDED: Final = Rules(whole_rounds=False)


@dataclass(frozen=True)
class Reading:
    """One set of assumptions. `recipe` and `constants`: the fields of Recipe and Constants that differ."""

    name: str
    rules: Rules = UNROUNDED
    recipe: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)


AS_PRINTED: Final = Reading("as printed")
OTHERS: Final = (
    Reading("m a multiple of p if interleaved", Rules(whole_rounds=True)),
    Reading("no interleaving", Rules(whole_rounds=False, max_virtual_stages=1)),
    Reading("t at most 8", Rules(whole_rounds=False, max_tensor=8)),
    Reading("no memory limit", Rules(whole_rounds=False, fits_memory=False)),
    Reading("full recomputation", recipe={"recompute": "full"}),
    Reading("32-bit gradients", recipe={"gradient_bytes": 4}),
    Reading("no latency", constants={"hb_latency_s": 0.0, "rail_latency_s": 0.0}),
    Reading("matmuls at the peak, all else free", constants={
        "matmul_efficiency": 1.0, "memory_efficiency": float("inf"), "overhead_flops": 0.0,
    }),
    Reading("overhead of a pass as long as on the A100", constants={
        "overhead_flops": A100.overhead_flops * PLATFORMS[PLATFORM].flops / PLATFORMS["a100"].flops,
    }),
)  # fmt: skip

NOTES: Final = (
    "Eq. 6-11 on DGX GH200. Sequence parallelism and 16 bits throughout, as the paper has it; what it doesn't state: "
    "selective recomputation, 1 us and 2 us of latency, efficiency as fitted on A100s with the H100's own peaks",
    "t divides the heads, p v the layers, d b the batch. As printed, Eq. 7 lets any v divide the bubble. Megatron-LM "
    "needs m as a multiple of p for that, and with m < p no schedule is as fast: a single micro-batch takes p t(b). "
    "That matters for three numbers alone: Fig. 8's K=8 to 256 for GPT-146B, and Fig. 10's K=8 and K=256 at batch 256. "
    "For the first two it is this reading that comes near the paper's; the third is within 3 points under both",
    "A strategy must fit memory, at 16 bytes a parameter and activations; not stated either. The paper's own GPT-1T on "
    "4,096 GPUs (III-B, d = 64) would take 252 GB a GPU without activations",
)


def best(
    reading: Reading, model: str, batch: int, gpus: int, domain_gpus: int, hb_bps: float = 0.0, rail_bps: float = 0.0
) -> Best:
    """The fastest strategy under a reading. Rates in bit/s; 0 is the platform's."""
    job = job_of(reading, model, batch, gpus, domain_gpus, hb_bps, rail_bps)
    return best_strategy(job, reading.rules)


def job_of(
    reading: Reading, model: str, batch: int, gpus: int, domain_gpus: int, hb_bps: float = 0.0, rail_bps: float = 0.0
) -> Job:
    """A training under a reading. Rates in bit/s; 0 is the platform's."""
    cluster = make_cluster(PLATFORM, gpus, domain_gpus)
    hb = hb_bps / 8 or cluster.hb_bytes_per_s
    rail = rail_bps / 8 or cluster.rail_bytes_per_s
    constants = replace(cluster.constants, **reading.constants)
    cluster = replace(cluster, hb_bytes_per_s=hb, rail_bytes_per_s=rail, constants=constants)
    return Job(GptModel.load(model), Recipe(batch, **reading.recipe), cluster)


def less_pct(slow_s: float, fast_s: float) -> float:
    """Return how much less time the second takes, percent."""
    return 100 * (1 - fast_s / slow_s)


def listed(name: str, values: Iterable[float]) -> str:
    """A note: `reading: 2.8%, 5.5%`, in the order of the claims."""
    return f"{name}: " + ", ".join(f"{value:.1f}%" for value in values)


TABLE_NOTES: Final = (
    "one set of three constants for the A100, fitted on the rows so marked in korthikanti and megatron together: "
    f"matmuls at {A100.matmul_efficiency:.1%} of the peak, HBM at {A100.memory_efficiency:.1%}, "
    f"{A100.overhead_flops / 1e9:.0f} GFLOP on top of each layer's pass",
    "left_out_error_pct, and the claims with every shape left out: with the constants fitted on all rows of both "
    "tables but those of this model's shape",
    "held out is weaker: the shapes of 530B and 1T are in both tables, held out in one and fitted in the other",
    "the 530B and 1T of both tables are the same job but for data parallelism, yet Megatron-LM's took 9 to 10% longer: "
    "no single set of constants can be near both",
)


LEFT_OUT: Final = (
    "constants fitted without the row's shape, in both tables: in Korthikanti's, 175B and 1T then come out too long, "
    "and 1T, the largest, is an extrapolation"
)


class Bar(NamedTuple):
    """The largest mean and worst error that meet it, percent; and whose it is."""

    stated_by: str
    mean: float
    worst: float | None = None


def table_figure(table: str, title: str, source: str, bars: Sequence[Bar]) -> Figure:
    """Return the rows of one table of measured.csv, beside each of `bars`."""
    labels: list[str] = []
    cells: list[tuple[Cell, ...]] = []
    uses: list[str] = []
    errors: list[float] = []
    left_out: list[float] = []
    for row in measured():
        if row.table != table:
            continue
        seconds = predicted_s(row)
        uses.append("fitted" if row.fitted else "held out")
        errors.append(100 * (seconds / row.seconds - 1))
        left_out.append(100 * (leave_model_out_s(row) / row.seconds - 1))
        labels.append(f"{row.model}, {row.mode}")
        cells.append((row.model, row.mode, row.seconds, seconds, errors[-1], uses[-1], left_out[-1]))
    held_out = fmean(abs(error) for error, use in zip(errors, uses, strict=True) if use == "held out")
    claims: list[Claim] = []
    for bar in bars:
        claims += _claims(bar, "error", errors, "")
    for bar in bars:
        claims += _claims(bar, "error, every shape left out of its own fit", left_out, LEFT_OUT)
    by_step_model = [100 * error for error in errors_with_shapes_left_out(table)]
    for bar in bars:
        claims += _claims(bar, "error by the model of `search`, every shape left out of its own fit", by_step_model, "")
    return Figure(
        title=title,
        source=source,
        columns=("model", "mode", "published_s", "predicted_s", "error_pct", "rows_use", "left_out_error_pct"),
        rows=cells,
        draw=lambda drawn: _draw(drawn, labels, uses, errors),
        claims=tuple(claims),
        notes=(f"mean error of the rows held out: {held_out:.1f}%", *TABLE_NOTES),
    )


def _claims(bar: Bar, name: str, errors: Sequence[float], reason: str) -> Iterator[Claim]:
    """Yield mean and worst of errors in percent beside those of a bar. `reason`: a note where an error is larger."""
    sizes = [abs(error) for error in errors]
    for statistic, most, value in (("mean", bar.mean, fmean(sizes)), ("worst", bar.worst, max(sizes))):
        if most is not None:
            note = reason if value > most else ""
            claim_name = f"{statistic} {name}"
            yield Claim(claim_name, most, value, "%", bound="at most", note=note, stated=bar.stated_by)


def _draw(drawn: matplotlib.figure.Figure, labels: Sequence[str], uses: list[str], errors: list[float]) -> None:
    axes = drawn.subplots()
    for use, colour in (("fitted", BLUE), ("held out", ORANGE)):
        at = [place for place, use_of_row in enumerate(uses) if use_of_row == use]
        axes.barh(at, [errors[i] for i in at], color=colour, label=use, height=0.6)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    drawn.legend(loc="outside right upper")
    quiet(axes, "x", xlabel="predicted over published iteration time, % above")
