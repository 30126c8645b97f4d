"""What an experiment is: fabrics, what runs on them, what breaks, how often. Read from YAML and checked as a whole."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from experiments.catalogue import read
from experiments.faults import FaultSpec, wrong_target
from experiments.overrides import Sections, apply
from experiments.routing import RoutingSpec
from topologies.errors import BadInput
from topologies.plan import Plan, make_plan
from topologies.spec import FabricSpec, Strict, find_problems
from topologies.units import format_rate
from workloads.background.grid import GridSpec
from workloads.background.spec import BackgroundSpec, check_background, check_there
from workloads.build import build
from workloads.spec import (
    ALGORITHMS,
    KINDS,
    CollectiveSpec,
    GptSpec,
    MoeSpec,
    TraceSpec,
    TransfersSpec,
    WorkloadSpec,
    parse_workload,
)
from workloads.traces.files import trace_name

NOMINAL_RAIL_BPS: Final = 100_000_000
"""What an `auto` rail is taken to be where no machine is measured: shapes, ratios and durations don't depend on it."""

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
LEAST_RAIL_BPS: Final = 1_000_000
MOST_GPUS: Final = 1024
"""All-to-all has a transfer a pair; beyond a million of them, the schedule itself is too much."""
_SWITCHED: Final = {True: "on", False: "off"}


def _switches(value: object) -> object:
    """YAML 1.1 reads a bare `on` as true; and one of them needs no brackets."""
    items = value if isinstance(value, list) else [value]
    return [_SWITCHED[item] if isinstance(item, bool) else item for item in items]


class ExperimentSpec(Strict):
    """Every workload runs `repeats` times on every fabric, then every fault `fault_repeats` times, for each `reroute`.

    `reroute` off leaves routes as they are, as the papers have it; on lets the controller find detours. With `routing`,
    workloads run for each of its policies, beside the `background` (or in each scene of `grid`), and repeat n has
    seed + n.
    """

    name: str
    title: str = ""
    description: str = ""
    fabrics: Annotated[tuple[FabricSpec, ...], Field(min_length=1, strict=False)]
    workloads: Annotated[tuple[WorkloadSpec, ...], Field(strict=False)] = ()
    routing: RoutingSpec | None = None
    background: Annotated[tuple[BackgroundSpec, ...], Field(strict=False)] = ()
    grid: GridSpec | None = None
    faults: Annotated[tuple[FaultSpec, ...], Field(strict=False)] = ()
    reroute: Annotated[
        tuple[Literal["on", "off"], ...], BeforeValidator(_switches), Field(min_length=1, max_length=2, strict=False)
    ] = ("on", "off")
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    fault_repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str) -> str:
        """It becomes part of a folder's name."""
        if not _NAME.fullmatch(name):
            raise ValueError("must be lower-case letters, digits and single hyphens between them")
        return name

    @field_validator("workloads", mode="before")
    @classmethod
    def _by_kind(cls, data: object) -> object:
        """Each by its own kind, so that a message is about the kind that was meant, and gives the field's path."""
        if not isinstance(data, list):
            return data
        return [parse_workload(item, f"workloads.{i}") for i, item in enumerate(data)]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A name for each fabric: its kind, and what sets it apart from others of that kind."""
        return distinct_labels([fabric.kind for fabric in self.fabrics], [_traits(f) for f in self.fabrics])

    @cached_property
    def workload_labels(self) -> tuple[str, ...]:
        """A name for each workload, the same on every fabric."""
        return distinct_labels([_workload_name(w) for w in self.workloads], [_sizes(w) for w in self.workloads])

    @property
    def fault_runs(self) -> int:
        """How many faults are injected in all."""
        return len(self.fabrics) * len(self.faults) * len(self.reroute) * self.fault_repeats


def _traits(fabric: FabricSpec) -> dict[str, str]:
    """What may set a fabric apart, in the order in which a label takes it."""
    rates = fabric.model_dump(mode="json", include={"rail_rate", "hb_rate"})
    return {
        "policy": fabric.chosen_policy,
        "platform": Path(fabric.platform).stem,
        "size": f"{fabric.domains}x{fabric.rails}",
        "rail_rate": f"rail {rates['rail_rate']}",
        "hb_rate": f"HB {rates['hb_rate']}",
        "mtu": f"MTU {fabric.mtu}",
        "spines": f"{fabric.spine_count} spines",
        "oversubscription": f"{fabric.oversubscription or 1:g}:1",
    }


def distinct_labels(names: Sequence[str], traits: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Each name with those of its traits that differ among its namesakes, and a number where that doesn't suffice."""
    labels: list[str] = []
    for name, mine in zip(names, traits, strict=True):
        namesakes = [t for n, t in zip(names, traits, strict=True) if n == name]
        telling = [value for key, value in mine.items() if len({t[key] for t in namesakes}) > 1]
        label = " ".join([name, *(t for t in telling if t)])
        numbered = (label if n == 1 else f"{label} {n}" for n in count(1))
        labels.append(next(choice for choice in numbered if choice not in labels))
    return tuple(labels)


def _workload_name(workload: WorkloadSpec) -> str:
    if isinstance(workload, TraceSpec):
        return trace_name(workload.path)
    if isinstance(workload, TransfersSpec):
        return workload.kind
    if not isinstance(workload, CollectiveSpec):
        return Path(workload.model).stem if workload.model.endswith(".yaml") else workload.model
    if workload.algorithm == "auto":
        return workload.collective
    return ALGORITHMS[workload.collective][workload.algorithm]


def _sizes(workload: WorkloadSpec) -> dict[str, str]:
    """What may set a workload apart from others of its name."""
    if isinstance(workload, TransfersSpec):
        return {"to": workload.to, "stripes": f"stripes {workload.stripes}", "rounds": f"rounds {workload.rounds}"}
    if isinstance(workload, MoeSpec):
        return {"skew": f"skew {workload.skew:g}"}
    batch = workload.global_batch if isinstance(workload, GptSpec) else None
    return {"global_batch": f"batch {batch}" if batch else ""}


SECTIONS: Final[Sections] = {key: frozenset[str]() for key in ExperimentSpec.model_fields} | {
    "fabrics": frozenset(FabricSpec.model_fields),
    # transfers have domains too, but who writes `domains=8` means the fabric's
    "workloads": frozenset(key for kind in KINDS.values() for key in kind.model_fields) - {"domains"},
    "faults": frozenset(FaultSpec.model_fields),
}


def parse(data: object) -> ExperimentSpec:
    """An experiment from plain data, as YAML gives it. BadInput names the first field that is wrong."""
    if not isinstance(data, Mapping):
        raise BadInput("experiment", data, "must be keys and values: name, fabrics, workloads or faults, ...")
    try:
        spec = ExperimentSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(*find_problems(error)[0]) from error
    for check in _CHECKS:
        check(spec)
    return spec


def load(name_or_file: str, overrides: Iterable[str] = (), seed: int | None = None) -> ExperimentSpec:
    """A named experiment or a YAML file, with `key=value` overrides on top. BadInput for whatever can't be used."""
    data = apply(read(name_or_file), overrides, SECTIONS)
    if seed is not None:
        data["seed"] = seed
    return parse(data)


def resolved(spec: ExperimentSpec) -> dict[str, Any]:
    """Plain data with every default filled in, which `parse` makes the same experiment of again."""
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    return data


def nominal_plan(fabric: FabricSpec) -> Plan:
    """The fabric with `auto` rails at their nominal rate."""
    return make_plan(fabric, NOMINAL_RAIL_BPS)


def _has_something_to_do(spec: ExperimentSpec) -> None:
    if not spec.workloads and not spec.faults:
        raise BadInput("workloads", [], "must have 1 or more, unless there are faults")


def _switched_once(spec: ExperimentSpec) -> None:
    if len(set(spec.reroute)) < len(spec.reroute):
        raise BadInput("reroute", list(spec.reroute), "must name on and off once each")


def _rates_fit(spec: ExperimentSpec) -> None:
    for i, fabric in enumerate(spec.fabrics):
        if fabric.rail_rate != "auto" and fabric.rail_rate < LEAST_RAIL_BPS:
            allowed = f"must be {format_rate(LEAST_RAIL_BPS)} or more: packets are whole, and too few to show anything"
            raise BadInput(f"fabrics.{i}.rail_rate", format_rate(fabric.rail_rate), allowed)
        if fabric.rail_rate == "auto" and fabric.hb_rate != "auto":
            rate = fabric.model_dump(mode="json")["hb_rate"]
            allowed = "can't be given without rail_rate: an auto rail may come out above it"
            raise BadInput(f"fabrics.{i}.hb_rate", rate, allowed)


def _faults_have_targets(spec: ExperimentSpec) -> None:
    for i, fault in enumerate(spec.faults):
        for fabric in spec.fabrics:
            problem = wrong_target(fault, nominal_plan(fabric))
            if problem:
                raise BadInput(f"faults.{i}.target", fault.target, problem)


def _workloads_fit(spec: ExperimentSpec) -> None:
    """Each workload makes a schedule on each fabric: models are known, parallelism divides the GPUs."""
    for n, fabric in enumerate(spec.fabrics if spec.workloads else ()):
        if fabric.gpus > MOST_GPUS:
            allowed = f"makes {fabric.gpus:,} GPUs with {fabric.rails} rails: workloads are for {MOST_GPUS:,} or fewer"
            raise BadInput(f"fabrics.{n}.domains", fabric.domains, allowed)
        plan = nominal_plan(fabric)
        for i, workload in enumerate(spec.workloads):
            build(workload, fabric, plan.rail_bps, plan.hb_bps, f"workloads.{i}", spec.seed)


def _background_fits(spec: ExperimentSpec) -> None:
    """A grid's loads can't add up to too much: see Scene.background."""
    scenes = len(spec.grid.scenes) if spec.grid else 0
    for field, given in (("background", len(spec.background)), ("grid", scenes)):
        if given and spec.routing is None:
            raise BadInput(field, given, "is for experiments with routing: add {policies: [dr]}")
    if scenes and spec.background:
        raise BadInput("background", len(spec.background), "can't be given together with grid, which makes its own")
    for fabric in spec.fabrics:
        check_background(spec.background, fabric)
        if spec.grid:
            check_there(spec.grid.rails, spec.grid.domains, spec.grid.spine, fabric, "grid")


def _steered_unbroken(spec: ExperimentSpec) -> None:
    if spec.routing is not None and spec.faults:
        raise BadInput("faults", len(spec.faults), "can't be given together with routing: make two experiments of it")
    if spec.routing is not None and not spec.workloads:
        raise BadInput("workloads", [], "must have 1 or more: routing is measured by what they take")


_CHECKS: Final[tuple[Callable[[ExperimentSpec], None], ...]] = (
    _has_something_to_do,
    _switched_once,
    _rates_fit,
    _faults_have_targets,
    _workloads_fit,
    _background_fits,
    _steered_unbroken,
)
