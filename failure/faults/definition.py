"""Fault kinds: what a definition states, the registry of all definitions, and a fault as data.

A fault kind is one file of this folder, or a plugin (docs/extending.md).
Everything that Railyard does with faults asks the definition: specs, dry runs, random faults, the oracle, path choice,
recovery times and targets. Reading definitions is free of side effects; only `prepare`, `inject`, `repair` and
`symptoms` touch the kernel.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from railyard.controller.health.estimator import RegistryKind
from railyard.core.config import ConfigModel
from railyard.core.registry import Registry
from railyard.failure.faults.support.impact import FaultScope, Impact, is_signal_of, scope_of
from railyard.topologies.fabric_kinds import FabricPlan, Layer
from railyard.topologies.plan import Plan

ControllerEvent = tuple[int, str, dict[str, Any]]  # an event of a controller: (monotonic ns, kind, detail)
SPEC_KEYS: Final = frozenset({"kind", "target", "at", "repair", "after", "on", "repeats", "parameters"})
"""Keys of a fault in a spec; a parameter can't have one of these names."""


class NoParameters(ConfigModel):
    """Parameters of a fault kind that has none."""


@dataclass(frozen=True, slots=True)
class FirstPacketTarget:
    """Limits of the time from the injection until packets flow again, ms.

    `side`: of pairs whose own end is hit ("source"), of the others ("far"), or of the slowest pair (None).
    `why`: what the time is made of.
    """

    what: str
    why: str
    median_ms: float
    p95_ms: float
    side: Literal["source", "far"] | None = None


@dataclass(frozen=True, slots=True)
class GoodputTarget:
    """Limit of the time from the injection until streams that fill the rails get again what is left, ms.

    `why`: what the time is made of.
    """

    what: str
    why: str
    most_ms: float


class FaultKind:
    """Definition of a fault kind. `target` is a name that `targets` allows, `p` an instance of `Parameters`.

    To be given: `targets`, `impact`, `inject`, `repair`, `symptoms`. The rest has defaults. `plan` and `net` are those
    of a fabric that has such targets: kinds for all fabrics declare `FabricPlan` and `EmulatedNet`, others their own.
    """

    Parameters: ClassVar[type[ConfigModel]] = NoParameters  # the kind's own keys in a spec, with defaults and bounds
    target_sort: ClassVar[str] = "target"
    """What a target is, in the singular, as error messages say it: "GPU", "rail switch"."""
    layer: ClassVar[Layer | None] = None
    """The layer of the GPU cable that breaks; None if it isn't a single cable. Random faults group by it."""
    order: ClassVar[int] = 1000
    """Position in lists and in random draws; kinds with the same position are ordered by name."""
    weight: ClassVar[float] = 0.0  # weight in the default mix of random faults; 0: only if a spec's mix names the kind
    min_random_s: ClassVar[float] = 0.0  # minimum duration of a random fault, s
    is_control_plane: ClassVar[bool] = False  # only a control process fails: packets keep flowing
    stops_controller: ClassVar[bool] = False  # there is no controller while the fault lasts
    stops_gpus: ClassVar[bool] = False  # processes on GPUs are killed or stopped, so connections may break
    is_intermittent: ClassVar[bool] = False  # parts fail and recover by themselves while the fault lasts
    loses_packets_throughout: ClassVar[bool] = False  # packets are lost until the repair, whatever the controller does
    spans_machines: ClassVar[bool] = False
    """On a fabric over several machines, each operation does what concerns the namespaces of its machine."""
    is_rerouted: ClassVar[bool] = True  # the controller moves traffic away from what breaks
    first_packet_targets: ClassVar[tuple[FirstPacketTarget, ...]] = ()
    goodput_target: ClassVar[GoodputTarget | None] = None
    """Targets of recovery: experiments/measures/faults/targets.py."""

    def targets(self, plan: Any) -> Sequence[str]:
        """Return the names of all possible targets on a fabric."""
        raise NotImplementedError

    def impact(self, plan: Any, target: str, p: Any) -> Impact:
        """Return what is dead or degraded while the fault lasts, at its worst."""
        raise NotImplementedError

    def prepare(self, net: Any, target: str, p: Any) -> None:
        """Do what takes long and changes nothing yet, before the clock is read; `repair` undoes it."""

    def inject(self, net: Any, target: str, p: Any) -> None:
        """Break the target, as fast as possible: recovery times count from just before."""

    def repair(self, net: Any, target: str, p: Any) -> None:
        """Repair the target."""

    def symptoms(self, net: Any, target: str, p: Any) -> Sequence[bool]:
        """Return for each affected part, one or more, whether it is faulty, observed at the part itself.

        All are true while the fault is active, and all are false after its repair.
        """
        raise NotImplementedError

    def canonical_target(self, target: str) -> str:
        """Return the name in `targets` of a target that may also be written otherwise."""
        return target

    def target_problem(self, plan: FabricPlan, target: str) -> str:
        """Return what is wrong with a target on a fabric, with what is allowed; empty if it can be used."""
        names = self.targets(plan)
        if target in names:
            return ""
        if not names:
            allowed = "it has none"
        elif len(names) == 1:
            allowed = f"allowed are {names[0]}"
        else:
            allowed = f"allowed are {names[0]} to {names[-1]}"
        return f"is no {self.target_sort_on(plan)} of {plan.title}: {allowed}"

    def target_sort_on(self, plan: FabricPlan) -> str:
        """Return what a target is called on a fabric."""
        return self.target_sort

    def parameter_problems(self, p: Any, repair_s: float) -> Iterator[tuple[str, str]]:
        """Yield (parameter, what is allowed) for values that don't fit a fault of this duration."""
        yield from ()

    def random_parameters(self) -> ConfigModel:
        """Return the parameters of random faults."""
        return self.Parameters()

    def scope(self, plan: FabricPlan, target: str, p: Any) -> FaultScope:
        """Return what the fault affects and what its detection requires: concurrent faults must not interfere."""
        return scope_of(self.impact(plan, target, p), plan)

    def nodes(self, plan: FabricPlan, target: str, p: Any) -> frozenset[str]:
        """Return the namespaces that its operations touch: on several machines, these carry it out."""
        impact = self.impact(plan, target, p)
        return impact.nodes.union(*impact.impaired_cables)

    def is_signal(self, plan: Plan, target: str, p: Any, event_kind: str, detail: Mapping[str, Any]) -> bool:
        """Return whether an event of the controller announces this fault."""
        return is_signal_of(self.impact(plan, target, p), plan, event_kind, detail)

    def end_ns(self, target: str, injected_ns: int, repair_start_ns: int, events: Sequence[ControllerEvent]) -> int:
        """Return when the fault was over (monotonic ns), if that isn't when its repair began."""
        return repair_start_ns

    def stream_load(self, p: Any) -> float:
        """Return the share of a rail that the streams of a GPU fill together when the fault comes alone.

        0: each stream has the usual small share of a rail, so that detours have room.
        """
        return 0.0

    def remaining_share(self, plan: Any, target: str, p: Any) -> float:
        """Return the share of a rail that is left while the fault lasts, if that is the same for every GPU."""
        return 1.0

    def keeps_forwarding(self, datapath: str) -> bool:
        """Return whether a dead switch keeps forwarding by this datapath ("system": the kernel's, or "netdev")."""
        return False

    def registry(self, p: Any) -> RegistryKind | None:
        """Return the registry of health scores that must run meanwhile."""
        return None


def _problems(name: str, definition: FaultKind) -> Iterator[str]:
    if not type(definition).__doc__:
        yield "the docstring is missing"
    model: object = definition.Parameters
    if not (isinstance(model, type) and issubclass(model, ConfigModel)):
        yield "Parameters must be a subclass of ConfigModel"
        return
    for key, info in model.model_fields.items():
        if key in SPEC_KEYS:
            yield f"Parameters must not have a field {key}: every fault has that key"
        elif info.is_required():
            yield f"Parameters.{key} needs a default"


FAULTS: Final = Registry[FaultKind](
    "fault kind",
    "railyard.failure.faults",
    FaultKind,
    [
        "targets(plan)",
        "impact(plan, target, p)",
        "inject(net, target, p)",
        "repair(net, target, p)",
        "symptoms(net, target, p)",
    ],
    _problems,
)
fault = FAULTS.register  # decorator that registers a subclass of FaultKind by its name


def fault_kinds() -> tuple[str, ...]:
    """Return the names of all fault kinds, in the order of lists and random draws."""
    return tuple(sorted(FAULTS, key=lambda name: (FAULTS[name].order, name)))


def definition_of(kind: str) -> FaultKind:
    """Return a definition; for a kind that isn't registered, as in the records of an old run, one with the defaults."""
    return FAULTS[kind] if kind in FAULTS else FaultKind()


_DEFAULTS: Final = NoParameters()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault as data: a kind, a target of that kind, and the kind's parameters (default: `Parameters()`)."""

    kind: str
    target: str
    parameters: ConfigModel = _DEFAULTS

    def __post_init__(self) -> None:
        if self.parameters is _DEFAULTS:
            object.__setattr__(self, "parameters", definition_of(self.kind).Parameters())

    @classmethod
    def of(cls, kind: str, target: str, **parameters: Any) -> "Fault":
        """Make a fault with some parameters given, the rest at their defaults."""
        return cls(kind, target, FAULTS[kind].Parameters(**parameters))

    @property
    def name(self) -> str:
        """Kind and target."""
        return f"{self.kind} {self.target}"

    @property
    def definition(self) -> FaultKind:
        """The definition of its kind."""
        return definition_of(self.kind)

    def impact(self, plan: FabricPlan) -> Impact:
        """Return what is dead or degraded while it lasts."""
        return self.definition.impact(plan, self.target, self.parameters)

    def scope(self, plan: FabricPlan) -> FaultScope:
        """Return what it affects and requires."""
        return self.definition.scope(plan, self.target, self.parameters)

    def is_signal(self, plan: Plan, event_kind: str, detail: Mapping[str, Any]) -> bool:
        """Return whether an event of the controller announces it."""
        return self.definition.is_signal(plan, self.target, self.parameters, event_kind, detail)
