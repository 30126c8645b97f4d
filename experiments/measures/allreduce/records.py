"""Records of allreduces over several rails: rows that the measure adds to a run, and reads back for its views.

A row has the results of one measurement interval. Its figures are measurements (a metric for each field), a fault is a
recovery too, and whatever did not go as planned is an event. Sizes are in bytes: `size` as in the paper, `sent` is what
was really summed. Times are seconds unless the name says otherwise, in the fabric's own time: `dilation` times less
than a clock showed. Lists by rail are in the fabric's order.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Self, TypeVar

from railyard.core.records import IntervalId, Record, Recovered, Recovery
from railyard.core.units import size_name
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.results.measured import RecordKind
from railyard.results.runs.records import THROUGHPUT, Event, GoodputTrace, Measurement, Run

R = TypeVar("R", bound=Record)
# A rail that carried a smaller share counts as unused: a few operations only try a split.
MIN_SHARE: Final = 0.005
SOURCE: Final = "allreduce"
LOSS: Final = "loss"
# Of fewer operations, one in a hundred is less than one.
MIN_SAMPLES_FOR_P99: Final = 100
_SKIPPED: Final = "policy skipped"
_LOST: Final = "rails lost"
_FAILED: Final = "operations failed"


@dataclass(frozen=True, slots=True)
class Rails:
    """The rails of a multi-rail fabric: `kinds`, `names`, `bps` (payload that a NIC carries), one for each rail.

    `mix` is what its rails are together, `tcp+sharp`; `scale`: how many times slower they are than the paper's;
    `cpu_s_per_byte` of a node's processor, none where it is empty; `threshold`: bytes before scaling up to which Eq. 6
    of Nezha leaves all to one rail, where a split has to gain what makes it try one; None if that is at no size.
    """

    label: str
    nodes: int
    mix: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    bps: tuple[float, ...]
    setup_s: tuple[float, ...]
    scale: float
    mtu: int
    build_s: float = 0.0
    cpu_s_per_byte: tuple[float, ...] = ()
    threshold: float | None = None


def rails_of_fabric(fabrics: Iterable[Rails], label: str) -> Rails:
    """Return the rails of the fabric with a label."""
    return next(rails for rails in fabrics if rails.label == label)


RAILS: Final = RecordKind("rails", Rails, before="goodput")
"""The fabrics of a run: a list in run.json."""


def _metric(name: str, unit: str, **more: Any) -> Any:
    """Return a field of a row that is recorded as a measurement."""
    return field(metadata={"metric": (name, unit)}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row(Record):
    """A row whose `_metric` fields are measurements."""

    def add_to(self, run: Run) -> None:
        """Add a measurement for each of them that has a value; the first has the prediction and the resolution."""
        first: dict[str, Any] = {"predicted": getattr(self, "predicted_s", None)}
        for name in ("frames", "credit_share"):
            if hasattr(self, name):
                first[name] = getattr(self, name)
        for field_name, (metric, unit) in _metrics_of(type(self)).items():
            value = getattr(self, field_name)
            if value is not None:
                run.measurements.append(Measurement(self.interval, "", metric, float(value), unit, **first))
            first = {}

    @classmethod
    def read(cls, interval: IntervalId, measurements: Mapping[str, Measurement], **other_fields: Any) -> Self:
        """Read back what `add_to` recorded; a field without a measurement is None.

        `measurements`: those of the interval, by metric. `other_fields`: values of fields that are no metrics.
        """
        metrics = _metrics_of(cls)
        values: dict[str, Any] = {}
        for field_name, (metric, _) in metrics.items():
            values[field_name] = _value_of(measurements.get(metric))
        if "predicted_s" in cls.__dataclass_fields__:
            # the first metric has the prediction: see add_to
            first_metric, _ = next(iter(metrics.values()))
            values["predicted_s"] = None
            if first_metric in measurements:
                values["predicted_s"] = measurements[first_metric].predicted
        return cls(interval, **values, **other_fields)


def _metrics_of(row: type[_Row]) -> dict[str, tuple[str, str]]:
    """Return metric and unit of each field that is recorded as a measurement."""
    return {f.name: f.metadata["metric"] for f in fields(row) if "metric" in f.metadata}


def _value_of(measurement: Measurement | None) -> float | None:
    """Return the value of a measurement; numbers and bytes are whole."""
    if measurement is None:
        return None
    if measurement.unit in ("1", "B"):
        return int(measurement.value)
    return measurement.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(_Row):
    """Allreduces of one size under one policy.

    `operations` counts all of them, `measured` those that count: others are for learning, or the first of a turn.
    `mean_s`, `p99_s` (None of fewer than 100): of an operation, from the first rank's start to the last one's end;
    `typical_s`: the mean of each turn's median, which one slow operation does not change. `shares` of the bytes that
    each rail carried, `rail_s` how long each took for them, from the last rank's start (0: nothing to do).
    `settled_after`: operations until the shares first stayed for a hundred (None: never; 0: from the first on).
    `wrong`: elements other than numpy's sum, of `checked`. `copied`: bytes copied in memory for a byte of the buffer.
    `predicted_s`: by the equations. `frames` of the part that a node sends in a step, and `credit_share` as of any
    measurement; neither is read back.
    """

    mean_s: float = _metric("completion_time", "s")
    typical_s: float = _metric("completion_time_typical", "s")
    p99_s: float | None = _metric("completion_time_p99", "s")
    size: int = _metric("buffer_size", "B")
    sent: int = _metric("sent_size", "B")
    operations: int = _metric("operations", "1")
    measured: int = _metric("operations_timed", "1")
    settled_after: int | None = _metric("operations_to_converge", "1")
    wrong: int = _metric("elements_wrong", "1")
    checked: int = _metric("elements_checked", "1")
    copied: float = _metric("bytes_copied_per_byte", "ratio")
    dilation: float = _metric("time_dilation", "ratio", default=1.0)
    shares: tuple[float, ...]
    rail_s: tuple[float, ...]
    predicted_s: float | None
    frames: float | None = None
    credit_share: float = 0.0

    @property
    def split(self) -> bool:
        """Use of more than one rail; a few operations that tried a split don't count."""
        return sum(share > MIN_SHARE for share in self.shares) > 1

    @property
    def relative_spread(self) -> float:
        """Time between the fastest and the slowest rail, over the slowest; 0 where only one worked."""
        # a rail without work took no time
        used = list(filter(None, self.rail_s))
        if len(used) < 2:
            return 0.0
        return (max(used) - min(used)) / max(used)

    def add_to(self, run: Run) -> None:
        """Add its measurements. A policy with channels in place of rails (`virtual`) has no shares by rail."""
        _Row.add_to(self, run)
        bits = 8 * self.size
        predicted_bps = None
        if self.predicted_s:
            predicted_bps = bits / self.predicted_s
        throughput = Measurement(self.interval, "", THROUGHPUT, bits / self.mean_s, "bit/s", predicted_bps)
        run.measurements.append(throughput)
        if self.policy == "virtual":
            return
        rails = rails_of_fabric(run.rows(RAILS), self.fabric)
        for values, metric, unit in ((self.shares, "share", "share"), (self.rail_s, "rail_time", "s")):
            for name, value in zip(rails.names, values, strict=False):
                run.measurements.append(Measurement(self.interval, "", f"{metric}_{name}", value, unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(_Row):
    """A rail that was taken from a node, or from all, while allreduces ran, and given back. ms are from the fault.

    `inside`: whether it fell into an operation, not between two. `detect_ms` until the first node knew, `migrate_ms`
    until the last one had its new tasks (None: never); `worst_s` the longest operation, `median_s` before the fault.
    `carried`: whether the rail carried something before; `home_ms` from the repair until it does again, None where it
    doesn't, or never had.
    """

    fault: str
    target: str
    t_fault: int
    t_repair: int
    detect_ms: float | None
    migrate_ms: float | None
    home_ms: float | None
    size: int = _metric("buffer_size", "B")
    inside: bool = _metric("fault_within_operation", "1")
    carried: bool = _metric("rail_used_before_fault", "1")
    median_s: float = _metric("operation_time_before_fault", "s")
    worst_s: float = _metric("operation_time_longest", "s")
    operations: int = _metric("operations", "1")
    wrong: int = _metric("elements_wrong", "1")
    checked: int = _metric("elements_checked", "1")
    error: str = ""

    @property
    def name(self) -> str:
        """Fault and target."""
        return f"{self.fault} {self.target}"

    def add_to(self, run: Run) -> None:
        """Add its recovery, its measurements, and the error that ended its operations early."""
        run.rows(RECOVERIES).append(
            Recovery(
                self.interval, self.fault, self.target, self.t_fault, self.t_repair,
                detect_ms=self.detect_ms, decided_ms=None, reroute_ms=self.migrate_ms, first_packet_ms=None,
                source_side_ms=None, far_side_ms=None, goodput_ms=None, goodput_after_repair_ms=None,
                primary_path_ms=self.home_ms if self.carried else 0.0,
                source_side_probed=0, far_side_probed=0, above_max_flow=0, lost_bytes=0, probes_lost=0,
                probes_lost_after_repair=0, connections_lost=0, recovered=Recovered.of(not self.error),
                has_streams=False,
            )
        )  # fmt: skip
        _Row.add_to(self, run)
        if self.error:
            detail = {**self.interval.as_dict(), "error": self.error}
            run.events.append(Event(self.t_fault, SOURCE, _FAILED, detail))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(_Row):
    """A training that was replayed: medians of `steps`; `bytes` a step and node. Its workload is its name."""

    step_s: float = _metric("iteration_time", "s")
    samples_per_s: float = _metric("samples_per_s", "1/s")  # of a node
    compute_s: float = _metric("compute_time", "s")
    bytes: int = _metric("sent_size", "B")
    steps: int = _metric("iterations", "1")
    dilation: float = _metric("time_dilation", "ratio", default=1.0)
    predicted_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpRun(_Row):
    """A network that PyTorch's DDP really trained, over Gloo and over Railyard's backend, from the same weights.

    Losses are means over the ranks, one for each step; `losses_apart` is the largest difference of any rank's and
    step's, over Gloo's. Times of a step are medians without the first. `bytes`: gradients of a step.
    """

    step_s: float = _metric("iteration_time", "s")
    bytes: int = _metric("gradient_size", "B")
    losses_apart: float = _metric("loss_difference", "share")
    losses: tuple[float, ...]
    gloo_losses: tuple[float, ...]
    gloo_step_s: float

    def add_to(self, run: Run) -> None:
        """Add its measurements, Gloo's in an interval of their own; a loss for each step."""
        gloo_interval = _beside_gloo(self.interval)
        run.measurements.append(Measurement(gloo_interval, "", "iteration_time", self.gloo_step_s, "s"))
        _Row.add_to(self, run)
        for interval, losses in ((gloo_interval, self.gloo_losses), (self.interval, self.losses)):
            for step, loss in enumerate(losses, start=1):
                run.measurements.append(Measurement(interval, f"step {step}", LOSS, loss, "ratio"))


def _beside_gloo(interval: IntervalId) -> IntervalId:
    """Return the interval in which Gloo trained the same network."""
    return replace(interval, policy="gloo", part=interval.policy)


def watched_interval(interval: IntervalId) -> IntervalId:
    """Return the interval that has the record of the machine's load: of Gloo's training, that of the DDP run."""
    if interval.policy == "gloo" and interval.part:
        return replace(interval, policy=interval.part, part="")
    return interval


@dataclass(frozen=True, slots=True)
class Skipped:
    """A policy that didn't run: something is missing on this machine, or (`failed`) it broke down."""

    fabric: str
    policy: str
    why: str
    failed: bool

    def add_to(self, run: Run, at_ns: int = 0) -> None:
        """Add its event, of now or `at_ns`; only once for a fabric, whatever the policy is missing from."""
        if asdict(self) not in _details(run.events, _SKIPPED):
            run.events.append(Event(at_ns or time.monotonic_ns(), SOURCE, _SKIPPED, asdict(self)))


@dataclass(frozen=True, slots=True)
class LostRails(Record):
    """Rails that a policy's processes lost at a size though no fault was injected.

    `kept`: the point has turns without them; else the turn is in no point, and whatever these processes hadn't ended
    yet was measured again.
    """

    rails: tuple[str, ...]
    kept: bool

    def add_to(self, run: Run, at_ns: int = 0) -> None:
        """Add its event, of now or `at_ns`."""
        detail = {**self.interval.as_dict(), "rails": list(self.rails), "kept": self.kept}
        run.events.append(Event(at_ns or time.monotonic_ns(), SOURCE, _LOST, detail))


def lost_rails(events: Iterable[Event]) -> list[LostRails]:
    """Return the rails that were lost without a fault."""
    details = _details(events, _LOST)
    return [LostRails(IntervalId.of(detail), tuple(detail["rails"]), detail["kept"]) for detail in details]


def _details(events: Iterable[Event], event_name: str) -> list[dict[str, Any]]:
    """Return the details of the allreduces' events of a name."""
    return [event.detail for event in events if (event.source, event.what) == (SOURCE, event_name)]


@dataclass
class AllreduceResults:
    """Everything that a run recorded of allreduces on several rails; empty in a run of anything else."""

    fabrics: list[Rails] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    rates: list[GoodputTrace] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    ddp_runs: list[DdpRun] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    lost: list[LostRails] = field(default_factory=list)
    left_out: list[Point] = field(default_factory=list)
    """Points that `without` removed: the largest size of a fabric stays the largest one that was measured."""

    def __bool__(self) -> bool:
        return bool(self.fabrics)

    def without(self, intervals: Collection[IntervalId]) -> "AllreduceResults":
        """Return what was measured in other intervals."""

        def in_other_intervals(rows: Sequence[R]) -> list[R]:
            return [row for row in rows if row.interval not in intervals]

        left_out = [point for point in self.points if point.interval in intervals]
        return replace(
            self,
            points=in_other_intervals(self.points),
            cuts=in_other_intervals(self.cuts),
            trainings=in_other_intervals(self.trainings),
            ddp_runs=in_other_intervals(self.ddp_runs),
            left_out=self.left_out + left_out,
        )

    @classmethod
    def of(cls, run: Run) -> "AllreduceResults":
        """Read the rows of a run."""
        if not run.rows(RAILS):
            return cls()
        metrics: defaultdict[IntervalId, dict[str, Measurement]] = defaultdict(dict)
        losses: defaultdict[IntervalId, list[float]] = defaultdict(list)
        for measurement in run.measurements:
            if measurement.metric == LOSS:
                losses[measurement.interval].append(measurement.value)
            else:
                metrics[measurement.interval][measurement.metric] = measurement
        results = cls(
            fabrics=run.rows(RAILS),
            rates=[trace for trace in run.rows(GOODPUT) if trace.link],
            skipped=[Skipped(**detail) for detail in _details(run.events, _SKIPPED)],
            lost=lost_rails(run.events),
            cuts=_cuts(run, metrics),
        )
        fault_intervals = {recovery.interval for recovery in run.rows(RECOVERIES)}
        for interval, values in metrics.items():
            if interval in fault_intervals:
                continue
            if "buffer_size" in values:
                rails = rails_of_fabric(run.rows(RAILS), interval.fabric)
                results.points.append(_point(interval, values, rails))
            elif "samples_per_s" in values:
                results.trainings.append(Training.read(interval, values))
            elif "loss_difference" in values:
                gloo_interval = _beside_gloo(interval)
                ddp_run = DdpRun.read(
                    interval,
                    values,
                    gloo_losses=tuple(losses[gloo_interval]),
                    losses=tuple(losses[interval]),
                    gloo_step_s=metrics[gloo_interval]["iteration_time"].value,
                )
                results.ddp_runs.append(ddp_run)
        return results


def _cuts(run: Run, metrics: Mapping[IntervalId, Mapping[str, Measurement]]) -> list[Cut]:
    """Return a row for each fault. `metrics`: the measurements of each interval by metric."""
    errors = {IntervalId.of(detail): detail["error"] for detail in _details(run.events, _FAILED)}
    cuts: list[Cut] = []
    for recovery in run.rows(RECOVERIES):
        cut = Cut.read(
            recovery.interval,
            metrics.get(recovery.interval, {}),
            fault=recovery.fault,
            target=recovery.target,
            t_fault=recovery.t_fault,
            t_repair=recovery.t_repair,
            detect_ms=recovery.detect_ms,
            migrate_ms=recovery.reroute_ms,
            home_ms=recovery.primary_path_ms,
            error=errors.get(recovery.interval, ""),
        )
        if not cut.carried:
            cut = replace(cut, home_ms=None)
        cuts.append(cut)
    return cuts


def _point(interval: IntervalId, metrics: Mapping[str, Measurement], fabric: Rails) -> Point:
    """Return the row of a buffer size, with the shares and times of the fabric's rails that were measured."""
    shares: list[float] = []
    times_s: list[float] = []
    for rail in fabric.names:
        # an engine without rails of its own has neither
        if f"share_{rail}" in metrics:
            shares.append(metrics[f"share_{rail}"].value)
            times_s.append(metrics[f"rail_time_{rail}"].value)
    return Point.read(interval, metrics, shares=tuple(shares), rail_s=tuple(times_s))


def allreduce_interval(
    fabric: str, policy: str, size: int, repeat: int = 0, fault: str = "", target: str = ""
) -> IntervalId:
    """Return the identity of the interval in which a size was measured, or a fault injected meanwhile."""
    return IntervalId(fabric, f"allreduce {size_name(size)}", policy, repeat=repeat, part=f"{fault} {target}".strip())
