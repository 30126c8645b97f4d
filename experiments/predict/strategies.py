"""Output of `search`: a table of strategies, its notes, JSON, and why a strategy is slower or left out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.terminal import FittingTable
from railyard.results.format import digits
from railyard.results.theory.step.answer import answer, days
from railyard.results.theory.step.candidates import DIMENSIONS
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.interval import Interval, JobClass, interval_of, job_class, outside_of_measured
from railyard.results.theory.step.search import Weighed, explained, weigh
from railyard.results.theory.step.space import FSDP, Space, Variant, sharded_variants, with_overlap
from railyard.results.theory.step.step_time import StepTime, step_time
from railyard.results.theory.step.strategy import Recipe, Strategies, one_strategy
from railyard.workloads.models.transformer import Transformer

COLUMNS: Final = (
    "", "t", "c", "p", "d", "e", "v", "b", "format", "recompute", "ZeRO", "overlap", "GB", "step s", "tok/s/GPU",
    "MFU", "compute", "network", "bubble",
)  # fmt: skip
COMPUTING: Final = ("matmul_s", "attention_s", "memory_s", "launch_s", "output_s", "optimizer_s")
BUBBLE: Final = ("bubble_s", "imbalance_s")


@dataclass(frozen=True, slots=True)
class SearchJob:
    """A training whose fastest strategies are searched.

    recipe: everything but the dimensions of `space`
    clusters: the GPUs in each number format
    platform: its name, by which measured steps are found
    """

    model: Transformer
    recipe: Recipe
    clusters: Sequence[Hardware]
    space: Space
    platform: str

    def weighed(self) -> Weighed:
        """Return the strategies that divide and fit, with their times."""
        return weigh(self.model, self.recipe, self.clusters, self.space)

    def job_class(self, variant: Variant) -> JobClass:
        """Return the class of measured steps that a recipe belongs to."""
        is_fsdp = variant.recipe.zero == FSDP
        return job_class(self.platform, variant.hardware.precision, bool(self.model.moe_layers), is_fsdp)

    def interval(self, variant: Variant) -> Interval:
        """Return the interval of measured times over predicted ones for a recipe."""
        return interval_of(self.job_class(variant))

    def span_s(self, variant: Variant, strategy: Strategies) -> tuple[float, float]:
        """Return the interval of a strategy's time, s.

        Measured steps were predicted without overlap of tensor and pipeline parallelism, so the upper end is of a step
        in which such an overlap hides nothing.
        """
        interval = self.interval(variant)
        plain = replace(variant.recipe, overlap_tensor=0.0, overlap_pipeline=False)
        seconds = step_time(self.model, variant.recipe, variant.hardware, strategy).total_s[0]
        plain_s = step_time(self.model, plain, variant.hardware, strategy).total_s[0]
        return float(seconds * interval.low), float(plain_s * interval.high)

    def outside(self, variant: Variant) -> list[str]:
        """Return in which respects a job is like no measured step."""
        return outside_of_measured(self.job_class(variant), self.platform, self.model, variant.hardware.gpus)


def strategies_table(job: SearchJob, weighed: Weighed, indices: Sequence[int]) -> FittingTable:
    """Return the table of some strategies, numbered from 1."""
    table = FittingTable(box=None, pad_edge=False, padding=(0, 1))
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for position, index in enumerate(indices, start=1):
        variant = weighed.variant(index)
        recipe = variant.recipe
        strategy = weighed.strategies.at(index)
        seconds = float(weighed.seconds[index])
        figures = answer(job.model, recipe, variant.hardware, seconds)
        times = step_time(job.model, recipe, variant.hardware, weighed.strategy(index))
        table.add_row(
            str(position),
            *map(str, strategy.values()),
            variant.hardware.precision,
            recipe.recompute,
            str(recipe.zero),
            variant.overlap_letters,
            f"{weighed.gpu_bytes[index] / 1e9:.1f}",
            digits(seconds, 4),
            f"{figures.tokens_per_gpu:,.0f}",
            f"{figures.mfu_pct:.1f}%",
            *(f"{100 * part / seconds:.1f}%" for part in _parts(times)),
        )
    return table


def _parts(times: StepTime) -> tuple[float, float, float]:
    """Return the seconds of computing, of communication that computing doesn't hide, and of waiting in the pipeline."""
    computing = sum(float(getattr(times, name)[0]) for name in COMPUTING)
    bubble = sum(float(getattr(times, name)[0]) for name in BUBBLE)
    return computing, float(times.total_s[0]) - computing - bubble, bubble


def json_row(job: SearchJob, weighed: Weighed, index: int, tokens: float | None = None) -> dict[str, Any]:
    """Return a strategy with its recipe, figures and times, and the days that `tokens` take."""
    variant = weighed.variant(index)
    recipe = variant.recipe
    seconds = float(weighed.seconds[index])
    strategy = weighed.strategy(index)
    low_s, high_s = job.span_s(variant, strategy)
    times = step_time(job.model, recipe, variant.hardware, strategy)
    row: dict[str, Any] = dict(weighed.strategies.at(index))
    row |= {"precision": variant.hardware.precision, "recompute": recipe.recompute, "zero": recipe.zero}
    row |= {"overlap": list(variant.overlap), "gpu_bytes": int(weighed.gpu_bytes[index])}
    row |= {"step_s": seconds, "low_s": low_s, "high_s": high_s}
    row |= asdict(answer(job.model, recipe, variant.hardware, seconds))
    if tokens:
        for name, value in (("days", seconds), ("low_days", low_s), ("high_days", high_s)):
            row[name] = days(job.model, recipe, tokens, value)
    for field in fields(times):
        row[field.name] = float(getattr(times, field.name)[0])
    row["outside_of_measured"] = job.outside(variant)
    return row


def notes(job: SearchJob, weighed: Weighed, indices: Sequence[int], tokens: float | None) -> list[str]:
    """Return what the table leaves open: intervals, days, and where the job lies outside of measured ones."""
    lines: list[str] = []
    # measured steps with FSDP are predicted worse than those without, so each has its own interval
    for is_fsdp in (True, False):
        shown = [index for index in indices if (weighed.recipe(index).zero == FSDP) == is_fsdp]
        if shown:
            lines += _interval_notes(job, weighed, shown[0], tokens)
    outside = job.outside(weighed.variant(indices[0]))
    if outside:
        lines.append(f"outside of what was measured: {'; '.join(outside)}")
    lines.append(
        "t tensor, c context, p pipeline, d data, e expert parallelism, v virtual stages, b micro-batch; overlap: "
        "whose communication runs beside computing; network: what computing doesn't hide; selective recomputation: "
        "norms and activation functions; ZeRO 3 is FSDP"
    )
    return lines


def _interval_notes(job: SearchJob, weighed: Weighed, index: int, tokens: float | None) -> list[str]:
    """Return how sure the time of a strategy is, and the days that tokens take."""
    variant = weighed.variant(index)
    recipe = variant.recipe
    interval = job.interval(variant)
    low_s, high_s = job.span_s(variant, weighed.strategy(index))
    name = f"ZeRO {recipe.zero}"
    text = (
        f"{name}: four of five measured steps took {interval.low:.2f} to {interval.high:.2f} times the predicted "
        f"time ({interval.rows} steps of {interval.models} models that nothing was fitted on: {interval.of}): the "
        f"fastest takes {digits(low_s, 3)} to {digits(high_s, 3)} s"
    )
    if recipe.overlap_tensor or recipe.overlap_pipeline:
        text += ", the upper end if overlap of tensor and pipeline communication hides nothing"
    lines = [text]
    if tokens:
        times = (float(weighed.seconds[index]), low_s, high_s)
        spans = [f"{days(job.model, recipe, tokens, value):,.1f}" for value in times]
        number = f"{tokens / 1e12:,g} T tokens take {spans[0]} days ({spans[1]} to {spans[2]})"
        lines.append(f"{number} with the fastest of {name}, without failures")
    return lines


def explain(console: Console, job: SearchJob, wanted: dict[str, int]) -> None:
    """Print why a strategy is left out, or its times beside those of the fastest."""
    dimensions, variant, nearest = _strategy_to_explain(job, wanted)
    strategy = one_strategy(**dimensions)
    reasons, times, gpu_bytes = explained(job.model, variant.recipe, variant.hardware, strategy)
    weighed = job.weighed()
    first = int(weighed.order()[0])
    best = weighed.variant(first)
    best_times = step_time(job.model, best.recipe, best.hardware, weighed.strategy(first))
    for line in (
        _strategy_line("this", dimensions, variant),
        _strategy_line("fastest", weighed.strategies.at(first), best),
        *(f"left out: {reason}" for reason in [*nearest, *reasons]),
    ):
        console.print(line, highlight=False, soft_wrap=True)
    gigabytes = (gpu_bytes / 1e9, float(weighed.gpu_bytes[first]) / 1e9)
    console.print(_comparison(times, best_times, gigabytes))
    gpus = dimensions["tensor"] * dimensions["context"] * dimensions["pipeline"] * dimensions["data"]
    if gpus != variant.hardware.gpus:
        console.print(f"note: the times of this are of a step on {gpus:,} GPUs", highlight=False, soft_wrap=True)
    low_s, high_s = job.span_s(variant, strategy)
    span = f"{digits(low_s, 3)} to {digits(high_s, 3)} s"
    console.print(f"note: this takes {span} by four of five measured steps", highlight=False, soft_wrap=True)
    for reason in job.outside(variant):
        console.print(f"note: outside of what was measured: {reason}", highlight=False, soft_wrap=True)


def _strategy_to_explain(job: SearchJob, wanted: dict[str, int]) -> tuple[dict[str, int], Variant, list[str]]:
    """Return the fastest strategy with the wanted dimensions, its recipe, and sizes near one that divides nothing.

    Where none divides and fits, the one whose other dimensions are 1, and d what they leave of the GPUs, with the
    recipe that takes least memory: what is wrong with it is wrong with all others.
    """
    space = replace(job.space, fixed=wanted)
    try:
        weighed = replace(job, space=space).weighed()
    except BadInput as error:
        nearest: list[str] = []
        if error.field.startswith("fix."):
            nearest.append(f"{error.field.removeprefix('fix.')}={error.value} {error.allowed}")
        dimensions = dict.fromkeys(DIMENSIONS.values(), 1)
        dimensions |= {DIMENSIONS[letter]: number for letter, number in wanted.items()}
        if "d" not in wanted:
            used = dimensions["tensor"] * dimensions["context"] * dimensions["pipeline"]
            dimensions["data"] = max(1, job.clusters[0].gpus // used)
        # the last recomputation and ZeRO stage take least memory
        *_, leanest = sharded_variants(job.recipe, job.clusters, space)
        zero = leanest.recipe.zero
        if dimensions["pipeline"] > 1:
            zero = max((stage for stage in space.zero if stage < 2), default=space.zero[0])
        recipe = with_overlap(replace(leanest.recipe, zero=zero), space.overlaps[-1], space)
        return dimensions, replace(leanest, recipe=recipe), nearest
    first = int(weighed.order()[0])
    return weighed.strategies.at(first), weighed.variant(first), []


def _strategy_line(name: str, strategy: dict[str, int], variant: Variant) -> str:
    """Return a strategy and its recipe in words."""
    words = " ".join(f"{letter}={strategy[dimension]}" for letter, dimension in DIMENSIONS.items())
    recipe = variant.recipe
    overlap = ", ".join(variant.overlap) or "nothing"
    recompute = "no" if recipe.recompute == "none" else recipe.recompute
    return (
        f"{name}: {words}, {variant.hardware.precision}, {recompute} recomputation, ZeRO {recipe.zero}, "
        f"beside computing: {overlap}"
    )


def _comparison(times: StepTime, best_times: StepTime, gigabytes: tuple[float, float]) -> FittingTable:
    """Return the times of a strategy by cause, beside those of the fastest."""
    table = FittingTable(box=None, pad_edge=False, padding=(0, 1))
    for column in ("cause", "this, s", "fastest, s", "more, s"):
        table.add_column(column, justify="left" if column == "cause" else "right", no_wrap=True)
    for field in fields(times):
        mine = float(getattr(times, field.name)[0])
        other = float(getattr(best_times, field.name)[0])
        cause = field.name.removesuffix("_s").replace("_", " ")
        table.add_row(cause, digits(mine, 3), digits(other, 3), digits(mine - other, 3))
    total = float(times.total_s[0])
    best_total = float(best_times.total_s[0])
    table.add_row("step", digits(total, 4), digits(best_total, 4), digits(total - best_total, 3))
    table.add_row("memory of a GPU, GB", *(f"{size:.1f}" for size in gigabytes), "")
    return table
