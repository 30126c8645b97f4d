"""Recovery targets, in one place, and whether a run met them: each is met, missed, or was not measured.

The times are Railyard's own: no paper gives any. Rail-only IV-C and Spine-free Networks, "Fault Tolerance", leave what
a dead link or switch served unavailable until the repair. Each target's `why` says what the time consists of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from math import inf, isfinite
from typing import Any, Final, Literal, NamedTuple

from railyard.core.records import IntervalId, Recovery
from railyard.failure.faults import FAULTS, definition_of, fault_kinds
from railyard.results.analysis.aggregate import labels
from railyard.results.analysis.recovery import (
    Figure,
    RecoveryRow,
    ScriptRow,
    Side,
    figure,
    is_probed,
    median_p95_text,
    pairs_probed,
    probed_on,
    traffic_returns,
)
from railyard.results.runs.records import Run
from railyard.results.views.format import NOTHING, milliseconds

Unit = Literal["ms", "probes"]
MAX_RETURN_MS: Final = 500
MAX_RESTORE_MS: Final = 1000


class Sample(NamedTuple):
    """Measured value (None: never), its fault, and the number of probed pairs."""

    value: float | None
    what: str
    interval: IntervalId
    pairs: int = 0


SamplesByFabric = dict[tuple[str, str], list[Sample]]
"""By fabric, and by target where a fabric had several of that kind: else empty."""


@dataclass(frozen=True, slots=True)
class RecoveryTarget:
    """No more than `median`, and 95 of 100 no more than `p95`, if the repeats tell that; or none more than `most`. In
    `unit`.
    """

    what: str
    why: str
    median: float = inf
    p95: float = inf
    most: float = inf
    unit: Unit = "ms"

    def allows(self, found: Figure) -> bool:
        """Return True if all repeats of one fabric meet it."""
        p95 = found.p95 if found.has_p95 else 0.0
        return (
            _or_infinite(found.median) <= self.median
            and _or_infinite(p95) <= self.p95
            and _or_infinite(found.most) <= self.most
        )


@dataclass(frozen=True)
class Outcome:
    """A target on a fabric, with what was measured there; `met` is None, `fabric` empty, where nothing was.

    `target`: of the fault, where that fabric had several of the kind.
    """

    recovery_target: RecoveryTarget
    fabric: str
    target: str
    samples: tuple[Sample, ...]

    @property
    def values(self) -> tuple[float | None, ...]:
        """Values of the samples."""
        return tuple(sample.value for sample in self.samples)

    @property
    def name(self) -> str:
        """The quantity, and the target of the fault where there were several."""
        return f"{self.recovery_target.what}, {self.target}" if self.target else self.recovery_target.what

    @property
    def pairs(self) -> int:
        """Probed, over all that was measured."""
        return sum(sample.pairs for sample in self.samples)

    @property
    def met(self) -> bool | None:
        """Result; None where nothing was measured."""
        return self.recovery_target.allows(self.figure) if self.figure else None

    @property
    def worst_sample(self) -> Sample:
        """The sample that is furthest from the target; one of nothing where nothing was measured."""
        return max(self.samples, key=lambda sample: _or_infinite(sample.value), default=Sample(None, "", IntervalId()))

    @property
    def worst(self) -> str:
        """The fault that was furthest from the target; empty where nothing was measured."""
        return self.worst_sample.what

    @cached_property
    def figure(self) -> Figure | None:
        """Statistics of the values; None where nothing was measured."""
        return figure(self.values)

    @property
    def limits(self) -> dict[str, float]:
        """The limits of the target by statistic: median, p95, most."""
        found = {name: getattr(self.recovery_target, name) for name in ("median", "p95", "most")}
        return {name: limit for name, limit in found.items() if isfinite(limit)}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json: `value` and `limit` of a missed statistic, or the first."""
        values = {name: getattr(self.figure, name) for name in self.limits} if self.figure else {}
        missed = [n for n, value in values.items() if _or_infinite(value) > self.limits[n] and self.met is False]
        statistic = next(iter(missed or self.limits))
        return {
            "quantity": self.recovery_target.what,
            "value": values.get(statistic),
            "limit": self.limits[statistic],
            "unit": self.recovery_target.unit,
            "interval": self.worst_sample.interval.as_dict() if self.samples else None,
            "what": self.recovery_target.what,
            "fabric": self.fabric or None,
            "target": self.target or None,
            "limits": self.limits,
            "measured": {**self.figure.as_dict(), "most": self.figure.most} if self.figure else None,
            "worst": self.worst or None,
            "met": self.met,
        }


def first_packet_targets() -> dict[tuple[str, Side | None], RecoveryTarget]:
    """Return the targets to the first packet that fault kinds state, by kind and side (None: whichever is slower)."""
    return {
        (kind, target.side): RecoveryTarget(target.what, target.why, target.median_ms, target.p95_ms)
        for kind in fault_kinds()
        for target in FAULTS[kind].first_packet_targets
    }


NO_LOSS_WITHOUT_CONTROLLER: Final = RecoveryTarget(
    "controller crash, probes lost", "the data plane goes on without it", most=0, unit="probes"
)
RECOVERY_AFTER_CONTROLLER_RESTART: Final = RecoveryTarget(
    "fault while the controller is away, far side, from when it listens again",
    "its connections, the states of switch ports and heartbeats; its start isn't in it",
    most=MAX_RETURN_MS,
)
SOURCE_SIDE_WITHOUT_CONTROLLER: Final = RecoveryTarget(
    "link down while the controller is away, source side", "the kernel's own backup route: no controller", 5, 20
)
TRAFFIC_RESTORED: Final = RecoveryTarget(
    "traffic back on its best path",
    "from the repair until the last detour is withdrawn and goodput is back, whichever is later",
    most=MAX_RESTORE_MS,
)
NO_LOSS_ON_RETURN: Final = RecoveryTarget(
    "probes lost after repair", "traffic moves back to what forwards already", most=0, unit="probes"
)
REQUIRED_TARGETS: Final = (NO_LOSS_WITHOUT_CONTROLLER, NO_LOSS_ON_RETURN)
"""A run that misses one of these has failed: the rest are times, which a slower machine may miss."""
OPTICAL_REPLACEMENT: Final = RecoveryTarget(
    "optical replacement by an idle GPU, beyond the time its links are down",
    "a lost carrier, a decision, ports that an optical switch moves one by one, the spare's addresses and routes",
    most=50,
)


def is_first_packet_target(recovery_target: RecoveryTarget) -> bool:
    """Return True if tables of first packets show it beside them, fault by fault."""
    return recovery_target in first_packet_targets().values()


def first_packet_target(fault: str, side: Side | None) -> RecoveryTarget | None:
    """Return a fault's target for the first packet; `side` None where it is the same for both."""
    targets = first_packet_targets()
    return targets.get((fault, side)) or targets.get((fault, None))


def outcomes(run: Run, recovery_rows: Sequence[RecoveryRow], scripts: Sequence[ScriptRow]) -> tuple[Outcome, ...]:
    """Return every target, for each fabric on which it was measured with rerouting on; else once, without figures."""
    rows = [row for row in recovery_rows if row.reroute == "on"]
    crashes = [row for row in rows if _stops_controller(row)]
    measured = (
        *((target, _first_packet_samples(rows, *key)) for key, target in first_packet_targets().items()),
        (NO_LOSS_WITHOUT_CONTROLLER, _sample_repeats(crashes, lambda r: r.probes_lost)),
        (RECOVERY_AFTER_CONTROLLER_RESTART, _without_controller(scripts, "far")),
        (SOURCE_SIDE_WITHOUT_CONTROLLER, _without_controller(scripts, "source")),
        (TRAFFIC_RESTORED, _sample_repeats(rows, _restored_ms)),
        (NO_LOSS_ON_RETURN, _lost_on_return(rows, scripts)),
        (OPTICAL_REPLACEMENT, _replacements(run)),
    )
    return tuple(outcome for recovery_target, by_place in measured for outcome in _outcomes(recovery_target, by_place))


def _outcomes(recovery_target: RecoveryTarget, by_place: SamplesByFabric) -> Iterator[Outcome]:
    found = [Outcome(recovery_target, *place, tuple(samples)) for place, samples in by_place.items() if samples]
    yield from found or [Outcome(recovery_target, "", "", ())]


def _first_packet_samples(rows: Sequence[RecoveryRow], fault: str, side: Side | None) -> SamplesByFabric:
    """Return samples of faults that affected another GPU: of the others there was nothing to recover."""
    found: SamplesByFabric = {}
    for row in rows:
        if row.fault == fault and not row.unaffected:
            chosen = [r for r in row.repeats if (probed_on(r, side) if side else is_probed(r))]
            target = row.target if row.is_one_of_several else ""
            found[row.fabric, target] = [_sample(_first_ms(r, side), r) for r in chosen]
    return found


def _first_ms(recovery: Recovery, side: Side | None) -> float | None:
    return {"source": recovery.source_side_ms, "far": recovery.far_side_ms, None: recovery.first_packet_ms}[side]


def _stops_controller(row: RecoveryRow | Recovery) -> bool:
    return definition_of(row.fault).stops_controller


def _restored_ms(recovery: Recovery) -> float | None:
    """Return the later of goodput and the withdrawal of detours: a detour that stays may carry all goodput.

    Faults of the control plane move no traffic, so their goodput varies with the machine's load alone.
    """
    if definition_of(recovery.fault).is_control_plane:
        return recovery.primary_path_ms
    if recovery.goodput_after_repair_ms is None or recovery.primary_path_ms is None:
        return None
    return max(recovery.goodput_after_repair_ms, recovery.primary_path_ms)


def _lost_on_return(rows: Sequence[RecoveryRow], scripts: Sequence[ScriptRow]) -> SamplesByFabric:
    """Return samples of faults that came alone, and of those in scripts after whose repair nothing was broken."""
    returning = [replace(row, repeats=tuple(filter(traffic_returns, row.repeats))) for row in rows]
    found = _sample_repeats(returning, lambda r: r.probes_lost_after_repair)
    for script in scripts:
        if script.reroute == "on" and script.repaired_alone:
            samples = [_sample(r.probes_lost_after_repair, r) for r in script.repaired_alone]
            found.setdefault((script.fabric, ""), []).extend(samples)
    return found


def _sample_repeats(rows: Iterable[RecoveryRow], value: Callable[[Recovery], float | None]) -> SamplesByFabric:
    """Return a sample for every repeat of every row."""
    chosen = sorted(rows, key=lambda row: row.fabric)
    return {
        (fabric, ""): [_sample(value(r), r) for row in group for r in row.repeats]
        for fabric, group in groupby(chosen, key=lambda row: row.fabric)
    }


def _without_controller(scripts: Sequence[ScriptRow], side: Side) -> SamplesByFabric:
    """Return samples of faults in scripts while the controller was down, of sides with probed pairs.

    Far: ms from its restart, 0 if before that, of faults that were repaired long enough after it. Source: ms from the
    fault, of links that went down, since the kernel doesn't notice a silent one.
    """
    found: SamplesByFabric = {}
    for script in scripts:
        outages = [r for r in script.faults if _stops_controller(r) and r.reroute == "on"]
        faults = [r for r in script.faults if not _stops_controller(r) and probed_on(r, side)]
        for outage, r in product(outages, faults):
            if not outage.t_fault <= r.t_fault < outage.t_repair:
                continue
            value, targets = _first_ms(r, side), definition_of(r.fault).first_packet_targets
            if side == "far" and value is not None:
                value = max(0.0, value + (r.t_fault - outage.t_repair) / 1e6)
            is_long = r.t_repair > outage.t_repair + MAX_RETURN_MS * 10**6
            if is_long if side == "far" else any(target.side == "source" for target in targets):
                found.setdefault((script.fabric, ""), []).append(_sample(value, r))
    return found


def _replacements(run: Run) -> SamplesByFabric:
    """Return ms beyond the time of links that are down, where an idle GPU came in by optical switches."""
    names = labels(run)
    found: SamplesByFabric = {}
    for t in run.replacements:
        if (t.case, t.method) == ("idle-gpu", "optical"):
            fabric = names.get((t.fabric, t.policy), t.fabric)
            sample = Sample(t.replaced_ms - t.optical_links_down_ms, f"{t.failed}, repeat {t.repeat}", t.interval)
            found.setdefault((fabric, ""), []).append(sample)
    return found


def _sample(value: float | None, r: Recovery) -> Sample:
    what = f"{r.script} {r.fault} {r.target}, repeat {r.repeat}".lstrip()
    return Sample(value, what, r.interval, pairs_probed(r))


def _or_infinite(value: float | None) -> float:
    return inf if value is None else value


def target_text(recovery_target: RecoveryTarget | None) -> str:
    """`5 / 20 ms`, `1,000 ms`, `0 probes`."""
    limits = limits_text(recovery_target)
    return f"{limits}\u00a0{recovery_target.unit}" if recovery_target else limits


def limits_text(recovery_target: RecoveryTarget | None) -> str:
    """Return the same without the unit."""
    if recovery_target is None:
        return NOTHING
    limits = (recovery_target.median, recovery_target.p95, recovery_target.most)
    return " / ".join(f"{limit:,.0f}" for limit in limits if isfinite(limit))


def measured_text(outcome: Outcome) -> str:
    """Return the target's own figures: median and 95th percentile (of few repeats the former alone), or the worst."""
    found = outcome.figure
    if found is None:
        return NOTHING
    if isfinite(outcome.recovery_target.median):
        return median_p95_text(found) if found.has_p95 else milliseconds(found.median)
    probes = outcome.recovery_target.unit == "probes"
    return f"{found.most or 0:,.0f}\u00a0probes" if probes else milliseconds(found.most)


def missed_targets(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the recovery targets that were missed, by name and fabric; those that are checks aren't among them."""
    return [
        f"{o.name}, on {o.fabric}" for o in outcomes if o.met is False and o.recovery_target not in REQUIRED_TARGETS
    ]


# What others say of theirs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """Published time of another system, in ms, with its source."""

    name: str
    ms: float
    source: str


PUBLISHED_SYSTEMS: Final = (
    Published(
        "Nezha",
        200,
        "Nezha, 4.4 and abstract: from the detection of a NIC's failure until its tasks have moved to the other rails, "
        "on average, under 200 ms",
    ),
    Published(
        "NCCL",
        500,
        "NCCL, src/transport/net_ib/p2p_resiliency_recovery.cc: a failed NIC is tried again every 500 ms "
        "(NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL)",
    ),
)


def times_slower(other_system: Published, ms: float | None) -> float | None:
    """Return how many times as long the other takes; None where ours never came, or took no time."""
    return other_system.ms / ms if ms else None
