"""Identity of what a run records: which fabric ran what, under which policy, in which scene, with which faults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar


@dataclass(frozen=True, slots=True)
class IntervalId:
    """Identity of one measurement interval. Every record of the interval carries it; fields that don't apply are empty.

    `fabric`, `workload`: as the experiment names them.
    `policy`: the forwarding policy, or the one that steered routes.
    `scene`: a scene of background load.
    `script`: the failure script that ran beside it, or a GPU replacement.
    `reroute`: "on" or "off" where faults were injected.
    `part`: what tells intervals of one script apart: a fault that was injected alone ("link-down d0g1"), or a step of a
    replacement. Views make labels of it; progress takes a fault's kind from its first word.
    """

    fabric: str = ""
    workload: str = ""
    policy: str = ""
    scene: str = ""
    script: str = ""
    repeat: int = 0
    reroute: str = ""
    part: str = ""

    @property
    def work(self) -> "IntervalId":
        """The identity without fabric, policy and repeat."""
        return replace(self, fabric="", policy="", repeat=0)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, and the repeat, as plain data for events and JSON."""
        return {name: value for name in INTERVAL_FIELDS if (value := getattr(self, name)) or name == "repeat"}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "IntervalId":
        """Return the identity in plain data, such as an event's detail; other keys are ignored."""
        return cls(**{name: data[name] for name in INTERVAL_FIELDS if name in data})


INTERVAL_FIELDS = tuple(f.name for f in fields(IntervalId))
T = TypeVar("T")


class _IntervalField(Generic[T]):
    """The field of this name of a record's interval."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, record: "Record", _: type | None = None) -> T:
        return getattr(record.interval, self._name)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Record:
    """Something that belongs to one measurement interval."""

    interval: IntervalId

    fabric = _IntervalField[str]()
    workload = _IntervalField[str]()
    policy = _IntervalField[str]()
    script = _IntervalField[str]()
    repeat = _IntervalField[int]()
    reroute = _IntervalField[str]()


@dataclass(frozen=True, slots=True)
class ConnectivityCheck(Record):
    """A row of connectivity.csv: every ordered pair of GPUs was probed, and the answers compared with the oracle.

    Its columns: docs/results.md. Not `done`: the check was due, and the machine had no time for it.
    """

    monotonic_ns: int
    last_event: str
    broken: int
    pairs: int
    reachable: int
    answered: int
    not_recovered: int
    unexpected_answers: int
    forwarding_failed_parts: int
    mismatches: str = ""  # lines
    done: bool = True

    @property
    def mismatch_count(self) -> int:
        """Number of pairs and failed parts for which the fabric differs from the oracle; 0 if it was not done."""
        return self.not_recovered + self.unexpected_answers + self.forwarding_failed_parts


class Recovered(StrEnum):
    """Outcome of a fault: whether traffic recovered before the repair. Only YES is true in a condition.

    UNAFFECTED: no probe was lost and no goodput fell, so there was nothing to recover. NOT_MEASURED: no pair was
    probed, and nothing streamed.
    """

    YES = "yes"
    NO = "no"
    UNAFFECTED = "unaffected"
    NOT_MEASURED = "not measured"

    def __bool__(self) -> bool:
        return self is Recovered.YES

    def __reduce_ex__(self, _: object) -> tuple[type["Recovered"], tuple[str]]:
        """Return the class and the value: a pipe between processes makes data of classes, and calls no function."""
        return Recovered, (self.value,)

    @classmethod
    def of(cls, has_recovered: bool) -> "Recovered":
        """Return YES or NO."""
        return cls.YES if has_recovered else cls.NO


# the share of the goodput before a fault from which on it counts as back
RESTORED: Final = 0.95


@dataclass(frozen=True, slots=True)
class Recovery(Record):
    """A row of recovery.csv: a fault, the time of each step of the recovery (ms), and the losses.

    Times count from the injection, `goodput_after_repair_ms` and `primary_path_ms` from the repair; None if the step
    never came, or nothing was measured. `goodput_ms` and `goodput_after_repair_ms` are 0 if goodput never fell, and
    `has_streams` is false where nothing streamed. `source_side_ms` is the first packet of pairs whose own end was hit,
    `far_side_ms` that of the others; `source_side_probed` and `far_side_probed` are the numbers of probed pairs.
    `goodput_share`: the share of the goodput before the fault from which on it counts as back in `goodput_ms`.
    `above_max_flow`: streams that got more than the max-flow of the remaining fabric. `lost_bytes` and
    `connections_lost` are of the whole script. `probes_lost` counts 1 kHz probes without an answer,
    `probes_lost_after_repair` those that were sent after the repair. `recovered`: see failure/analysis/evaluate.py.
    """

    fault: str
    target: str
    t_fault: int  # ns
    t_repair: int  # ns
    detect_ms: float | None
    decided_ms: float | None
    reroute_ms: float | None
    first_packet_ms: float | None
    source_side_ms: float | None
    far_side_ms: float | None
    goodput_ms: float | None
    goodput_after_repair_ms: float | None  # from the repair to RESTORED of the goodput before the fault
    primary_path_ms: float | None  # from the repair until its last detour is withdrawn; 0 if there was none to withdraw
    source_side_probed: int
    far_side_probed: int
    above_max_flow: int
    lost_bytes: int
    probes_lost: int
    probes_lost_after_repair: int
    connections_lost: int
    recovered: Recovered
    has_streams: bool = True
    goodput_share: float = RESTORED

    @property
    def is_probed(self) -> bool:
        """True if any affected pair was probed."""
        return self.source_side_probed + self.far_side_probed > 0

    @property
    def is_unaffected(self) -> bool:
        """True if no probe of another GPU was lost to this fault."""
        return self.is_probed and self.probes_lost == 0 and self.first_packet_ms == 0

    @property
    def has_goodput_evidence(self) -> bool:
        """True if goodput fell, so that its return is evidence even where no pair was probed."""
        return bool(self.goodput_ms) or self.recovered is Recovered.NO


# a packet on its way takes less
IN_FLIGHT_NS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class ProbeLog:
    """One probed pair: when each probe was sent, and when it arrived (-1: never), in ns."""

    sent_ns: tuple[int, ...]
    arrived_ns: tuple[int, ...]

    def before(self, until_ns: int) -> "ProbeLog":
        """Return the log of the probes that were sent before a moment."""
        count = sum(at < until_ns for at in self.sent_ns)
        return ProbeLog(self.sent_ns[:count], self.arrived_ns[:count])

    def lost(self, start_ns: int, end_ns: int) -> list[int]:
        """Return the numbers of the probes sent in this interval that never arrived."""
        return [i for i, at in enumerate(self.sent_ns) if start_ns <= at < end_ns and self.arrived_ns[i] < 0]

    def delayed(self, start_ns: int, until_ns: int) -> list[int]:
        """Return the numbers of probes sent from `start_ns` on that arrived after `until_ns`, unless sent just before.

        A stopped process keeps packets, and forwards them when it continues.
        """
        sent = enumerate(self.sent_ns)
        return [i for i, at in sent if start_ns <= at < until_ns - IN_FLIGHT_NS and self.arrived_ns[i] >= until_ns]
