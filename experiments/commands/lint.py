"""`lint`: does a job need traffic between rails? For a placement file, a model as published, or an experiment.

    model: gpt-1008b
    platform: gh200                              # or ./mine.yaml; gives the rails, if they are left out
    parallelism: {tensor: 8, pipeline: 8, data: 64, micro_batch: 1, global_batch: 4096}
    domains: 16
    rails: 256
    order: [tensor, data, pipeline]              # innermost first; or ranks: [0, 1, 2, ...], the GPU of each rank

Without order and ranks, ranks go where they need no traffic between rails if that can be
(`railyard.workloads.placement.layout`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from rich.console import Console

from railyard.core.config import ConfigModel, find_problems, is_path, read_yaml
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.commands import options
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec, load, nominal_plan
from railyard.results.views.format import percent, size
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.matrix.pair_traffic import Traffic, gpt_traffic, moe_traffic
from railyard.workloads.models.catalogue import (
    GptModel,
    LayersModel,
    MoeModel,
    check_heads,
    check_layers,
    load_model,
    model_names,
)
from railyard.workloads.placement.cross_rail import Finding, lint, lint_schedule
from railyard.workloads.placement.layout import (
    DIMENSIONS,
    Dimension,
    Layout,
    data_parallel,
    hierarchical,
    layout_from_order,
    layout_from_ranks,
    splits,
)
from railyard.workloads.placement.parallelism import Count, Parallelism
from railyard.workloads.spec import build

MAX_GPUS: Final = 65_536
"""A second or two to look at, groups of ranks that all cross rails included; a million GPUs take half a minute."""
SHOWN: Final = 5
"""Findings of a kind that are shown; the rest are counted."""
MEMBERS: Final = 8
"""Ranks of a finding that are named."""


class PlacementSpec(ConfigModel):
    """A placement file. Left out: the published parallelism; the platform's, else the model's own, GPUs to a domain."""

    model: str
    platform: str | None = None
    parallelism: Parallelism | None = None
    domains: Count | None = None
    rails: Count | None = None
    order: Annotated[tuple[Dimension, ...], Field(strict=False)] | None = None
    ranks: Annotated[tuple[int, ...], Field(strict=False)] | None = None

    @field_validator("platform")
    @classmethod
    def _platform_is_known(cls, platform: str | None) -> str | None:
        if platform is not None and platform not in PLATFORMS:
            raise ValueError(f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
        return platform

    @field_validator("ranks")
    @classmethod
    def _placed_once(cls, ranks: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if ranks is not None and info.data.get("order") is not None:
            raise ValueError("can't be given together with order")
        return ranks


@dataclass(frozen=True)
class Checked:
    """A job, what was found of it, and, for a placement, its bytes and its hierarchical alternative's findings."""

    title: str
    findings: tuple[Finding, ...]
    traffic: Traffic | None = None
    best: tuple[Finding, ...] | None = None


def command(
    name: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="A placement file, an experiment, or a published model.")
    ],
) -> int:
    """Check whether a job needs cross-rail traffic; list the process groups that do, and exit 1."""
    return show(name, options.console())


def show(name: str, console: Console) -> int:
    """Print what crosses rails. 1 if anything does."""
    crossing = False
    for checked in check(name):
        crossing = crossing or bool(checked.findings)
        _print(checked, console)
    return int(crossing)


def check(name: str) -> list[Checked]:
    """Of a placement file, a model's name, or an experiment: its name or file. BadInput if it is none of these."""
    if name in model_names():
        return [check_placement(PlacementSpec(model=name))]
    if is_path(name):
        placement = _placement_of(read_yaml(Path(name), "FILE", name), name)
        if placement:
            return [check_placement(placement)]
    elif name not in loading.names() and "/" not in name:
        loading.check_no_figure(name)
        problem = unknown_name_hint(name, [*loading.names(), *model_names()])
        raise BadInput("NAME", name, f"{problem.replace('known', 'an experiment or a model', 1)}; or a file")
    return list(_of_experiment(load(name)))


def _placement_of(data: object, name: str) -> PlacementSpec | None:
    """By a file's keys: a placement; a model, as it was published; or nothing, if it is an experiment."""
    keys = frozenset(data) if isinstance(data, dict) else frozenset()
    if keys & (ExperimentSpec.model_fields.keys() - {"name"}):
        return None
    if keys & PlacementSpec.model_fields.keys():
        return parse_placement(data)
    if "kind" in keys:
        return PlacementSpec(model=name)
    kinds = "a placement (model, order, ...), a model (kind, layers, ...) or an experiment (name, fabrics, ...)"
    raise BadInput("FILE", name, f"must have the keys and values of {kinds}")


def parse_placement(data: object) -> PlacementSpec:
    """From plain data, as YAML gives it."""
    try:
        return PlacementSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error, "placement")[0]) from error


def check_placement(spec: PlacementSpec) -> Checked:
    """Lay the ranks out as the file says, and look."""
    model = load_model(spec.model, "placement.model")
    if isinstance(model, LayersModel):
        raise BadInput(
            "placement.model", spec.model, "is only data-parallel, layer by layer: all its GPUs are one group"
        )
    layout, best = _layouts(spec, model)
    p = layout.parallelism
    experts = min(model.experts, p.gpus) if isinstance(model, MoeModel) else 0
    traffic = moe_traffic(model, layout) if isinstance(model, MoeModel) else gpt_traffic(model, layout)
    where = f"{p.gpus:,} GPUs, {layout.domains} domains x {layout.rails} rails"
    if layout is best:
        parts = [f"{name} {s.hb} x {s.network}" for name, s in splits(p, layout.rails).items()]
    else:
        parts = [f"{name} {getattr(p, name)}" for name in DIMENSIONS]
    kind = "in HB domains x across them" if layout is best else "as given"
    title = f"{spec.model} on {where}; ranks {kind}: {', '.join(parts)}"
    found = lint(layout, experts)
    return Checked(title, found, traffic, found if layout is best else lint(best, experts))


def _layouts(spec: PlacementSpec, model: GptModel | MoeModel) -> tuple[Layout, Layout]:
    """As the file has it, and hierarchical: the same object where the file says nothing."""
    rails = spec.rails or (PLATFORMS[spec.platform].domain_gpus if spec.platform else model.domain_gpus)
    parallelism = _parallelism(spec, model, rails)
    _check_gpus(spec, parallelism.gpus)
    domains = spec.domains or max(1, parallelism.gpus // rails)
    best = hierarchical(parallelism, domains, rails, "placement.parallelism")
    if spec.order is not None:
        return layout_from_order(parallelism, domains, rails, spec.order), best
    if spec.ranks is not None:
        return layout_from_ranks(parallelism, domains, rails, spec.ranks), best
    return best, best


def _check_gpus(spec: PlacementSpec, gpus: int) -> None:
    """BadInput, before a rank is laid out, for more than can be looked at in seconds."""
    if gpus <= MAX_GPUS:
        return
    if spec.parallelism is None:
        field, value = ("domains", spec.domains) if spec.domains else ("model", spec.model)
    else:
        sizes = {name: int(getattr(spec.parallelism, name)) for name in DIMENSIONS}
        largest = max(sizes, key=lambda name: sizes[name])
        field, value = f"parallelism.{largest}", sizes[largest]
    raise BadInput(f"placement.{field}", value, f"makes {gpus:,} GPUs: {MAX_GPUS:,} or fewer can be looked at")


def _parallelism(spec: PlacementSpec, model: GptModel | MoeModel, rails: int) -> Parallelism:
    if isinstance(model, GptModel):
        chosen = spec.parallelism or model.training
        check_heads(model, chosen.tensor, "placement.parallelism")
        check_layers(model, chosen, "placement.parallelism")
        return chosen
    if spec.parallelism is not None:
        given = spec.parallelism.model_dump(exclude_defaults=True)
        raise BadInput(
            "placement.parallelism", given, "is not for a mixture of experts: all its GPUs are data-parallel"
        )
    gpus = (spec.domains * rails) if spec.domains else model.gpus
    return data_parallel(gpus, gpus * model.global_batch // model.gpus, rails).parallelism


def _of_experiment(spec: ExperimentSpec) -> Iterator[Checked]:
    if not spec.workloads:
        raise BadInput("NAME", spec.name, "has no workloads, only faults: nothing of it can be checked")
    for label, fabric in zip(spec.labels, spec.fabrics, strict=True):
        plan = nominal_plan(fabric)
        for name, workload in zip(spec.workload_labels, spec.workloads, strict=True):
            schedule, _ = build(workload, fabric, plan.rail_bps, plan.hb_bps, seed=spec.seed)
            yield Checked(f"{name} on {label}, {fabric.domains} x {fabric.rails}", lint_schedule(schedule))


def _print(checked: Checked, console: Console) -> None:
    console.print(f"[bold]{checked.title}[/]", highlight=False, soft_wrap=True)
    for kind, group in groupby(checked.findings, key=lambda finding: finding.kind):
        found = list(group)
        for finding in found[:SHOWN]:
            console.print(_line(finding), highlight=False, soft_wrap=True)
        if len(found) > SHOWN:
            console.print(f"  {kind}: … {len(found) - SHOWN:,} more like these", highlight=False)
    if checked.traffic:
        console.print(f"  {_bytes(checked.traffic)}", highlight=False, soft_wrap=True)
    if not checked.findings:
        console.print("  nothing changes rails: no spines are needed", highlight=False)
    elif checked.best is not None and len(checked.best) < len(checked.findings):
        left = f"only {len(checked.best):,} of these groups change" if checked.best else "nothing changes"
        console.print(f"  without order and ranks, {left} rails: HB domains are filled dimension by dimension")


def _line(finding: Finding) -> str:
    pairs = zip(finding.ranks[:MEMBERS], finding.gpus[:MEMBERS], strict=True)
    members = ", ".join(f"{rank} on {gpu}" for rank, gpu in pairs)
    more = f" and {len(finding.ranks) - MEMBERS:,} more" if len(finding.ranks) > MEMBERS else ""
    return f"  {finding.kind}, {finding.group} (ranks {members}{more}): {finding.reason}"


def _bytes(traffic: Traffic) -> str:
    """`TP: 3.1 PB, none between rails; DP: ...`, of an iteration."""
    parts: Sequence[str] = [
        f"{kind} {size(volume)}, {_share(traffic.across_rails(kind).total, volume)} between rails"
        for kind, volume in traffic.volumes.items()
        if volume
    ]
    return "an iteration sends " + "; ".join(parts)


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if part else "none"
