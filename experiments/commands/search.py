"""`search`: the fastest strategies of a training on a real cluster, by formulas, and where their time goes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments import options
from railyard.experiments.predict.strategies import SearchJob, explain, json_row, notes, strategies_table
from railyard.results.theory.collectives.own_rows import ring_constants
from railyard.results.theory.step.answer import parse_tokens
from railyard.results.theory.step.candidates import DIMENSIONS, default_batch
from railyard.results.theory.step.hardware import Hardware, make_hardware
from railyard.results.theory.step.space import OVERLAP_LETTERS, OVERLAPS, ZERO, Overlap, Space
from railyard.results.theory.step.strategy import RECOMPUTE, Recipe
from railyard.topologies.platforms import PLATFORMS, PRECISIONS, full_name
from railyard.workloads.models.catalogue import as_transformer, load_model
from railyard.workloads.models.transformer import Transformer

PURPOSE = "Compute and check, without packets"
# beyond any cluster, and still computed in seconds
MAX_COUNT: Final = 2**20
GRADIENT_BYTES: Final = (2, 4)
LAYOUT: Final = ("layout", "layouts")
STRATEGY: Final = ("strategy that divides and fits", "strategies that divide and fit")


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
    precision: Annotated[
        str | None,
        typer.Option(
            show_default="all of the platform",
            help="Number format of matmuls with parameters: bf16, fp8, mxfp8 or nvfp4.",
        ),
    ] = None,
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
        int | None, typer.Option(min=0, max=3, show_default="the fastest", help="ZeRO's stage; 3 is FSDP.")
    ] = None,
    explained: Annotated[
        str,
        typer.Option(
            "--explain", metavar="t=8,p=16", show_default=False, help="Say why a strategy is slower or left out."
        ),
    ] = "",
    gradient_bytes: Annotated[
        int, typer.Option(min=2, max=4, help="Bytes of a parameter's gradient, as kept and as reduced: 2 or 4.")
    ] = 2,
    no_sequence_parallel: Annotated[
        bool, typer.Option("--no-sequence-parallel", help="Tensor-parallel ranks don't split norms and residuals.")
    ] = False,
    overlap: Annotated[
        str | None,
        typer.Option(
            metavar="data,tensor",
            show_default="the fastest of data, tensor, pipeline",
            help="Communication beside computing: any of data, tensor (or a share of it: tensor=0.5), pipeline and "
            "experts, or none.",
        ),
    ] = None,
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
        bool, typer.Option("--variants", help="Also print slower v, b and recipes of a layout.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many strategies to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the strategies as JSON, times in seconds.")] = False,
) -> int:
    """Find the fastest parallelization strategies for a model on a real cluster, by the formulas. Needs no root."""
    shape = load_shape(model, sequence, fused=not unfused)
    if gradient_bytes not in GRADIENT_BYTES:
        raise BadInput("gradient-bytes", gradient_bytes, "must be 2 or 4")
    recipe = Recipe(
        batch or default_batch(shape.sequence),
        sequence_parallel=not no_sequence_parallel,
        gradient_bytes=gradient_bytes,
        cuda_graphs=cuda_graphs,
    )
    clusters = parse_clusters(platform, gpus, domain_gpus, precision)
    if nccl:
        clusters = [with_own_links(hardware, str(nccl), full_name(platform)) for hardware in clusters]
    space = parse_space(fix, recompute, zero, overlap)
    trained_tokens = parse_tokens(tokens) if tokens else None
    job = SearchJob(shape, recipe, clusters, space, PLATFORMS[platform].name)
    console = options.console()
    if explained:
        if as_json:
            raise BadInput("json", True, "can't be with --explain, which prints a table")
        explain(console, job, parse_dimensions(explained, "explain"))
        return 0
    weighed = job.weighed()
    indices = weighed.fastest_layouts()
    kind = LAYOUT
    if variants:
        indices = list(map(int, weighed.order()))
        kind = STRATEGY
    if as_json:
        rows = [json_row(job, weighed, index, trained_tokens) for index in indices[:top]]
        print(json.dumps(rows, indent=1))
        return 0
    ranking = f"the fastest of {_count(len(indices), *kind)}"
    if not variants:
        ranking += f", from {_count(len(weighed), *STRATEGY)}"
    title = (
        f"{model}, batch {recipe.global_batch:,} x {shape.sequence:,} tokens, on {gpus:,} GPUs ({platform}) in HB "
        f"domains of {clusters[0].domain_gpus:,}: {ranking}"
    )
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    console.print(strategies_table(job, weighed, indices[:top]))
    for note in notes(job, weighed, indices[:top], trained_tokens):
        console.print(f"note: {note}", style="dim", highlight=False, soft_wrap=True)
    return 0


def _count(number: int, singular: str, plural: str) -> str:
    """Return a number with its noun."""
    if number == 1:
        return f"1 {singular}"
    return f"{number:,} {plural}"


def load_shape(model: str, sequence: int | None, fused: bool) -> Transformer:
    """Return the model, with another length of sequences if given.

    fused: whether attention is computed as today. A file that says `fused_attention: false` keeps that; a model of the
        papers of 2022 has no such key, and would be trained with fused attention today
    """
    loaded = load_model(model)
    if isinstance(loaded, Transformer):
        fused = fused and loaded.fused_attention
    update: dict[str, object] = {"fused_attention": fused}
    if sequence:
        update["sequence"] = sequence
    return as_transformer(loaded, model).model_copy(update=update)


def parse_clusters(platform: str, gpus: int, domain_gpus: int | None, precision: str | None) -> list[Hardware]:
    """Return the cluster in each number format that the platform has, or in the one that is given.

    BadInput for an unknown format, or one that the platform doesn't have.
    """
    if precision is None:
        # an unknown platform is reported with the others' names
        bf16 = make_hardware(platform, gpus, domain_gpus)
        return [bf16, *(make_hardware(platform, gpus, domain_gpus, low) for low in PLATFORMS[platform].precisions[1:])]
    if precision not in PRECISIONS:
        raise BadInput("precision", precision, unknown_name_hint(precision, PRECISIONS))
    return [make_hardware(platform, gpus, domain_gpus, precision)]


def with_own_links(hardware: Hardware, file: str, platform: str) -> Hardware:
    """Return the hardware with the shares of links' rates that an output of nccl-tests shows."""
    constants = ring_constants(file, platform).constants
    return replace(
        hardware,
        hb_share=min(constants.hb_efficiency, constants.ring_efficiency),
        rail_share=constants.rail_efficiency,
        small_group=constants.small_group,
    )


def parse_space(fix: str, recompute: str | None, zero: int | None, overlap: str | None) -> Space:
    """Return the space that the options leave."""
    if recompute is not None and recompute not in RECOMPUTE:
        raise BadInput("recompute", recompute, unknown_name_hint(recompute, RECOMPUTE))
    recomputes = tuple(name for name in RECOMPUTE if recompute in (None, name))
    stages = ZERO if zero is None else (zero,)
    space = Space(parse_dimensions(fix, "fix"), recomputes, stages, OVERLAPS)
    if overlap is None:
        return space
    names, tensor_share = parse_overlap(overlap)
    return replace(space, overlaps=(names,), tensor_share=tensor_share)


def parse_overlap(text: str) -> tuple[Overlap, float]:
    """Return the names of the communication that runs beside computing, and the share of tensor parallelism's.

    BadInput for another name or share.
    """
    if text == "none":
        return (), 1.0
    names: list[str] = []
    tensor_share = 1.0
    for word in text.split(","):
        name, has_share, share = word.strip().partition("=")
        if name == "none":
            raise BadInput("overlap", text, "must be none alone, or names without it")
        if name not in OVERLAP_LETTERS:
            raise BadInput("overlap", name, unknown_name_hint(name, (*OVERLAP_LETTERS, "none")))
        if name in names:
            raise BadInput("overlap", text, f"has {name} twice")
        if has_share:
            tensor_share = _share(name, share)
        names.append(name)
    return tuple(names), tensor_share


def _share(name: str, text: str) -> float:
    """Return the share of a communication that can be hidden. BadInput for any but a part of tensor parallelism's."""
    if name != "tensor":
        raise BadInput("overlap", f"{name}={text}", "has a share: only tensor has one, as in tensor=0.5")
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise BadInput("overlap", f"{name}={text}", "must be above 0 and at most 1, as in tensor=0.5")
    return share


def parse_dimensions(text: str, field: str) -> dict[str, int]:
    """Return dimensions such as t=8,p=16 by their letters. BadInput for another letter or number."""
    dimensions: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        letter, _, digits = part.strip().partition("=")
        if letter not in DIMENSIONS:
            names = ", ".join(f"{key} ({name.replace('_', ' ')})" for key, name in DIMENSIONS.items())
            raise BadInput(field, part, f"must be a dimension and a number, such as t=8; dimensions are {names}")
        number = options.count_or_zero(digits)
        if not 1 <= number <= MAX_COUNT:
            raise BadInput(field, part, f"must have a whole number from 1 to {MAX_COUNT:,} after {letter}=")
        if letter in dimensions:
            raise BadInput(field, part, f"is the second {letter}, after {letter}={dimensions[letter]}")
        dimensions[letter] = number
    return dimensions
