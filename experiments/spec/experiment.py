"""Specification of an experiment: its keys, its labels, and the checks across sections."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import count
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator

from railyard.core import plugins
from railyard.core.config import ConfigModel, PlainName, parse_by_kind, parse_model
from railyard.core.errors import BadInput
from railyard.core.units import format_rate
from railyard.experiments.run.replacement_job import check_replacements
from railyard.experiments.spec.faults import FaultSpec, RailFaultSpec, check_faults, parameter_names
from railyard.experiments.spec.old_names import rename_keys
from railyard.experiments.spec.replacements import Replacements, ReplacementSpec
from railyard.experiments.spec.routing import Heartbeats, HeartbeatsSpec, RoutingSpec
from railyard.experiments.spec.scripts import ScriptSpec, check_script
from railyard.topologies.fabric_kinds import FABRIC_KINDS, BaseFabricSpec
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.plan import nominal_plan as nominal_multirail_plan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.allreduce.engine_kind import check_policy
from railyard.workloads.allreduce.workload import RailWorkload
from railyard.workloads.background.spec import BackgroundSpec, GridSpec, check_background, check_patterns
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import WORKLOADS, WorkloadSpec, build, parse_workload


def distinct_labels(names: Sequence[str], traits: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return each name with the traits that differ among its namesakes, and a number where they don't suffice."""
    labels: list[str] = []
    for name, mine in zip(names, traits, strict=True):
        namesakes = [t for n, t in zip(names, traits, strict=True) if n == name]
        distinguishing = [value for key, value in mine.items() if len({t.get(key, "") for t in namesakes}) > 1]
        label = " ".join([name, *(t for t in distinguishing if t)])
        numbered = (label if n == 1 else f"{label} {n}" for n in count(1))
        labels.append(next(choice for choice in numbered if choice not in labels))
    return tuple(labels)


NOMINAL_RAIL_BPS: Final = 100_000_000
"""What an `auto` rail is taken to be where no machine is measured: shapes, ratios and durations don't depend on it."""

GPU_KEYS: Final = ("routing", "background", "grid", "scripts", "replacements", "heartbeats", "reroute")
MIN_RAIL_BPS: Final = 1_000_000
MAX_GPUS: Final = 1024
"""All-to-all has a transfer a pair; beyond a million of them, the schedule itself is too much."""
_SWITCHED: Final = {True: "on", False: "off"}


def _switches(value: object) -> object:
    """Accept a single value, and `on` and `off`, which YAML 1.1 reads as booleans."""
    items = value if isinstance(value, list) else [value]
    return [_SWITCHED[item] if isinstance(item, bool) else item for item in items]


class ExperimentSpec(ConfigModel):
    """Every workload runs `repeats` times on every fabric, then every fault `fault_repeats` times and every script
    `script_repeats` times, for each `reroute`.

    `reroute` off leaves routes as they are, as the papers have it; on lets the controller find detours, and GPUs send
    `heartbeats` while things break. The random faults of repeat n are drawn from seed + n. With `routing`,
    workloads run for each of its policies, beside the `background` (or in each scene of `grid`), and repeat n has
    seed + n. On multi-rail fabrics, faults interrupt allreduces, and there are no HB domains to route through: the keys
    in `GPU_KEYS` are for fabrics of GPUs.
    """

    name: PlainName
    title: str = ""
    description: str = ""
    fabrics: Annotated[tuple[SerializeAsAny[BaseFabricSpec], ...], Field(min_length=1, strict=False)]
    workloads: Annotated[tuple[WorkloadSpec, ...], Field(strict=False)] = ()
    routing: RoutingSpec | None = None
    background: Annotated[tuple[BackgroundSpec, ...], Field(strict=False)] = ()
    grid: GridSpec | None = None
    faults: Annotated[tuple[SerializeAsAny[FaultSpec], ...], Field(strict=False)] = ()
    scripts: Annotated[tuple[ScriptSpec, ...], Field(strict=False)] = ()
    replacements: Replacements = ()
    heartbeats: Heartbeats = HeartbeatsSpec()
    reroute: Annotated[
        tuple[Literal["on", "off"], ...], BeforeValidator(_switches), Field(min_length=1, max_length=2, strict=False)
    ] = ("on", "off")
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    fault_repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    script_repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    replacement_repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    plugins: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_validator("fabrics", mode="before")
    @classmethod
    def _fabrics_by_kind(cls, data: object) -> object:
        """Parse each fabric by its own kind. Fabrics of GPUs and multi-rail fabrics can't be compared."""
        if not isinstance(data, list):
            return data
        kinds = {name: kind.Spec or FabricSpec for name, kind in FABRIC_KINDS.items()}
        found = [parse_by_kind(item, kinds, f"fabrics.{i}") for i, item in enumerate(data)]
        for i, fabric in enumerate(found):
            if type(fabric) is not type(found[0]):
                allowed = f"can't be in one experiment with {found[0].kind}: make two experiments of it"
                raise BadInput(f"fabrics.{i}.kind", fabric.kind, allowed)
        return found

    @field_validator("faults", mode="before")
    @classmethod
    def _faults_by_fabric(cls, data: object, info: ValidationInfo) -> object:
        """Parse faults of multi-rail fabrics with the keys of the allreduces that they interrupt."""
        fabrics = info.data.get("fabrics") or (None,)
        if not isinstance(data, list) or not isinstance(fabrics[0], MultirailSpec):
            return data
        return [parse_model(RailFaultSpec, item, f"faults.{i}") for i, item in enumerate(data)]

    @field_validator("workloads", mode="before")
    @classmethod
    def _by_kind(cls, data: object) -> object:
        """Parse each workload by its own kind, so that messages give that kind's values and the field's path."""
        if not isinstance(data, list):
            return data
        return [parse_workload(item, f"workloads.{i}") for i, item in enumerate(data)]

    @cached_property
    def gpu_fabrics(self) -> tuple[FabricSpec, ...]:
        """The fabrics if they are of GPUs; else none."""
        return tuple(fabric for fabric in self.fabrics if isinstance(fabric, FabricSpec))

    @cached_property
    def rail_fabrics(self) -> tuple[MultirailSpec, ...]:
        """The fabrics if they are multi-rail; else none."""
        return tuple(fabric for fabric in self.fabrics if isinstance(fabric, MultirailSpec))

    def rail_workloads_on(self, fabric: int) -> tuple[RailWorkload, ...]:
        """Return the workloads of a multi-rail fabric, by its number."""
        return tuple(w for w in self.workloads if isinstance(w, RailWorkload) and w.is_on(fabric))

    def rail_faults_on(self, fabric: int) -> tuple[RailFaultSpec, ...]:
        """Return the faults of a multi-rail fabric, by its number."""
        return tuple(fault for fault in self.faults_on(fabric) if isinstance(fault, RailFaultSpec))

    def dilations_on(self, fabric: int) -> tuple[float, ...]:
        """Return all dilations of a multi-rail fabric, which is built anew for each. Faults aren't slowed down."""
        found = {1.0} if self.faults_on(fabric) else set[float]()
        return tuple(
            sorted(
                found.union(*(w.dilations(fabric, self.rail_fabrics[fabric]) for w in self.rail_workloads_on(fabric)))
            )
        )

    def resolved(self) -> dict[str, Any]:
        """Return plain data with every default filled in, of which `parse` makes the same experiment."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return data | {"plugins": list(plugins.copies())}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A name for each fabric: its kind, and what sets it apart from others of that kind."""
        return distinct_labels([f.label() for f in self.fabrics], [f.traits(self.fabrics) for f in self.fabrics])

    @cached_property
    def workload_labels(self) -> tuple[str, ...]:
        """A name for each workload, the same on every fabric."""
        return distinct_labels([w.label() for w in self.workloads], [w.traits() for w in self.workloads])

    def faults_on(self, fabric: int) -> tuple[FaultSpec, ...]:
        """Return the faults of a fabric, by its number."""
        return tuple(fault for fault in self.faults if fault.is_on(fabric))

    def scripts_on(self, fabric: int) -> tuple[FaultSpec | ScriptSpec, ...]:
        """Return the faults, then the scripts of a fabric, by its number: a fault by itself is a script of one."""
        return *self.faults_on(fabric), *(script for script in self.scripts if script.is_on(fabric))

    def replacements_on(self, fabric: int) -> tuple[ReplacementSpec, ...]:
        """Return the replacements of a fabric, by its number."""
        return tuple(item for item in self.replacements if item.is_on(fabric))

    def reroutes_on(self, fabric: int) -> tuple[Literal["on", "off"], ...]:
        """Return the modes that need a fabric of their own; without faults they don't differ, and one is enough."""
        has_faults = self.gpu_fabrics and self.scripts_on(fabric)
        return self.reroute if has_faults else ("on",)

    def times(self, what: FaultSpec | ScriptSpec) -> int:
        """Return how often a fault or script is run on a fabric."""
        limit = self.fault_repeats if isinstance(what, FaultSpec) else self.script_repeats
        return min(what.repeats or limit, limit)

    @property
    def needs_etcd(self) -> bool:
        """True if any registry of health scores is etcd."""
        steered = self.routing.health.registry if self.routing else None
        broken = [*(fault.registry for fault in self.faults), *(script.registry for script in self.scripts)]
        return "etcd" in (steered, *broken)

    @property
    def fault_runs(self) -> int:
        """Number of runs of faults and scripts in all."""
        fabrics = range(len(self.fabrics))
        return sum(self.times(what) * len(self.reroutes_on(n)) for n in fabrics for what in self.scripts_on(n))

    @property
    def replacement_runs(self) -> int:
        """Number of replacements in all."""
        return sum(len(self.replacements_on(n)) for n in range(len(self.fabrics))) * self.replacement_repeats

    @property
    def injections(self) -> int:
        """Number of faults that are injected in all."""
        return sum(
            self.times(what) * what.injections * len(self.reroutes_on(n))
            for n in range(len(self.fabrics))
            for what in self.scripts_on(n)
        )


Sections = Mapping[str, frozenset[str]]
"""Every key of an experiment, and the keys of its items where it is a list of things."""


def sections(data: Mapping[str, Any]) -> Sections:
    """Return which keys `-o` may give without their section, on fabrics like the first one; plugins add to them."""
    fabrics = data.get("fabrics")
    first = fabrics[0] if isinstance(fabrics, list) and fabrics else None
    kind = str(first.get("kind")) if isinstance(first, Mapping) else ""
    model = (FABRIC_KINDS[kind].Spec if kind in FABRIC_KINDS else None) or FabricSpec
    fault = RailFaultSpec if model is MultirailSpec else FaultSpec
    kinds = [workload for _, workload in WORKLOADS.items() if workload.fabric_spec is model]
    own = {
        "fabrics": frozenset(model.model_fields),
        # transfers have domains too, but who writes `domains=8` means the fabric's
        "workloads": frozenset(key for kind in kinds for key in kind.model_fields) - {"domains", "on", "dilation"},
        "faults": (frozenset(fault.model_fields) | parameter_names()) - {"on", "repeats", "parameters"},
        # a script's faults have the keys of faults, but who writes `at=1s` means those
        "scripts": frozenset(ScriptSpec.model_fields) - {"on", "repeats"},
        "replacements": frozenset(ReplacementSpec.model_fields) - {"on"},
    }
    if model is MultirailSpec:  # the workloads' keys, where faults have them too
        own = {"fabrics": own["fabrics"], "workloads": own["workloads"], "faults": own["faults"] - own["workloads"]}
    return {key: frozenset[str]() for key in ExperimentSpec.model_fields} | own


def workloads_having(key: str, items: Sequence[object]) -> list[int]:
    """Return the numbers of the items that are workloads, as plain data, of a kind that has a key."""
    kinds = [item.get("kind") if isinstance(item, Mapping) else None for item in items]
    return [n for n, kind in enumerate(kinds) if kind in WORKLOADS and key in WORKLOADS[str(kind)].model_fields]


def parse(data: object) -> ExperimentSpec:
    """Return an experiment from plain data, as YAML gives it. BadInput names the first field that is wrong."""
    if not isinstance(data, Mapping):
        raise BadInput("experiment", data, "must be keys and values: name, fabrics, workloads or faults, ...")
    spec = parse_model(ExperimentSpec, rename_keys(data))
    for check in _CHECKS:
        check(spec)
    return spec


def nominal_plan(fabric: FabricSpec) -> Plan:
    """Return the fabric with `auto` rails at their nominal rate."""
    return make_plan(fabric, NOMINAL_RAIL_BPS)


def nominal_plans(spec: ExperimentSpec) -> list[Plan | MultirailPlan]:
    """Return the plans of all fabrics, with `auto` rates at their nominal ones."""
    return [*map(nominal_plan, spec.gpu_fabrics), *map(nominal_multirail_plan, spec.rail_fabrics)]


def _workloads_are_for_the_fabrics(spec: ExperimentSpec) -> None:
    fabric = spec.fabrics[0]
    for i, workload in enumerate(spec.workloads):
        if not isinstance(fabric, workload.fabric_spec):
            kinds = sorted(name for name, kind in WORKLOADS.items() if issubclass(type(fabric), kind.fabric_spec))
            raise BadInput(
                f"workloads.{i}.kind", workload.kind, f"is not for {fabric.kind}: allowed are {', '.join(kinds)}"
            )
    for key in GPU_KEYS if spec.rail_fabrics else ():
        if getattr(spec, key) != ExperimentSpec.model_fields[key].default:
            raise BadInput(key, spec.model_dump(mode="json")[key], "is for fabrics of GPUs")


def _has_something_to_do(spec: ExperimentSpec) -> None:
    if not spec.workloads and not spec.faults and not spec.scripts and not spec.replacements:
        raise BadInput("workloads", [], "must have 1 or more, unless there are faults")


def _reroute_is_distinct(spec: ExperimentSpec) -> None:
    if len(set(spec.reroute)) < len(spec.reroute):
        raise BadInput("reroute", list(spec.reroute), "must name on and off once each")


def _rates_fit(spec: ExperimentSpec) -> None:
    for i, fabric in enumerate(spec.gpu_fabrics):
        if fabric.rail_rate != "auto" and fabric.rail_rate < MIN_RAIL_BPS:
            allowed = f"must be {format_rate(MIN_RAIL_BPS)} or more: packets are whole, and too few to show anything"
            raise BadInput(f"fabrics.{i}.rail_rate", format_rate(fabric.rail_rate), allowed)
        if fabric.rail_rate == "auto" and fabric.hb_rate != "auto":
            rate = fabric.model_dump(mode="json")["hb_rate"]
            allowed = "can't be given without rail_rate: an auto rail may come out above it"
            raise BadInput(f"fabrics.{i}.hb_rate", rate, allowed)


def _faults_fit(spec: ExperimentSpec) -> None:
    if spec.faults:
        check_faults(spec.faults, nominal_plans(spec))
    for i, fault in enumerate(spec.faults):
        for n, fabric in enumerate(spec.rail_fabrics):
            if not (isinstance(fault, RailFaultSpec) and fault.is_on(n)):
                continue
            if len(fabric.rails) < 2:
                allowed = f"breaks the only rail of fabrics.{n}: nothing can take over"
                raise BadInput(f"faults.{i}.target", fault.target, allowed)
            check_policy(fault.policy, f"faults.{i}.policy", [fabric], own_only=True)


def _scripts_fit(spec: ExperimentSpec) -> None:
    names = [script.name for script in spec.scripts]
    plans = [nominal_plan(fabric) for fabric in spec.gpu_fabrics]

    @cache
    def schedules(label: str) -> list[Schedule]:
        n = spec.workload_labels.index(label)
        return [
            build(spec.workloads[n], plan.spec, plan.rail_bps, plan.hb_bps, f"workloads.{n}", spec.seed)[0]
            for plan in plans
        ]

    for i, script in enumerate(spec.scripts):
        if script.name in names[:i]:
            raise BadInput(f"scripts.{i}.name", script.name, "is the name of another one too")
        seeds = range(spec.seed, spec.seed + spec.times(script))
        check_script(script, f"scripts.{i}", plans, spec.workload_labels, schedules, seeds)


def _workloads_fit(spec: ExperimentSpec) -> None:
    """Each workload makes a schedule on each fabric: models are known, parallelism divides the GPUs."""
    for n, fabric in enumerate(spec.gpu_fabrics if spec.workloads else ()):
        if fabric.gpus > MAX_GPUS:
            allowed = f"makes {fabric.gpus:,} GPUs with {fabric.rails} rails: workloads are for {MAX_GPUS:,} or fewer"
            raise BadInput(f"fabrics.{n}.domains", fabric.domains, allowed)
        plan = nominal_plan(fabric)
        for i, workload in enumerate(spec.workloads):
            build(workload, fabric, plan.rail_bps, plan.hb_bps, f"workloads.{i}", spec.seed)


def _rail_workloads_fit(spec: ExperimentSpec) -> None:
    """Each workload can run on its fabrics, and has a label of its own on each: tables know it by that."""
    seen = set[tuple[int, str]]()
    for i, workload in enumerate(spec.workloads if spec.rail_fabrics else ()):
        assert isinstance(workload, RailWorkload)
        workload.check(spec.rail_fabrics, f"workloads.{i}")
        for number in filter(workload.is_on, range(len(spec.fabrics))):
            if (number, workload.label()) in seen:
                raise BadInput(f"workloads.{i}", workload.label(), f"is given twice for fabrics.{number}")
            seen.add((number, workload.label()))


def _replacements_fit(spec: ExperimentSpec) -> None:
    check_replacements(spec.replacements, spec.gpu_fabrics, NOMINAL_RAIL_BPS)


def _background_fits(spec: ExperimentSpec) -> None:
    """A grid's loads can't add up to too much: see Scene.background."""
    scenes = len(spec.grid.scenes) if spec.grid else 0
    for field, given in (("background", len(spec.background)), ("grid", scenes)):
        if given and spec.routing is None:
            raise BadInput(field, given, "is for experiments with routing: add {policies: [dr]}")
    if scenes and spec.background:
        raise BadInput("background", len(spec.background), "can't be given together with grid, which makes its own")
    for fabric in spec.gpu_fabrics:
        check_background(spec.background, fabric)
        if spec.grid:
            check_patterns(spec.grid.patterns, fabric, "grid")


def _routing_without_faults(spec: ExperimentSpec) -> None:
    for field, given in (("faults", len(spec.faults)), ("scripts", len(spec.scripts))):
        if spec.routing is not None and given:
            raise BadInput(field, given, "can't be given together with routing: make two experiments of it")
    if spec.routing is not None and not spec.workloads:
        raise BadInput("workloads", [], "must have 1 or more: routing is measured by what they take")


_CHECKS: Final[tuple[Callable[[ExperimentSpec], None], ...]] = (
    _workloads_are_for_the_fabrics,
    _has_something_to_do,
    _reroute_is_distinct,
    _rates_fit,
    _faults_fit,
    _workloads_fit,
    _rail_workloads_fit,
    _scripts_fit,
    _replacements_fit,
    _background_fits,
    _routing_without_faults,
)
