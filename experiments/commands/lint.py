"""`lint`: check whether a job needs traffic between rails, from a placement file, a published model or an experiment.

docs/workloads.md has a placement file. Without order and ranks, ranks go where they need no traffic between rails if
that can be (`railyard.workloads.placement.layout`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import Field, ValidationInfo, field_validator
from rich.console import Console

from railyard.core.config import ConfigModel, is_path, parse_model, read_yaml
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.input_paths import NameOrPath, from_folder
from railyard.experiments import options
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.spec import jobs_of
from railyard.experiments.measures.workloads.spec import labelled_workloads, workloads_of
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.parsing import experiment_model
from railyard.results.format import percent, rows_with_room, size
from railyard.topologies.platforms import PLATFORMS, PlatformName
from railyard.workloads.matrix.pair_traffic import gpt_traffic, moe_traffic
from railyard.workloads.matrix.waiting import wait_lines
from railyard.workloads.models.catalogue import (
    Dense,
    GptModel,
    LayersModel,
    MoeModel,
    check_dense,
    check_heads,
    check_layers,
    load_model,
    model_names,
)
from railyard.workloads.models.mixture import check_experts, mixture_of
from railyard.workloads.models.transformer import Transformer
from railyard.workloads.placement.cross_rail import Finding, lint, lint_schedule
from railyard.workloads.placement.layout import (
    DIMENSIONS,
    Count,
    Dimension,
    Layout,
    Parallelism,
    data_parallel,
    hierarchical,
    layout_from_order,
    layout_from_ranks,
    splits,
)
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import build

PURPOSE = "Compute and check, without packets"
MAX_GPUS: Final = 65_536
"""A second or two to look at, groups of ranks that all cross rails included; a million GPUs take half a minute."""
SHOWN: Final = 5  # findings of a kind that are shown; the rest are counted
MEMBERS: Final = 8  # ranks of a finding that are named
NO_FINDINGS: Final = "  nothing changes rails: no spines are needed"


class PlacementSpec(ConfigModel):
    """A placement file. Defaults: the published parallelism; the platform's, else the model's own, GPUs to a domain."""

    model: NameOrPath
    platform: PlatformName | None = None
    parallelism: Parallelism | None = None
    domains: Count | None = None
    rails: Count | None = None
    order: Annotated[tuple[Dimension, ...], Field(strict=False)] | None = None
    ranks: Annotated[tuple[int, ...], Field(strict=False)] | None = None

    @field_validator("ranks")
    @classmethod
    def _placed_once(cls, ranks: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if ranks is not None and info.data.get("order") is not None:
            raise ValueError("can't be given together with order")
        return ranks


@options.shows_progress
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A placement file, an experiment, or a published model.",
            autocompletion=options.completion(lambda: [*loading.names(), *options.catalogue_names()]),
        ),
    ],
) -> int:
    """Check whether a job needs cross-rail traffic; list the process groups that do, and exit 1."""
    console = options.console()
    if name in model_names():
        return _print_placement(PlacementSpec(model=name), console)
    if not is_path(name):
        if name not in loading.names() and "/" not in name:
            loading.check_no_figure(name)
            problem = unknown_name_hint(name, [*loading.names(), *model_names()])
            raise BadInput("NAME", name, f"{problem.replace('known', 'an experiment or a model', 1)}; or a file")
        return print_workloads(loading.load_any(name), console)
    if name.endswith(".json"):
        return _print_placement(PlacementSpec(model=name), console)
    data = read_yaml(Path(name), "FILE", name)
    keys = frozenset(data) if isinstance(data, dict) else frozenset()
    if keys & ({*experiment_model().ordered_keys()} - {"name"}):
        return print_workloads(loading.load_any(name), console)
    if keys & PlacementSpec.model_fields.keys():
        data = from_folder(data, Path(name).parent, lambda _: [PlacementSpec])
        return _print_placement(parse_model(PlacementSpec, data, "placement"), console)
    if "kind" in keys:
        return _print_placement(PlacementSpec(model=name), console)
    kinds = "a placement (model, order, ...), a model (kind, layers, ...) or an experiment (name, fabrics, ...)"
    raise BadInput("FILE", name, f"must have the keys and values of {kinds}")


def _print_placement(spec: PlacementSpec, console: Console) -> int:
    model = load_model(spec.model, "placement.model")
    if isinstance(model, LayersModel):
        allowed = "is only data-parallel, layer by layer: all its GPUs are one group"
        raise BadInput("placement.model", spec.model, allowed)
    layout, best = layouts(spec, model)
    p = layout.parallelism
    if isinstance(model, MoeModel) or (isinstance(model, Transformer) and model.experts):
        traffic = moe_traffic(mixture_of(model), layout)
    else:
        traffic = gpt_traffic(model, layout)
    if layout is best:
        kind = "in HB domains x across them"
        parts = [f"{name} {s.hb} x {s.network}" for name, s in splits(p, layout.rails).items()]
    else:
        kind = "as given"
        parts = [f"{name} {getattr(p, name)}" for name in DIMENSIONS]
    where = f"{p.gpus:,} GPUs, {layout.domains} domains x {layout.rails} rails"
    findings = lint(layout)
    _print_findings(f"{spec.model} on {where}; ranks {kind}: {', '.join(parts)}", findings, console)
    volumes = []
    for name, volume in traffic.volumes.items():
        if volume:
            crossing = traffic.at(name, "across rails").total
            share = "none"
            if crossing:
                share = percent(crossing / volume)
            volumes.append(f"{name} {size(volume)}, {share} between rails")
    console.print(f"  an iteration sends {'; '.join(volumes)}", highlight=False, soft_wrap=True)
    if not findings:
        console.print(NO_FINDINGS, highlight=False)
    elif layout is not best and len(still := lint(best)) < len(findings):
        consequence = "nothing changes"
        if still:
            consequence = f"only {len(still):,} of these groups change"
        console.print(f"  without order and ranks, {consequence} rails: HB domains are filled dimension by dimension")
    return int(bool(findings))


def layouts(spec: PlacementSpec, model: GptModel | MoeModel | Transformer) -> tuple[Layout, Layout]:
    """Return the file's layout and the hierarchical one: the same object if the file has no order and no ranks."""
    field = "placement.parallelism"
    rails = _domain_gpus(spec, model)
    if isinstance(model, GptModel) or (isinstance(model, Transformer) and not model.experts):
        parallelism = _dense_parallelism(spec, model)
        check_heads(model, parallelism, field)
        check_layers(model, parallelism, field)
        check_dense(parallelism, field)
    elif spec.parallelism is not None:
        parallelism = spec.parallelism
        check_experts(mixture_of(model), parallelism, field)
    else:
        parallelism = _all_data_parallel(spec, model, rails)
    _check_gpus(spec, parallelism.gpus)
    domains = spec.domains or max(1, parallelism.gpus // rails)
    best = hierarchical(parallelism, domains, rails, field)
    if spec.order is not None:
        return layout_from_order(parallelism, domains, rails, spec.order), best
    if spec.ranks is not None:
        return layout_from_ranks(parallelism, domains, rails, spec.ranks), best
    return best, best


def _domain_gpus(spec: PlacementSpec, model: GptModel | MoeModel | Transformer) -> int:
    """Return the GPUs of an HB domain. BadInput if neither the file nor the model has them."""
    if spec.rails:
        return spec.rails
    if spec.platform:
        return PLATFORMS[spec.platform].domain_gpus
    if isinstance(model, Transformer):
        raise BadInput("placement.model", spec.model, "has no cluster: give rails or platform")
    return model.domain_gpus


def _dense_parallelism(spec: PlacementSpec, model: Dense) -> Parallelism:
    """Return the parallelism of the file or of the published job. BadInput if there is neither."""
    if spec.parallelism is not None:
        return spec.parallelism
    if isinstance(model, Transformer):
        raise BadInput("placement.model", spec.model, "has no published job: give parallelism")
    return model.training


def _all_data_parallel(spec: PlacementSpec, model: MoeModel | Transformer, rails: int) -> Parallelism:
    """Return the parallelism of a mixture of experts on all GPUs, as in its published job, or a sequence a GPU."""
    if isinstance(model, Transformer):
        if not spec.domains:
            raise BadInput("placement.model", spec.model, "has no published job: give parallelism or domains")
        gpus = spec.domains * rails
        batch = gpus
    else:
        gpus = spec.domains * rails if spec.domains else model.gpus
        batch = gpus * model.global_batch // model.gpus
    _check_gpus(spec, gpus)
    return data_parallel(gpus, batch, rails, model.experts).parallelism


def _check_gpus(spec: PlacementSpec, gpus: int) -> None:
    """Raise BadInput for more GPUs than can be looked at, before a layout of so many ranks fills the memory."""
    if gpus > MAX_GPUS:
        key = "model"
        value: object = spec.model
        if spec.parallelism is not None:
            largest = max(DIMENSIONS, key=lambda name: int(getattr(spec.parallelism, name)))
            key = f"parallelism.{largest}"
            value = int(getattr(spec.parallelism, largest))
        elif spec.domains:
            key = "domains"
            value = spec.domains
        allowed = f"makes {gpus:,} GPUs: {MAX_GPUS:,} or fewer can be looked at"
        raise BadInput(f"placement.{key}", value, allowed)


def print_workloads(spec: ExperimentSpec, console: Console) -> int:
    """Print the findings of each workload and job on each fabric; return 1 if there are any."""
    if not spec.gpu_fabrics:
        raise BadInput("NAME", spec.name, "has no HB domains: its traffic can't change rails")
    if not workloads_of(spec) and not jobs_of(spec):
        raise BadInput("NAME", spec.name, "has no workloads and no jobs: nothing of it can be checked")
    crossing = False
    for number, fabric in enumerate(spec.gpu_fabrics):
        size = f"{fabric.domains} x {fabric.rails}"
        if fabric.rail_of_rank:
            size = fabric.size_text
        for name, schedule, gpus in _schedules(spec, number):
            findings = lint_schedule(schedule, fabric.rail_of_rank)
            if gpus:
                findings = _with_ranks(findings, gpus)
            _print_findings(f"{name} on {spec.labels[number]}, {size}", findings, console)
            if not findings:
                console.print(NO_FINDINGS, highlight=False)
            for line in wait_lines(schedule, fabric):
                console.print(f"  {line}", highlight=False, soft_wrap=True)
            crossing |= bool(findings)
    return int(crossing)


def _schedules(spec: ExperimentSpec, number: int) -> Iterator[tuple[str, Schedule, tuple[int, ...]]]:
    """Yield the name and the schedule of each workload and each job of a fabric, by the fabric's number.

    With it of a job the GPU of each of its ranks, of a workload none: its ranks are the fabric's GPUs in their order.
    """
    fabric = spec.gpu_fabrics[number]
    plan = nominal_plan(fabric)
    for name, workload in labelled_workloads(spec):
        yield name, build(workload, fabric, plan.rail_bps, plan.hb_bps, seed=spec.seed).schedule, ()
    if any(job.is_on(number) for job in jobs_of(spec)):
        for job in planned_jobs(spec, number, plan).combined.jobs:
            yield f"job {job.name}", job.schedule, job.gpus


def _with_ranks(findings: Iterable[Finding], gpus: Sequence[int]) -> tuple[Finding, ...]:
    """Return findings with the ranks of a job in place of GPU numbers. `gpus`: the GPU of each of its ranks."""
    ranked: list[Finding] = []
    for finding in findings:
        ranks = tuple(map(gpus.index, finding.ranks))
        ranked.append(replace(finding, ranks=ranks))
    return tuple(ranked)


def _print_findings(title: str, findings: Iterable[Finding], console: Console) -> None:
    """Print a title and the first findings of each kind, with the members of each group; count the rest."""
    console.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
    for kind, group in groupby(findings, key=lambda finding: finding.kind):
        group_findings = list(group)
        shown = rows_with_room(group_findings, SHOWN)
        for finding in shown:
            pairs = zip(finding.ranks[:MEMBERS], finding.gpus[:MEMBERS], strict=True)
            members = ", ".join(f"{rank} on {gpu}" for rank, gpu in pairs)
            if len(finding.ranks) > MEMBERS:
                members += f" and {len(finding.ranks) - MEMBERS:,} more"
            line = f"  {finding.kind}, {finding.group} (ranks {members}): {finding.reason}"
            console.print(line, highlight=False, soft_wrap=True)
        if len(group_findings) > len(shown):
            console.print(f"  {kind}: … {len(group_findings) - len(shown):,} more like these", highlight=False)
