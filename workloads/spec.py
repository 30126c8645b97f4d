"""Workloads as an experiment's YAML has them (docs/workloads.md has all keys), and the registry of their kinds.

A kind is one class in one file: its keys are the YAML's, and its methods build the schedule and name the workload.
Sizes follow from the duration asked for unless they are given. A duration is that of the workload on rail-only
(two-phase all-to-all) if everything runs at the links' rates, whatever the fabric: so all fabrics carry the same bytes,
and their times can be compared. For `transfers` it is the duration of one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, PlainName, parse_by_kind
from railyard.core.errors import BadInput
from railyard.core.input_paths import NameOrPath
from railyard.core.registry import Registry
from railyard.core.safe_files import inputs_read
from railyard.core.units import Size, Time
from railyard.topologies.fabric_kinds import BaseFabricSpec
from railyard.topologies.platforms import PLATFORMS, Platform
from railyard.topologies.spec import FabricSpec
from railyard.workloads.columns import Columns
from railyard.workloads.models.catalogue import model_title
from railyard.workloads.scale import Scale, real_rates
from railyard.workloads.schedule import Rates, Schedule, TooManyTasks, payload_rates
from railyard.workloads.stragglers import Stragglers, check_computes, uneven
from railyard.workloads.tasks import Task

Share = Annotated[float, Field(ge=0, le=1)]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]

DEFAULT_DURATION_S: Final = 5.0
MAX_DURATION_S: Final = 3600

TaskSpans = Mapping[int, tuple[int, int]]  # start and end of tasks in ns, on one clock, by task number


@dataclass(frozen=True)
class Setting:
    """Fabric and rates that a workload is built for.

    `real` and `emulated`: the links' payload rates on the platform and here. `field`: the workload's own in messages.
    `seed`: for what is drawn at random.
    """

    fabric: FabricSpec
    real: Rates
    emulated: Rates
    field: str
    seed: int

    @property
    def platform(self) -> Platform:
        return PLATFORMS[self.fabric.platform]

    def scale(self, workload: str, bytes_factor: float = 1.0, **more: Any) -> Scale:
        """Return the scale of a workload, by default of one without a published job whose bytes are not scaled."""
        return Scale(workload, self.fabric.platform, self.real, self.emulated, bytes_factor, **more)

    def bytes_factor(self, unscaled_s: float, duration_s: float) -> float:
        """Return emulated over real bytes, with which a schedule takes `duration_s` at the emulated links' rates that
        takes `unscaled_s` with real bytes at the real links' rates.
        """
        return duration_s / unscaled_s * self.emulated.rail / self.real.rail


class Built(NamedTuple):
    """A workload on one fabric.

    `measured_files`: makes the files that go into the run's folder, by name, of what was measured; None if there are
    none.
    `notes`: what `dry-run` adds to its tables, a sentence each.
    """

    schedule: Schedule
    scale: Scale
    measured_files: Callable[[TaskSpans], dict[str, bytes]] | None = None
    notes: tuple[str, ...] = ()


class Workload(ConfigModel):
    """Base of every kind of workload. A kind has the keys that a user writes, and `build`; the rest has defaults.

    `stragglers`: GPUs that compute slowly, and jitter of computing; None if all compute as the workload says.
    """

    required: ClassVar[tuple[str, ...]] = ("build(setting)",)  # the methods that a kind must define
    is_iteration: ClassVar[bool] = True
    """Whether it is the iteration of a training job (or a trace of one), and not plain traffic."""
    is_independent: ClassVar[bool] = False  # whether no pair waits for another pair
    takes_its_bytes: ClassVar[bool] = False  # whether its time follows from bytes also where none are stated
    fabric_spec: ClassVar[type[BaseFabricSpec]] = FabricSpec  # the specification of the fabrics that it is for

    kind: str
    name: PlainName | None = None
    stragglers: Stragglers | None = None

    def build(self, setting: Setting) -> Built:
        """Return the schedule and its scale. BadInput names fields below `setting.field`.

        Two fabrics of the same size and rates get the same bytes, whatever their kinds.
        """
        raise NotImplementedError

    @property
    def result_name(self) -> str:
        """The workload's name in results: `name` if it is given, else its label."""
        return self.name or self.label()

    def label(self) -> str:
        """Return the workload's name in results where it has no `name` of its own."""
        return self.kind

    def traits(self) -> dict[str, str]:
        """Return what may distinguish it from workloads of the same label, in the order in which a label takes it."""
        return {}

    def state_parameters(self, scale: Scale) -> float | None:
        """Return how many parameters each rank holds, of which another rank has the same; None if it isn't known."""
        return None


def _missing(name: str, kind: type[Workload]) -> Iterator[str]:
    for part in kind.required:
        method = part.partition("(")[0]
        bases = [base for base in reversed(kind.__mro__) if hasattr(base, method)]
        # the first one only declares the method
        if getattr(kind, method) is getattr(bases[0], method):
            yield f"{part} is missing"


WORKLOADS: Final = Registry[type[Workload]](
    "workload kind", "railyard.workloads.jobs", Workload, check=_missing, holds_classes=True
)
"""Every kind of workload by its name: `kind` in YAML."""


@dataclass(frozen=True, slots=True)
class TrafficKind:
    """Properties of a kind of traffic (`Phase.kind`), for results; the defaults are for undefined kinds.

    `is_dense`: traffic of dense training, which must stay within its rails (Rail-only section III-B).
    `is_headline`: times of its phases stand beside those of whole workloads.
    """

    is_dense: bool = False
    is_headline: bool = True


TRAFFIC_KINDS: Final = Registry[TrafficKind]("traffic kind", "railyard.workloads.jobs")
"""Kinds of traffic by name, such as TP; a workload may have others, which needn't be defined."""


def traffic_kind(name: str) -> TrafficKind:
    """Return the definition of a kind of traffic; the defaults if it has none."""
    return TRAFFIC_KINDS[name] if name in TRAFFIC_KINDS else TrafficKind()


WorkloadSpec = SerializeAsAny[Workload]  # a workload in a model: any kind, with its own keys


def check_duration(duration: float | None, info: ValidationInfo, other: str) -> float | None:
    """Return a workload's duration, s; ValueError if it is too long, or if `other` gives the number of bytes."""
    if duration is not None and info.data.get(other) is not None:
        raise ValueError(f"can't be given together with {other}: one follows from the other")
    if duration is not None and duration > MAX_DURATION_S:
        raise ValueError(f"must be {MAX_DURATION_S} s or less")
    return duration


class Sized(Workload):
    """`bytes` is D of the workload's main collective as emulated (see `Phase`); `duration` is of the whole workload."""

    bytes: Size | None = None
    duration: Time | None = None

    @field_validator("duration")
    @classmethod
    def _check_exclusive(cls, duration: float | None, info: ValidationInfo) -> float | None:
        return check_duration(duration, info, "bytes")

    @property
    def target_duration_s(self) -> float:
        """The duration asked for, or the default."""
        return self.duration or DEFAULT_DURATION_S

    def bytes_factor(self, setting: Setting, unscaled_bytes: float, unscaled_s: Callable[[Rates], float]) -> float:
        """Return emulated over unscaled bytes: by `bytes`, or such that the whole takes the duration asked for.

        `unscaled_bytes`: D before scaling.
        `unscaled_s`: the time that the schedule with it takes at the links' rates.
        """
        if self.bytes is not None:
            return self.bytes / unscaled_bytes
        return setting.bytes_factor(unscaled_s(setting.real), self.target_duration_s)


class Modelled(Sized):
    """A workload of a model, named by the catalogue or by a YAML file."""

    model: NameOrPath

    def label(self) -> str:
        return model_title(self.model)


@dataclass(frozen=True)
class Job:
    """Base of a training iteration in bytes and seconds: fields `..._bytes`, and a GPU's computing."""

    compute_s: float = field(kw_only=True)

    def scaled(self, bytes_factor: float, time_factor: float) -> Self:
        """Return the same job with fewer bytes and other gaps."""
        changes = {"compute_s": self.compute_s * time_factor}
        for job_field in fields(self):
            if job_field.name.endswith("_bytes"):
                changes[job_field.name] = getattr(self, job_field.name) * bytes_factor
        return replace(self, **changes)


class Training(Modelled):
    """`efficiency`: the part of the platform's peak that a GPU achieves; `compute`: the part of computing time kept.

    1 keeps the real proportions.
    """

    # Computing costs the emulation nothing but time. With less of it, communication is a larger part of the same
    # duration, and its steps are longer and so better measured.
    efficiency: Efficiency = 0.5
    compute: Share = 1.0


def kinds_for(fabric_spec: type[BaseFabricSpec]) -> dict[str, type[Workload]]:
    """Return the kinds of workload for a class of fabrics, by name."""
    kinds: dict[str, type[Workload]] = {}
    for name, kind in WORKLOADS.items():
        if kind.fabric_spec is fabric_spec:
            kinds[name] = kind
    return kinds


def parse_workload(data: object, field: str = "workload") -> Workload:
    """Read a workload from plain data (as YAML gives it). BadInput names the first field that is wrong."""
    return parse_by_kind(data, dict(WORKLOADS.items()), field)


# tasks of the workloads that are kept besides the last one: a tenth of a gigabyte
_MAX_KEPT: Final = 2**18
# of a task in arrays, by the memory that it takes
_COLUMNS_WEIGHT: Final = 0.25
_BUILT: Final[dict[tuple[Any, ...], Built]] = {}


def build(
    spec: Workload, fabric: FabricSpec, rail_bps: int, hb_bps: int, field: str = "workload", seed: int = 0
) -> Built:
    """Build a workload on a fabric with these link rates (bit/s). BadInput names fields below `field`.

    The seed decides what is drawn at random, such as the pairs of shuffled `transfers`, the popular experts of a `moe`
    and the jitter of stragglers, and nothing else.
    """
    # the last few are kept: a workload is built to be checked, and again to be predicted or run
    key = (type(spec), repr(spec), repr(fabric), rail_bps, hb_bps, seed)
    if key in _BUILT:
        return _BUILT[key]
    emulated = payload_rates(hb_bps, rail_bps, fabric.mtu)
    inputs_before = inputs_read.number
    try:
        built = spec.build(Setting(fabric, real_rates(PLATFORMS[fabric.platform], emulated), emulated, field, seed))
    except TooManyTasks as error:
        name, value = _largest_count(spec.model_dump(exclude_none=True), field)
        raise BadInput(name, value, f"{error}; a smaller number, or fewer domains or rails, helps") from error
    if spec.stragglers is not None:
        stragglers_field = f"{field}.stragglers"
        check_computes(
            built.schedule,
            spec.stragglers,
            stragglers_field,
            "this workload only sends: leave it out, or give one that computes, such as gpt",
        )
        built = built._replace(schedule=uneven(built.schedule, spec.stragglers, stragglers_field, seed))
    # a file of the user's or a plugin may change until the next call
    if inputs_read.number != inputs_before or type(spec).__module__.partition(".")[0] != "railyard":
        return built
    while sum(_weight(kept.schedule.tasks) for kept in _BUILT.values()) > _MAX_KEPT:
        del _BUILT[next(iter(_BUILT))]
    return _BUILT.setdefault(key, built)


def _weight(tasks: Sequence[Task]) -> float:
    if isinstance(tasks, Columns):
        return len(tasks) * _COLUMNS_WEIGHT
    return len(tasks)


def _largest_count(data: Mapping[str, Any], field: str) -> tuple[str, Any]:
    """Return the path and the value of the largest number of things, or of the kind if there are no numbers."""
    counts = [(f"{field}.kind", data.get("kind"), 0)]
    for key, value in data.items():
        if isinstance(value, Mapping):
            path, number = _largest_count(value, f"{field}.{key}")
            if number:
                counts.append((path, number, number))
        # larger transfers, or more of them at the same time, aren't more transfers
        elif isinstance(value, int) and "bytes" not in key and key not in ("bucket", "in_flight"):
            counts.append((f"{field}.{key}", value, value))
    path, value, _ = max(counts, key=lambda item: item[2])
    return path, value
