"""`search`: the fastest strategies of a training on a real cluster, by formulas, and where their time goes."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.terminal import FittingTable
from railyard.experiments import options
from railyard.results.format import digits
from railyard.results.theory.collectives.own_rows import ring_constants
from railyard.results.theory.step.answer import answer, days, parse_tokens
from railyard.results.theory.step.hardware import Hardware, make_hardware
from railyard.results.theory.step.interval import Interval, interval_of, job_class, outside_of_measured
from railyard.results.theory.step.search import DIMENSIONS, FSDP, ZERO, Space, Weighed, default_batch, explained, weigh
from railyard.results.theory.step.step_time import StepTime, step_time
from railyard.results.theory.step.strategy import RECOMPUTE, Recipe, one_strategy
from railyard.topologies.platforms import PLATFORMS, Precision
from railyard.workloads.models.catalogue import load_transformer
from railyard.workloads.models.transformer import Transformer

PURPOSE = "Compute and check, without packets"
# beyond any cluster, and still computed in seconds
MAX_COUNT: Final = 2**20
COLUMNS = (
    "", "t", "c", "p", "d", "e", "v", "b", "recompute", "ZeRO", "GB", "step s", "tokens/s/GPU", "MFU",
    "computing", "network", "bubble",
)  # fmt: skip
COMPUTING: Final = ("matmul_s", "attention_s", "memory_s", "launch_s", "output_s", "optimizer_s")
BUBBLE: Final = ("bubble_s", "imbalance_s")
GRADIENT_BYTES: Final = (2, 4)
OVERLAPS: Final = ("data", "tensor", "pipeline", "experts")
LAYOUT: Final = ("layout", "layouts")
STRATEGY: Final = ("strategy", "strategies")


@options.shows_progress
def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE",
            help="A model of the catalogue, your own YAML file, or a config.json of Hugging Face.",
            autocompletion=options.completion(options.catalogue_names),
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, max=MAX_COUNT, show_default=False, help="GPUs of the cluster.")],
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_COUNT,
            show_default="16 Mi tokens",
            help="The global batch, in sequences.",
        ),
    ] = None,
    platform: Annotated[
        str,
        typer.Option(
            help="The platform of GPUs and links; or your own YAML file.",
            autocompletion=options.completion(options.platform_names),
        ),
    ] = "h100",
    domain_gpus: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, show_default="the platform's", help="GPUs in an HB domain.")
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp8, mxfp8 or nvfp4: of matmuls with parameters.")] = "bf16",
    sequence: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, show_default="the model's", help="Tokens of a sequence.")
    ] = None,
    fix: Annotated[
        str, typer.Option(metavar="t=8,p=16", show_default=False, help="Dimensions to fix: t, c, p, d, e, v, b.")
    ] = "",
    recompute: Annotated[
        str | None, typer.Option(show_default="the fastest", help="none, selective or full recomputation.")
    ] = None,
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, show_default="1 or 3", help="ZeRO's stage; 3 is FSDP.")
    ] = None,
    explain: Annotated[
        str,
        typer.Option(metavar="t=8,p=16", show_default=False, help="Say why a strategy is slower or left out."),
    ] = "",
    gradient_bytes: Annotated[
        int, typer.Option(min=2, max=4, help="Bytes of a parameter's gradient, as kept and as reduced: 2 or 4.")
    ] = 2,
    no_sequence_parallel: Annotated[
        bool, typer.Option("--no-sequence-parallel", help="Tensor-parallel ranks don't split norms and residuals.")
    ] = False,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="data,tensor",
            help="Communication beside computing: any of data, tensor, pipeline and experts, or none.",
        ),
    ] = "data",
    nccl: Annotated[
        Path | None,
        typer.Option(show_default=False, help="Take the rates of collectives that your nccl-tests output shows."),
    ] = None,
    tokens: Annotated[
        str, typer.Option(metavar="15T", show_default=False, help="Say how many days these tokens take.")
    ] = "",
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="A MoE layer's kernels are launched as CUDA graphs.")
    ] = False,
    unfused: Annotated[bool, typer.Option("--unfused", help="Attention as in 2022, without fused kernels.")] = False,
    variants: Annotated[
        bool, typer.Option("--variants", help="Also print slower v, b, recomputation and ZeRO of a layout.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many strategies to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the strategies as JSON, times in seconds.")] = False,
) -> int:
    """Find the fastest parallelization strategies for a model on a real cluster, by the formulas. Needs no root."""
    shape = load_shape(model, sequence, fused=not unfused)
    overlaps = parse_overlap(overlap)
    recipe = Recipe(
        batch or default_batch(shape.sequence),
        sequence_parallel=not no_sequence_parallel,
        gradient_bytes=gradient_bytes,
        cuda_graphs=cuda_graphs,
        overlap_data="data" in overlaps,
        overlap_tensor="tensor" in overlaps,
        overlap_pipeline="pipeline" in overlaps,
        overlap_experts="experts" in overlaps,
    )
    if gradient_bytes not in GRADIENT_BYTES:
        raise BadInput("gradient-bytes", gradient_bytes, "must be 2 or 4")
    hardware = make_hardware(platform, gpus, domain_gpus, parse_precision(precision))
    if nccl:
        hardware = with_own_links(hardware, str(nccl), platform)
    space = parse_space(fix, recompute, zero)
    trained_tokens = parse_tokens(tokens) if tokens else None
    console = options.console()
    if explain:
        return _explain(console, shape, recipe, hardware, space, explain, PLATFORMS[platform].name)
    weighed = weigh(shape, recipe, hardware, space)
    indices = weighed.fastest_layouts()
    kind = LAYOUT
    if variants:
        indices = list(map(int, weighed.order()))
        kind = STRATEGY
    name = PLATFORMS[platform].name
    if as_json:
        rows = [_json_row(shape, hardware, weighed, index, name) for index in indices[:top]]
        print(json.dumps(rows, indent=1))
        return 0
    ranking = f"the fastest of {_count(len(indices), *kind)}"
    title = (
        f"{model}, batch {recipe.global_batch:,} x {shape.sequence:,} tokens, on {gpus:,} GPUs ({platform}, "
        f"{hardware.precision}) in HB domains of {hardware.domain_gpus:,}: {ranking}, "
        f"from {_count(len(weighed), *STRATEGY)} that divide and fit"
    )
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    console.print(_table(shape, hardware, weighed, indices[:top]))
    for note in _notes(shape, hardware, weighed, indices[:top], name, trained_tokens):
        console.print(f"note: {note}", style="dim", highlight=False, soft_wrap=True)
    return 0


def _count(number: int, singular: str, plural: str) -> str:
    """Return a number with its noun."""
    if number == 1:
        return f"1 {singular}"
    return f"{number:,} {plural}"


def load_shape(model: str, sequence: int | None, fused: bool) -> Transformer:
    """Return the model, with attention as it is computed today (`fused`), and another length of sequences if given."""
    update: dict[str, object] = {"fused_attention": fused}
    if sequence:
        update["sequence"] = sequence
    return load_transformer(model).model_copy(update=update)


def parse_precision(text: str) -> Precision:
    """Return the number format. BadInput for an unknown name; whether the platform has it is checked with its peak."""
    names = ("bf16", "fp8", "mxfp8", "nvfp4")
    if text not in names:
        raise BadInput("precision", text, unknown_name_hint(text, names))
    return cast(Precision, text)


def with_own_links(hardware: Hardware, file: str, platform: str) -> Hardware:
    """Return the hardware with the shares of links' rates that an output of nccl-tests shows."""
    constants = ring_constants(file, platform).constants
    return replace(
        hardware,
        hb_share=min(constants.hb_efficiency, constants.ring_efficiency),
        rail_share=constants.rail_efficiency,
        small_group=constants.small_group,
    )


def parse_space(fix: str, recompute: str | None, zero: int | None) -> Space:
    """Return the space that the options leave."""
    if recompute is not None and recompute not in RECOMPUTE:
        raise BadInput("recompute", recompute, unknown_name_hint(recompute, RECOMPUTE))
    recomputes = tuple(name for name in RECOMPUTE if recompute in (None, name))
    stages = ZERO if zero is None else (zero,)
    return Space(parse_dimensions(fix, "fix"), recomputes, stages)


def parse_overlap(text: str) -> list[str]:
    """Return the names of the communication that runs beside computing. BadInput for another name."""
    if text == "none":
        return []
    names = text.split(",")
    for name in names:
        if name not in OVERLAPS:
            raise BadInput("overlap", name, unknown_name_hint(name, (*OVERLAPS, "none")))
    return names


def parse_dimensions(text: str, field: str) -> dict[str, int]:
    """Return dimensions such as t=8,p=16 by their letters. BadInput for another letter or number."""
    dimensions: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        letter, _, number = part.strip().partition("=")
        if letter not in DIMENSIONS:
            names = ", ".join(f"{key} ({name.replace('_', ' ')})" for key, name in DIMENSIONS.items())
            raise BadInput(field, part, f"must be a dimension and a number, such as t=8; dimensions are {names}")
        if not number.isdigit() or not 1 <= int(number) <= MAX_COUNT:
            raise BadInput(field, part, f"must have a whole number of at least 1 after {letter}=")
        if letter in dimensions:
            raise BadInput(field, part, f"is the second {letter}, after {letter}={dimensions[letter]}")
        dimensions[letter] = int(number)
    return dimensions


def _table(shape: Transformer, hardware: Hardware, weighed: Weighed, indices: list[int]) -> FittingTable:
    """Return the table of some strategies, numbered from 1."""
    table = FittingTable(box=None, pad_edge=False, padding=(0, 1))
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for position, index in enumerate(indices, start=1):
        recipe = weighed.recipe(index)
        strategy = weighed.strategies.at(index)
        seconds = float(weighed.seconds[index])
        figures = answer(shape, recipe, hardware, seconds)
        times = step_time(shape, recipe, hardware, weighed.strategy(index))
        table.add_row(
            str(position),
            *map(str, strategy.values()),
            recipe.recompute,
            str(recipe.zero),
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


def _json_row(shape: Transformer, hardware: Hardware, weighed: Weighed, index: int, platform: str) -> dict[str, Any]:
    """Return a strategy with its recipe, figures and times."""
    recipe = weighed.recipe(index)
    interval = _interval(shape, hardware, recipe, platform)
    seconds = float(weighed.seconds[index])
    times = step_time(shape, recipe, hardware, weighed.strategy(index))
    row: dict[str, Any] = dict(weighed.strategies.at(index))
    row |= {"recompute": recipe.recompute, "zero": recipe.zero, "gpu_bytes": int(weighed.gpu_bytes[index])}
    row |= {"step_s": seconds, "low_s": seconds * interval.low, "high_s": seconds * interval.high}
    row |= asdict(answer(shape, recipe, hardware, seconds))
    for field in fields(times):
        row[field.name] = float(getattr(times, field.name)[0])
    row["outside_of_measured"] = _outside(shape, hardware, recipe, platform)
    return row


def _outside(shape: Transformer, hardware: Hardware, recipe: Recipe, platform: str) -> list[str]:
    """Return in which respects a job is like no measured step."""
    job = job_class(platform, hardware.precision, bool(shape.moe_layers), recipe.zero == FSDP)
    return outside_of_measured(job, platform, shape, hardware.gpus)


def _interval(shape: Transformer, hardware: Hardware, recipe: Recipe, platform: str) -> Interval:
    """Return the interval of measured times over predicted ones for a job of the recipe."""
    return interval_of(job_class(platform, hardware.precision, bool(shape.moe_layers), recipe.zero == FSDP))


def _notes(
    shape: Transformer,
    hardware: Hardware,
    weighed: Weighed,
    indices: list[int],
    platform: str,
    tokens: float | None,
) -> list[str]:
    """Return what the table leaves open: intervals, days, and where the job lies outside of measured ones."""
    notes: list[str] = []
    for is_fsdp in (True, False):
        shown = [index for index in indices if (weighed.recipe(index).zero == FSDP) == is_fsdp]
        if not shown:
            continue
        recipe = weighed.recipe(shown[0])
        interval = _interval(shape, hardware, recipe, platform)
        seconds = float(weighed.seconds[shown[0]])
        low_s = seconds * interval.low
        high_s = seconds * interval.high
        name = "ZeRO 3" if is_fsdp else f"ZeRO {recipe.zero}"
        notes.append(
            f"{name}: four of five measured steps took {interval.low:.2f} to {interval.high:.2f} times the predicted "
            f"time ({interval.rows} steps of {interval.models} models that nothing was fitted on: {interval.of}): the "
            f"fastest takes {digits(low_s, 3)} to {digits(high_s, 3)} s"
        )
        if tokens:
            spans = [f"{days(shape, recipe, tokens, value):,.1f}" for value in (seconds, low_s, high_s)]
            number = f"{tokens / 1e12:,g} T tokens take {spans[0]} days ({spans[1]} to {spans[2]})"
            notes.append(f"{number} with the fastest of {name}, without failures")
    outside = _outside(shape, hardware, weighed.recipe(indices[0]), platform)
    if outside:
        notes.append(f"outside of what was measured: {'; '.join(outside)}")
    notes.append(
        "t tensor, c context, p pipeline, d data, e expert parallelism, v virtual stages, b micro-batch; network: what "
        "computing doesn't hide; selective recomputation: norms and activation functions; ZeRO 3 is FSDP"
    )
    return notes


def _strategy_to_explain(
    shape: Transformer, recipe: Recipe, hardware: Hardware, space: Space, wanted: dict[str, int]
) -> tuple[dict[str, int], Recipe]:
    """Return the fastest strategy with the wanted dimensions, and its recipe.

    Where none divides and fits, the one whose other dimensions are 1, and d what they leave of the GPUs, with the
    recipe that takes least memory: what is wrong with it is wrong with all others.
    """
    try:
        weighed = weigh(shape, recipe, hardware, replace(space, fixed=wanted))
    except BadInput:
        dimensions = dict.fromkeys(DIMENSIONS.values(), 1)
        dimensions |= {DIMENSIONS[letter]: number for letter, number in wanted.items()}
        if "d" not in wanted:
            used = dimensions["tensor"] * dimensions["context"] * dimensions["pipeline"]
            dimensions["data"] = max(1, hardware.gpus // used)
        zero = space.zero[0]
        if dimensions["pipeline"] == 1:
            zero = space.zero[-1]
        return dimensions, replace(recipe, recompute=space.recompute[-1], zero=zero)
    first = int(weighed.order()[0])
    return weighed.strategies.at(first), weighed.recipe(first)


def _explain(
    console: Console, shape: Transformer, recipe: Recipe, hardware: Hardware, space: Space, text: str, platform: str
) -> int:
    """Print why a strategy is left out, or its times beside those of the fastest."""
    dimensions, variant = _strategy_to_explain(shape, recipe, hardware, space, parse_dimensions(text, "explain"))
    reasons, times, gpu_bytes = explained(shape, variant, hardware, one_strategy(**dimensions))
    weighed = weigh(shape, recipe, hardware, space)
    first = int(weighed.order()[0])
    best_times = step_time(shape, weighed.recipe(first), hardware, weighed.strategy(first))
    best = weighed.strategies.at(first)
    for name, strategy, recipe_of in (("this", dimensions, variant), ("fastest", best, weighed.recipe(first))):
        words = " ".join(f"{letter}={strategy[dimension]}" for letter, dimension in DIMENSIONS.items())
        line = f"{name}: {words}, {recipe_of.recompute} recomputation, ZeRO {recipe_of.zero}"
        console.print(line, highlight=False, soft_wrap=True)
    for reason in reasons:
        console.print(f"left out: {reason}", highlight=False, soft_wrap=True)
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
    gigabytes = (gpu_bytes / 1e9, float(weighed.gpu_bytes[first]) / 1e9)
    table.add_row("memory of a GPU, GB", f"{gigabytes[0]:.1f}", f"{gigabytes[1]:.1f}", "")
    console.print(table)
    interval = _interval(shape, hardware, variant, platform)
    span = f"{digits(total * interval.low, 3)} to {digits(total * interval.high, 3)} s"
    console.print(f"note: this takes {span} by four of five measured steps", highlight=False, soft_wrap=True)
    for reason in _outside(shape, hardware, variant, platform):
        console.print(f"note: outside of what was measured: {reason}", highlight=False, soft_wrap=True)
    return 0
