"""Targets of what a run measures, and whether it met them: each is met, missed, or was not measured.

The targets of recovery stand here; those of measures beside the functions that measure them. The times of recovery are
Railyard's own: no paper gives any. Rail-only IV-C and Spine-free Networks, "Fault Tolerance", leave what a dead link or
switch served unavailable until the repair.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf
from typing import Any, Final, NamedTuple

from railyard.core.records import IntervalId, Recovered, Recovery
from railyard.failure.faults import FAULTS, definition_of, fault_kinds
from railyard.results import format as fmt
from railyard.results.analysis import recovery as stats
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.recovery import Figure, RecoveryRow, ScriptRow, Side
from railyard.results.runs.records import Verdict, worst_verdict

MAX_RETURN_MS: Final = 500
_STATISTICS: Final = ("median", "p95", "most", "least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A quantity and its limits, in `unit`: upper ones of `median`, `p95` and `most`, and a lower one of `least`.

    `source`: who states it, or what the time consists of. `claim`: the check that fails where a run misses the target;
    those without are of speed, which a slower machine may miss. `goal`: what we want beyond; nothing is judged by it.
    """

    quantity: str
    unit: str = "ms"
    source: str = ""
    claim: str = ""
    median: float | None = None
    p95: float | None = None
    most: float | None = None
    least: float | None = None
    goal: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Statistic over the repeats -> its limit."""
        return {name: limit for name in _STATISTICS if (limit := getattr(self, name)) is not None}

    def missed(self, found: Figure) -> list[str]:
        """Return the statistics that don't keep their limits; of few repeats the 95th percentile isn't judged."""
        values = {name: getattr(found, name) for name in self.limits if name != "p95" or found.has_p95}
        return [
            name
            for name, value in values.items()
            if value is None or (value < self.limits[name] if name == "least" else value > self.limits[name])
        ]

    def text(self, value: float | None) -> str:
        """Return a value in its unit as people read it."""
        if value is None:
            return "never"
        if self.unit == "share":
            return fmt.percent(value, 1 if value >= 0.005 else 3)
        shown = {"times": fmt.times, "ms": fmt.milliseconds, "probes": "{:,.0f}\u00a0probes".format}.get(self.unit)
        return shown(value) if shown else f"{value:,.0f}"

    @property
    def limits_text(self) -> str:
        """`5 / 20 ms`, `95.0%`, `0 probes`: all limits."""
        if self.unit != "ms":
            return " / ".join(map(self.text, self.limits.values()))
        return " / ".join(f"{limit:,g}" for limit in self.limits.values()) + "\u00a0ms"


class Sample(NamedTuple):
    """A measured value (None: never), `of` what it is, in which interval, and the number of probed pairs."""

    value: float | None
    of: str
    interval: IntervalId
    pairs: int = 0


@dataclass(frozen=True)
class Outcome:
    """A target, and what was measured of it on a fabric (by its label); no samples where nothing was.

    `part`: the target of the fault, where that fabric had several of the kind. `not_judged`: how many samples were left
    out, since the machine was disturbed in their intervals. `verdict`: the worst of the other samples' intervals.
    """

    target: Target
    fabric: str = ""
    part: str = ""
    samples: tuple[Sample, ...] = ()
    not_judged: int = 0
    verdict: Verdict = "ok"

    @property
    def name(self) -> str:
        """The quantity, and the target of the fault where there were several."""
        return f"{self.target.quantity}, {self.part}" if self.part else self.target.quantity

    @property
    def values(self) -> tuple[float | None, ...]:
        """Values of the samples."""
        return tuple(sample.value for sample in self.samples)

    @cached_property
    def figure(self) -> Figure | None:
        """Statistics of the values; None where nothing was measured."""
        return stats.figure(self.values)

    @property
    def met(self) -> bool | None:
        """Its result; None where nothing was measured."""
        return not self.target.missed(self.figure) if self.figure else None

    @property
    def statistic(self) -> str:
        """The first statistic that misses its limit, or else the first one that has a limit."""
        return next(iter((self.figure and self.target.missed(self.figure)) or self.target.limits))

    @property
    def value(self) -> float | None:
        """The value of `statistic`; None where it never came, or nothing was measured."""
        return getattr(self.figure, self.statistic) if self.figure else None

    @property
    def worst(self) -> Sample:
        """The sample that is furthest from the target; one of nothing where nothing was measured."""
        nothing = Sample(None, "", IntervalId())  # what has a lower limit has one sample
        return max(self.samples, key=lambda sample: inf if sample.value is None else sample.value, default=nothing)

    @property
    def text(self) -> str:
        """The measured value: median and 95th percentile (of few repeats the former alone), or the only statistic."""
        if self.figure is None:
            return f"not judged ({self.not_judged}), the machine was disturbed" if self.not_judged else fmt.NOTHING
        if self.target.median is not None and self.figure.has_p95:
            return stats.median_p95_ms(self.figure, "\u00a0ms")
        return self.target.text(getattr(self.figure, next(iter(self.target.limits))))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json: `value` and `limit` are of `statistic`."""
        target = self.target
        return {
            "quantity": target.quantity,
            "comparison": "at most" if target.least is None else "at least",
            "value": self.value,
            "limit": target.limits[self.statistic],
            "unit": target.unit,
            "interval": self.worst.interval.as_dict() if self.samples else None,
            "what": target.quantity,
            "fabric": self.fabric or None,
            "target": self.part or None,
            "limits": target.limits,
            "measured": {**self.figure.as_dict(), "most": self.figure.most} if self.figure else None,
            "worst": self.worst.of or None,
            "of": self.worst.of,
            "required": bool(target.claim),
            "source": target.source,
            "goal": target.goal,
            "met": self.met,
            "not_judged": self.not_judged,
            "verdict": self.verdict,
        }


def first_packet_targets() -> dict[tuple[str, Side | None], Target]:
    """Return the targets to the first packet that fault kinds state, by kind and side (None: whichever is slower)."""
    return {
        (kind, t.side): Target(quantity=t.what, median=t.median_ms, p95=t.p95_ms, source=t.why)
        for kind in fault_kinds()
        for t in FAULTS[kind].first_packet_targets
    }


def first_packet_target(fault: str, side: Side | None) -> Target | None:
    """Return a fault's target for the first packet; `side` None where it is the same for both."""
    targets = first_packet_targets()
    return targets.get((fault, side)) or targets.get((fault, None))


NO_LOSS_WITHOUT_CONTROLLER: Final = Target(
    quantity="controller crash, probes lost",
    unit="probes",
    most=0,
    claim="a controller crash loses no packet",
    source="the data plane goes on without it",
)
RECOVERY_AFTER_CONTROLLER_RESTART: Final = Target(
    quantity="fault while the controller is away, far side, from when it listens again",
    most=MAX_RETURN_MS,
    source="its connections, the states of switch ports and heartbeats; its start isn't in it",
)
SOURCE_SIDE_WITHOUT_CONTROLLER: Final = Target(
    quantity="link down while the controller is away, source side",
    median=5,
    p95=20,
    source="the kernel's own backup route: no controller",
)
TRAFFIC_RESTORED: Final = Target(
    quantity="traffic back on its best path",
    most=1000,
    source="from the repair until the last detour is withdrawn and goodput is back, whichever is later",
)
NO_LOSS_ON_RETURN: Final = Target(
    quantity="probes lost after repair",
    unit="probes",
    most=0,
    claim="no packet is lost while traffic returns",
    source="traffic moves back to what forwards already",
)
Found = Iterator[tuple[str, str, Sample]]
"""Samples with their fabric, and the fault's target where the fabric had several of that kind."""


def recovery_outcomes(
    rows: Sequence[RecoveryRow],
    scripts: Sequence[ScriptRow],
    judgement: Judgement,
) -> tuple[Outcome, ...]:
    """Return every target of recovery from faults, of those with rerouting on."""
    rows = [row for row in rows if row.reroute == "on"]
    alone = [(row.fabric, r) for row in sorted(rows, key=lambda row: row.fabric) for r in row.repeats]
    in_scripts = [(script.fabric, r) for script in scripts if script.reroute == "on" for r in script.repaired_alone]
    returned = [*(found for found in alone if stats.traffic_returns(found[1])), *in_scripts]
    moved = [(fabric, r) for fabric, r in alone if not (r.recovered is Recovered.UNAFFECTED and _restored_ms(r) == 0)]
    crashes = ((fabric, r) for fabric, r in alone if definition_of(r.fault).stops_controller)
    measured: list[tuple[Target, Found]] = [
        *((target, _first_packets(rows, *key)) for key, target in first_packet_targets().items()),
        (NO_LOSS_WITHOUT_CONTROLLER, ((fabric, "", _sample(r.probes_lost, r)) for fabric, r in crashes)),
        (RECOVERY_AFTER_CONTROLLER_RESTART, _without_controller(scripts, "far")),
        (SOURCE_SIDE_WITHOUT_CONTROLLER, _without_controller(scripts, "source")),
        (TRAFFIC_RESTORED, ((fabric, "", _sample(_restored_ms(r), r)) for fabric, r in moved)),
        (NO_LOSS_ON_RETURN, ((fabric, "", _sample(r.probes_lost_after_repair, r)) for fabric, r in returned)),
    ]
    outcomes: list[Outcome] = []
    for target, samples in measured:
        outcomes += outcomes_of(target, samples, judgement)
    return tuple(outcomes)


def outcomes_of(target: Target, samples: Found, judgement: Judgement) -> list[Outcome]:
    """Return a target for each fabric, and part of it, on which it was measured; else once, without samples.

    Samples of disturbed intervals are not judged; the others have the verdicts of theirs.
    """
    places: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
    for fabric, part, sample in samples:
        places[fabric, part].append(sample)
    outcomes: list[Outcome] = []
    for (fabric, part), in_place in places.items():
        judged = tuple(sample for sample in in_place if sample.interval not in judgement.disturbed)
        verdict = worst_verdict(judgement.intervals.get(sample.interval, "ok") for sample in judged)
        outcomes.append(Outcome(target, fabric, part, judged, len(in_place) - len(judged), verdict))
    return outcomes or [Outcome(target)]


def outcomes_by_fabric(target: Target, samples: Iterable[Sample], judgement: Judgement) -> list[Outcome]:
    """Return a target for each fabric that its samples are of, by the samples' intervals."""
    placed = [(sample.interval.fabric, "", sample) for sample in samples]
    return [outcome for outcome in outcomes_of(target, iter(placed), judgement) if outcome.fabric]


def _first_packets(rows: Sequence[RecoveryRow], fault: str, side: Side | None) -> Found:
    """Yield samples of faults that affected another GPU: of the others there was nothing to recover."""
    for row in rows:
        if row.fault == fault and not row.unaffected:
            for r in row.repeats:
                if stats.pairs_probed(r, side) if side else r.is_probed:
                    value = getattr(r, f"{side}_side_ms") if side else r.first_packet_ms
                    yield row.fabric, row.target if row.is_one_of_several else "", _sample(value, r)


def _restored_ms(recovery: Recovery) -> float | None:
    """Return the later of goodput and the withdrawal of detours: a detour that stays may carry all goodput.

    Faults of the control plane move no traffic, so their goodput varies with the machine's load alone.
    """
    if definition_of(recovery.fault).is_control_plane:
        return recovery.primary_path_ms
    if recovery.goodput_after_repair_ms is None or recovery.primary_path_ms is None:
        return None
    return max(recovery.goodput_after_repair_ms, recovery.primary_path_ms)


def _without_controller(scripts: Sequence[ScriptRow], side: Side) -> Found:
    """Yield samples of faults in scripts while the controller was down, of sides with probed pairs.

    Far: ms from its restart, 0 if before that, of faults that were repaired long enough after it. Source: ms from the
    fault, of links that went down, since the kernel doesn't notice a silent one.
    """
    for script in scripts:
        stops = {r: definition_of(r.fault).stops_controller for r in script.faults}
        outages = [r for r in script.faults if stops[r] and r.reroute == "on"]
        faults = [r for r in script.faults if not stops[r] and stats.pairs_probed(r, side)]
        for outage, r in product(outages, faults):
            if not outage.t_fault <= r.t_fault < outage.t_repair:
                continue
            value = getattr(r, f"{side}_side_ms")
            targets = definition_of(r.fault).first_packet_targets
            if side == "far" and value is not None:
                value = max(0.0, value + (r.t_fault - outage.t_repair) / 1e6)
            is_long = r.t_repair > outage.t_repair + MAX_RETURN_MS * 10**6
            if is_long if side == "far" else any(target.side == "source" for target in targets):
                yield script.fabric, "", _sample(value, r)


def _sample(value: float | None, r: Recovery) -> Sample:
    what = f"{r.script} {r.fault} {r.target}, repeat {r.repeat}".lstrip()
    return Sample(value, what, r.interval, stats.pairs_probed(r))


def measured_targets(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the targets of which anything was measured: the rows of tables, and those that are counted."""
    return [o for o in outcomes if o.samples or o.not_judged]


def missed_targets(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the targets that were missed, by name and fabric; those with a claim are checks, and not among them."""
    return [f"{o.name}, on {o.fabric}" for o in outcomes if o.met is False and not o.target.claim]


class Published(NamedTuple):
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
