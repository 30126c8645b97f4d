"""Records of a run: rows of CSV, Parquet and JSON files, whose columns and types are those of the dataclasses.

Times are seconds unless the name says otherwise; `*_ns` is CLOCK_MONOTONIC, one clock for every process of a run. The
identity of a record's interval is flattened: its fields are columns as the record's own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final, Literal, TypeVar, cast, get_args

from railyard.core.host_load import PAUSE_S
from railyard.core.records import IntervalId, Record
from railyard.results.measured import MEASURED, RecordKind
from railyard.topologies.nics import most_per_nic

Row = TypeVar("Row")

Verdict = Literal["ok", "not compared", "below resolution", "degraded", "invalid"]
"""Verdict of a row, an interval or a run, best first. Two are of rows alone, which aren't set against their prediction:
"not compared" has a reason, such as sharing links with another phase, as the formula is of a phase alone; of "below
resolution", idle credit or the scheduler may change more than is judged."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
NOT_COMPARED: Final[tuple[Verdict, ...]] = ("not compared", "below resolution")


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of these verdicts; ok if there are none."""
    return max(verdicts, key=VERDICTS.index, default="ok")


Content = bytes  # within Run, that name is a field's


@dataclass(frozen=True, slots=True)
class Measurement(Record):
    """A row of results.csv. `predicted` is None where no formula exists; ratio = value / predicted.

    `explained_least`, `explained_most`: the ratios that the theory explains. Both are 1 for an exact formula, the most
    is infinite for a bound. `predicted_by_uplink`: as `predicted`, but with the flows on uplinks that the fabric's ECMP
    or policy is expected to give them, and not with even shares; None where there is nothing to choose.

    `frames` of the median message. `credit_share`: the most by which idle credit of shapers shortens the predicted
    time, as a share of it. `shares_links_with`: the phases that the schedule lets use the same links at the same time,
    or whose flows are hashed over the same uplinks and have other proportions.
    `predicted_with_latency`: as `predicted`, with the latency of each sequential step, as calibration measured it.
    `formula`: of `predicted`, in symbols and with its values; empty in runs of earlier versions. `not_compared`: why
    the value isn't set against a prediction; empty if it is, or if there never is one.
    """

    phase: str
    metric: str
    value: float
    unit: str
    predicted: float | None = None
    explained_least: float = 0.0
    explained_most: float = inf
    predicted_by_uplink: float | None = None
    frames: float | None = None
    credit_share: float = 0.0
    shares_links_with: str = ""
    predicted_with_latency: float | None = None
    formula: str = ""
    not_compared: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        if not self.predicted:
            return None
        return self.value / self.predicted


@dataclass(frozen=True, slots=True)
class Flow(Record):
    """A row of flows.parquet: a transfer. GPUs by name; `delivered` bytes were read and verified at `dst`.

    `operation`: the collective that it belongs to, such as all-to-all; "" for none. `stage` and `step`: the pipeline
    stage and the pass or micro-batch that it belongs to, as the workload names them; "" without.
    """

    phase: str
    kind: str
    src: str
    dst: str
    bytes: int
    delivered: int
    start_ns: int
    end_ns: int
    operation: str = ""
    stage: str = ""
    step: str = ""


@dataclass(frozen=True, slots=True)
class GoodputTrace(Record):
    """Goodput around one fault: `t_ms` bin starts from the fault, `bps` delivered in each bin, and the repair."""

    fault: str
    target: str
    t_ms: tuple[float, ...]
    bps: tuple[float, ...]
    affected_bps: tuple[float, ...]  # only the flows whose path crossed the fault
    repair_ms: float
    link: str = ""  # the NIC of which these are the rates, sent and received; empty: of all flows


CONTROLLER: Final = "controller"
"""Key of a run's provenance: the user's app that decided how switches forwarded, if there was one."""
APP_FAILED: Final = "app-failed"
"""Event: that app logged a warning or raised an exception, which has happened so many `times`."""
PROCESS: Final = "process"
"""Source of events on the processes of a run."""
INTERRUPTIONS: Final = ("interrupted", "interval-failed")
"""Events of the source PROCESS: a process died or was stopped, and an interval failed meanwhile."""
INJECTED_LATE: Final = "injected-late"
"""A fault was injected after it was due: an event of the source RUN."""
# an injection is late from here on: faults that are less apart count as simultaneous
LATE_S: Final = 0.05
LIVE: Final = "live"
"""Source of events on what was clicked on the live page: faults, traffic, and `HOLDS`."""
HOLDS: Final = ("pause", "resume")
RUN: Final = "run"
"""Source of events on the run itself: "step" with its result, "repeated" for an interval that was measured again."""
REPEATED: Final = "repeated"
STEP: Final = "step"
LIVE_PAGE: Final = "live.html"
"""Name of the recorded live page in a run's folder; reports link no other."""
THROUGHPUT: Final = "throughput"
"""Metric: bits delivered over the time of the whole."""
SLOWDOWN: Final = "slowdown"
"""Metric: the median time on a fabric over that on its baseline."""
CLOCK_UNCERTAINTY: Final = "clock_uncertainty"
"""Metric: what the times of two machines of one fabric may differ by, s, at most, though they are of one moment."""
UNDERLAY_BYTES: Final = "underlay_bytes"
"""Metric: what the interfaces between the machines of one fabric sent in an interval."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of events.jsonl."""

    monotonic_ns: int
    source: str
    what: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkCheck:
    """iperf3 on one link of a class: payload rates in bit/s, expected (rate less headers) and measured.

    `dilation`: how many times slower time passed in the fabric as it was built then.
    """

    fabric: str
    link_class: str
    link: str
    expected_bps: float
    measured_bps: float
    dilation: float = 1.0
    latency_s: float | None = None  # of one byte over the idle path


@dataclass(frozen=True, slots=True)
class Load(Record):
    """Load of the machine in one measurement interval: the evidence of the fidelity verdict."""

    cpu_busy: float  # mean share of the usable cores, 0 to 1
    cpu_foreign: float  # share of them used by processes that aren't the run's
    lag_p99_ms: float  # how late a thread that slept 1 ms woke
    retransmits: int
    segments: int  # TCP segments sent
    drops: int  # at every queue and port of the fabric
    # a fault was injected on purpose: its retransmits and drops don't count
    transfers_faulted: bool = False
    # routes changed meanwhile: frames overtake each other, and TCP sends again what isn't lost
    rerouted: bool = False
    dilation: float = 1.0  # of the fabric as it was built then: its links' checks are those of the same
    cpu_stolen: float = 0.0  # share of the usable cores that other guests of the host had
    cpu_throttled: float = 0.0  # share of the time for which a CPU quota stopped the run
    paused: float = 0.0  # share of the time in pauses of over `late_ms` in which no thread of the recorder ran
    pause_ms: float = 0.0  # the longest of them
    busy_100ms: float = 0.0  # `cpu_busy` in the worst 100 ms, and so on
    foreign_100ms: float = 0.0
    stolen_100ms: float = 0.0
    needless_retransmits: int = 0  # beside `retransmits`: segments that the receiver had already
    drops_node: str = ""  # the node and interface with most of `drops`, and how many it had
    drops_interface: str = ""
    drops_most: int = 0
    # without faults, threads may be later where links are slow
    late_ms: float = PAUSE_S * 1e3
    # by how much the ticks in which the kernel counts may change the shares of the whole interval; 0: not recorded
    cpu_resolution: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineSample(Record):
    """A row of machine.parquet: the load in the 100 ms before; `lag_ms`: the most by which a 1 ms sleep was late."""

    monotonic_ns: int
    busy: float  # shares of the usable cores, 0 to 1
    foreign: float
    lag_ms: float


@dataclass(frozen=True, slots=True)
class ByteCheck(Record):
    """Delivered against asked for, per workload run: pairs that differ, and port counters against payload.

    Where policies steer or faults are active, other traffic crosses the same ports and paths change, so
    `rail_expected_bytes` is 0, which there means not known, and the port counters are compared with nothing.
    `asked_bytes` are without those of transfers that wait for ever, since their GPUs have no path.
    """

    asked_bytes: int
    delivered_bytes: int
    pairs_wrong: int
    rail_port_bytes: int  # what the rail switches' GPU ports received, headers included
    rail_expected_bytes: int  # payload that should have crossed them plus its headers
    cross_rail_bytes: int  # payload sent over the rails' uplinks, or between rails, by the matrix and the policy


@dataclass(frozen=True)
class FabricRun:
    """One fabric that was built: what it was, and how long building and taking down took (s).

    `optics`: the layers that go through optical switches ("rail", "hb"), which `switches` has among the others.
    `cables`: of a kind that is a graph, the names of the two ends of each cable in the NIC network.
    `nics`: the rail of each rank, where GPUs share NICs.
    """

    label: str
    policy: str
    kind: str
    domains: int
    rails: int
    rail_bps: int
    hb_bps: int
    mtu: int
    platform: str
    spines: int
    uplink_bps: int
    switches: tuple[str, ...]
    datapath: str
    build_s: float
    stop_s: float
    optics: tuple[str, ...] = ()
    cables: tuple[tuple[str, str], ...] = ()
    nics: tuple[int, ...] = ()

    @property
    def gpu_rail_bps(self) -> float:
        """Rate of a GPU's rail link, C_S of the equations; where GPUs share NICs, its part while all of them send."""
        return self.rail_bps / most_per_nic(self.nics) if self.nics else self.rail_bps


@dataclass(frozen=True)
class RecordedExperiment:
    """The experiment of a run as its records have it, of which results use a few keys.

    `data`: the resolved specification as plain data; empty for a run of a Python script. A key that is not there is
    None, or empty.
    """

    data: Mapping[str, Any]

    @property
    def title(self) -> str | None:
        """The title, which may be empty."""
        return self.data.get("title")

    @property
    def description(self) -> str:
        """The description."""
        return self.data.get("description") or ""

    @property
    def seed(self) -> int | None:
        """The seed of its first repeat."""
        return self.data.get("seed")

    @property
    def repeats(self) -> int | None:
        """The number of repeats of each workload."""
        return self.data.get("repeats")

    @property
    def attempts(self) -> int | None:
        """Limit of how often an interval is measured, while other programs keep the machine busy."""
        return self.data.get("attempts")

    @property
    def controller(self) -> str:
        """The file of the user's app that decides how switches forward; empty without one."""
        return self.data.get("controller") or ""

    @property
    def fabrics(self) -> Sequence[Mapping[str, Any]]:
        """The specifications of its fabrics."""
        return self.data.get("fabrics") or ()

    @property
    def workloads(self) -> Sequence[Mapping[str, Any]]:
        """The specifications of its workloads."""
        return self.data.get("workloads") or ()

    def section(self, key: str) -> Any:
        """Return a section as plain data, by its key, for the measure that it belongs to; None without it."""
        return self.data.get(key)

    def item_count(self, key: str) -> int:
        """Return the number of items of a section, by its key."""
        return len(self.data.get(key) or ())


@dataclass
class Run:
    """Everything of one run. `spec`: the resolved experiment as plain data. `scale`: what was scaled down, by workload
    and fabric. `interrupted`: whether it was stopped; `failed`: the error that ended it, in one line.

    `records`: those of measures, by the name of their kind: `rows` returns them. `files`: what belongs in the run's
    folder as it is, by its path there: replayed traces with what was measured.
    `damaged`: a line for each record that is missing or was changed since; `verified`: whether a manifest was there.
    """

    name: str
    spec: dict[str, Any]
    provenance: dict[str, Any]
    started_utc: str
    scale: list[dict[str, Any]] = field(default_factory=list)
    fabrics: list[FabricRun] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    links: list[LinkCheck] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    machine: list[MachineSample] = field(default_factory=list)
    bytes: list[ByteCheck] = field(default_factory=list)
    files: dict[str, Content] = field(default_factory=dict)
    records: dict[str, list[Any]] = field(default_factory=dict)
    duration_s: float = 0.0
    interrupted: bool = False
    failed: str = ""
    damaged: list[str] = field(default_factory=list)
    verified: bool = True

    def __post_init__(self) -> None:
        # a copy: runs that are made of one another have lists of their own
        lists: dict[str, list[Any]] = {kind.name: [] for kind in record_kinds().values() if kind not in KERNEL_KINDS}
        self.records = lists | self.records

    def rows(self, kind: RecordKind[Row]) -> list[Row]:
        """Return the list of the records of a kind, to which more can be added."""
        if kind in KERNEL_KINDS:
            return cast(list[Row], getattr(self, kind.name))
        return self.records[kind.name]

    def with_rows(self, kind: RecordKind[Row], rows: list[Row]) -> "Run":
        """Return the run with other records of a kind."""
        if kind in KERNEL_KINDS:
            changed: dict[str, Any] = {kind.name: rows}
            return replace(self, **changed)
        return replace(self, records={**self.records, kind.name: rows})

    @property
    def experiment(self) -> RecordedExperiment:
        """Its experiment."""
        return RecordedExperiment(self.spec)

    @property
    def is_interactive(self) -> bool:
        """True if the fabric was changed by hand while it was measured. Steps that were held change nothing."""
        return any(event.source == LIVE and event.what not in HOLDS for event in self.events)

    def measured(self, metric: str) -> list[Measurement]:
        """Return the measurements of a metric, in their order."""
        return [row for row in self.measurements if row.metric == metric]

    def sizes(self) -> dict[str, int]:
        """Return the number of records of each kind so far, for `since` and `discard`."""
        return {name: len(self.rows(kind)) for name, kind in record_kinds().items()}

    def since(self, sizes: Mapping[str, int]) -> "Run":
        """Return the records that were added since, as a run of the same experiment."""
        later = Run(self.name, self.spec, {}, self.started_utc)
        for kind in record_kinds().values():
            later.rows(kind).extend(self.rows(kind)[sizes[kind.name] :])
        return later

    def discard(self, sizes: Mapping[str, int]) -> None:
        """Remove the records of the intervals that were measured since; of events, those that belong to one of them."""
        intervals: set[IntervalId] = set()
        for load in self.loads[sizes["loads"] :]:
            # an event may be of all parts of an interval together
            intervals |= {load.interval, replace(load.interval, part="")}
        for kind in record_kinds().values():
            if kind is not EVENTS:
                del self.rows(kind)[sizes[kind.name] :]
        # other threads append to the events meanwhile: from the last one back, no number that is still to come changes
        for number in range(len(self.events) - 1, sizes["events"] - 1, -1):
            if IntervalId.of(self.events[number].detail) in intervals:
                del self.events[number]


RESULTS_CSV: Final = "results.csv"
"""The file that has the measurements as text, with their verdicts."""
MEASUREMENTS: Final = RecordKind("measurements", Measurement, "results.parquet", in_every_run=True, is_linked=False)
EVENTS: Final = RecordKind("events", Event, "events.jsonl", is_linked=False)
KERNEL_KINDS: Final[tuple[RecordKind[Any], ...]] = (
    RecordKind("fabrics", FabricRun),
    RecordKind("links", LinkCheck),
    RecordKind("loads", Load),
    RecordKind("bytes", ByteCheck),
    MEASUREMENTS,
    RecordKind("flows", Flow, "flows.parquet", in_every_run=True),
    RecordKind("machine", MachineSample, "machine.parquet", is_linked=False),
    EVENTS,
)
"""The kinds of records that are fields of `Run`."""


def record_kind_of_file(file: str) -> RecordKind[Any]:
    """Return the kind of records of a file of the run's folder, such as `flows.parquet`. KeyError without one."""
    kinds = {kind.file: kind for kind in record_kinds().values()}
    return kinds[file]


def record_kinds() -> dict[str, RecordKind[Any]]:
    """Return every kind of record by its name, those of measures too, in the order in which a folder has them."""
    kinds = list(KERNEL_KINDS)
    for measure in MEASURED.values():
        for kind in measure.records:
            names = [other.name for other in kinds]
            kinds.insert(names.index(kind.before), kind)
    return {kind.name: kind for kind in kinds}
