"""Recovery from faults: repeats together by kind, target and fabric, and repeats of failure scripts."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, Literal

from railyard.core.records import ConnectivityCheck, Record, Recovered, Recovery
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import HEARTBEATS, Row, grouped, labels
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.repeats import Figure, figure
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.measured import ComparedValue
from railyard.results.runs.records import GoodputTrace, Run, Verdict, worst_verdict

Side = Literal["source", "far"]
SIDES: Final[tuple[Side, ...]] = ("source", "far")
# Other steps count from the fault.
FROM_REPAIR: Final = ("goodput_after_repair_ms", "primary_path_ms")
# injections and repairs so near each other count as simultaneous
_TOGETHER_NS: Final = 50_000_000
STEP_NAMES: Final = {
    "detect_ms": "detected",
    "decided_ms": "decided",
    "reroute_ms": "installed",
    "first_packet_ms": "first packet",
    "source_side_ms": "first packet, source side",
    "far_side_ms": "first packet, far side",
    "goodput_ms": "goodput back",
    "goodput_after_repair_ms": "goodput after repair",
    "primary_path_ms": "detours withdrawn",
}
GOODPUT_STEPS: Final = ("goodput_ms", "goodput_after_repair_ms")
STEPS: Final = tuple(step for step in STEP_NAMES if "_side_" not in step)


@dataclass(frozen=True)
class RecoveryRow:
    """The repeats of one kind of fault at one target, on one fabric (by its label in tables)."""

    fabric: str
    fault: str
    target: str
    reroute: str
    repeats: tuple[Recovery, ...]
    is_one_of_several: bool  # targets of this kind on this fabric

    @property
    def name(self) -> str:
        """The kind of fault, with its target where a fabric has several of that kind."""
        return fault_name(self.fault, self.target, self.is_one_of_several)

    @property
    def unaffected(self) -> bool:
        """True if no other GPU was cut off, such as by a crash of a GPU that forwards no other's traffic."""
        return all(repeat.is_unaffected for repeat in self.repeats)

    @property
    def goodput_share(self) -> float:
        """The share of the goodput before the fault from which on it counts as back."""
        return min(repeat.goodput_share for repeat in self.repeats)

    def unfallen(self, step: str) -> int:
        """Return in how many repeats goodput never fell: after the fault, or after the repair."""
        return self.values(step).count(0)

    def recovered(self, state: Recovered) -> int:
        """Return in how many repeats the recovery had this outcome."""
        return self.values("recovered").count(state)

    @property
    def unprobed(self) -> bool:
        """True if no probed pair was affected, so that nothing is known of first packets."""
        return not any(repeat.is_probed for repeat in self.repeats)

    @cached_property
    def steps(self) -> dict[str, Figure]:
        """Statistics by column of recovery.csv, in ms; of goodput without the repeats in which it never fell."""
        statistics_by_step: dict[str, Figure] = {}
        for step in STEPS:
            times_ms = self.values(step)
            if step in GOODPUT_STEPS:
                times_ms = [ms for ms in times_ms if ms != 0]
            statistics = figure(times_ms)
            if statistics:
                statistics_by_step[step] = statistics
        return statistics_by_step

    @cached_property
    def sides(self) -> dict[Side, Figure]:
        """Statistics of first packets (ms) by side of the fault; only sides of which pairs were probed."""
        statistics_by_side: dict[Side, Figure] = {}
        for side in SIDES:
            statistics = figure(side_values(self.repeats, side))
            if statistics:
                statistics_by_side[side] = statistics
        return statistics_by_side

    def values(self, column: str) -> list[Any]:
        """Return a column of recovery.csv, a value for each repeat."""
        return [getattr(repeat, column) for repeat in self.repeats]

    def total(self, column: str) -> int:
        """Return the sum of a column of recovery.csv over the repeats."""
        return sum(self.values(column))


def fault_name(fault: str, target: str, is_one_of_several: bool) -> str:
    """Return the name of a fault that came alone."""
    if is_one_of_several:
        return f"{fault} {target}"
    return fault


def with_several_targets(records: Iterable[Recovery | GoodputTrace]) -> frozenset[tuple[str, str]]:
    """Return (fabric, as recorded, and kind of fault) wherever it has more than one target."""
    targets: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for record in records:
        targets[record.fabric, record.fault].add(record.target)
    return frozenset(fault for fault in targets if len(targets[fault]) > 1)


def side_values(repeats: Sequence[Recovery], side: Side) -> list[float | None]:
    """Return the times until packets flowed on a side (ms, None: never), of repeats in which it was probed."""
    probed = [repeat for repeat in repeats if pairs_probed(repeat, side)]
    return [getattr(repeat, f"{side}_side_ms") for repeat in probed]


def pairs_probed(recovery: Recovery, *sides: Side) -> int:
    """Return the number of probed pairs on these sides, or on either."""
    return sum(getattr(recovery, f"{side}_side_probed") for side in sides or SIDES)


def recovery_rows(analysis: Analysis) -> tuple[RecoveryRow, ...]:
    """Return the rows of a run's faults that came alone, computed once."""
    return analysis.derived(_recovery_rows)


def _recovery_rows(analysis: Analysis) -> tuple[RecoveryRow, ...]:
    return rows_of_faults(analysis.run)


def rows_of_faults(run: Run) -> tuple[RecoveryRow, ...]:
    """Return faults that came alone, repeats together: all of a kind next to each other, reroute on before off.

    Faults from which allreduces recover without a controller are not among them.
    """
    names = labels(run)
    # a recovery without a mode of rerouting is one of allreduces
    alone = [recovery for recovery in run.rows(RECOVERIES) if recovery.reroute and not recovery.script]
    several = with_several_targets(alone)
    rows = []
    for key, repeats in grouped(alone, "fabric", "policy", "fault", "target", "reroute").items():
        fabric, policy, fault, target, reroute = key
        is_one_of_several = (fabric, fault) in several
        row = RecoveryRow(names[fabric, policy], fault, target, reroute, tuple(repeats), is_one_of_several)
        rows.append(row)
    faults = [recovery.fault for recovery in alone]
    targets = [recovery.target for recovery in alone]
    fabrics = list(names.values())

    def order(row: RecoveryRow) -> tuple[int, int, int, bool]:
        fabric = fabrics.index(row.fabric)
        return faults.index(row.fault), fabric, targets.index(row.target), row.reroute != "on"

    return tuple(sorted(rows, key=order))


@dataclass(frozen=True)
class ScriptRow(Record):
    """One repeat of a failure script on a fabric (by its label in tables): faults and checks in the order of time.

    Random faults have another seed, and so other faults, in every repeat.
    """

    faults: tuple[Recovery, ...]
    connectivity_checks: tuple[ConnectivityCheck, ...]
    goodput: tuple[GoodputTrace, ...]

    @property
    def repaired_alone(self) -> tuple[Recovery, ...]:
        """Faults from which traffic returned while no other was active: only their losses count."""
        return tuple(fault for fault in self.faults if traffic_returns(fault) and self._is_repaired_last(fault))

    def _is_repaired_last(self, fault: Recovery) -> bool:
        """Return whether no other fault is active just after a fault's repair."""
        after_repair_ns = fault.t_repair + _TOGETHER_NS
        return not any(other.t_fault <= after_repair_ns < other.t_repair for other in self.faults)

    @property
    def probes_lost_after_repair(self) -> int:
        """Probes lost while traffic returned from faults that were repaired alone."""
        return sum(fault.probes_lost_after_repair for fault in self.repaired_alone)

    @property
    def lost_bytes(self) -> int:
        """Bytes lost in the whole script."""
        # each fault's record has the bytes that the whole script lost, so they are not added up
        return max((fault.lost_bytes for fault in self.faults), default=0)


def traffic_returns(recovery: Recovery) -> bool:
    """Return True if traffic was rerouted and returns; else a loss after the repair is due to the fault itself."""
    return recovery.first_packet_ms is not None and definition_of(recovery.fault).is_rerouted


def checks_text(connectivity_checks: Sequence[ConnectivityCheck]) -> str:
    """Return `73 of 86 done, all match` or `73 of 86 done, 71 match`."""
    done = [check for check in connectivity_checks if check.done]
    text = f"{len(done)} of {len(connectivity_checks)} done"
    if not done:
        return text
    matching = matching_checks(done)
    if matching == len(done):
        return f"{text}, all match"
    return f"{text}, {matching} match"


def matching_checks(connectivity_checks: Iterable[ConnectivityCheck]) -> int:
    """Return the number of checks that were done and had the answers that the oracle expects."""
    return sum(check.done and not check.mismatch_count for check in connectivity_checks)


def failed_checks(run: Run) -> list[ConnectivityCheck]:
    """Return the connectivity checks of a run that had other answers than the oracle expects."""
    return [check for check in run.rows(CONNECTIVITY_CHECKS) if check.done and check.mismatch_count]


def script_rows(analysis: Analysis) -> tuple[ScriptRow, ...]:
    """Return the rows of a run's failure scripts, computed once."""
    return analysis.derived(_script_rows)


def _script_rows(analysis: Analysis) -> tuple[ScriptRow, ...]:
    return script_runs(analysis.run)


def heartbeat_rows(analysis: Analysis) -> tuple[Row, ...]:
    """Return the rows of the cost of heartbeats."""
    return tuple(row for row in analysis.rows if row.work.workload == HEARTBEATS)


def script_runs(run: Run) -> tuple[ScriptRow, ...]:
    """Return every repeat of every script, in the order in which they ran."""
    names = labels(run)
    records: list[Recovery | ConnectivityCheck] = [*run.rows(RECOVERIES), *run.rows(CONNECTIVITY_CHECKS)]
    faults = grouped(sorted(run.rows(RECOVERIES), key=attrgetter("t_fault")), "interval")
    checks = grouped(sorted(run.rows(CONNECTIVITY_CHECKS), key=attrgetter("monotonic_ns")), "interval")
    goodput = grouped(run.rows(GOODPUT), "interval")
    intervals = [record.interval for record in records if record.script]
    rows: list[ScriptRow] = []
    for interval in dict.fromkeys(intervals):
        row = ScriptRow(
            replace(interval, fabric=names.get((interval.fabric, interval.policy), interval.fabric)),
            tuple(faults.get(interval, ())),
            tuple(checks.get(interval, ())),
            tuple(goodput.get(interval, ())),
        )
        rows.append(row)
    return tuple(rows)


def verdict(recoveries: Iterable[Recovery], judgement: Judgement) -> Verdict:
    """Return the worst verdict of the intervals in which these faults were injected."""
    verdicts = [judgement.of_interval(recovery.interval) for recovery in recoveries]
    return worst_verdict(verdicts)


def compared_values(run: Run) -> Iterator[ComparedValue]:
    """Yield the time of each step of each recovery, ms, for comparisons of runs."""
    for recovery in run.rows(RECOVERIES):
        # the part of an interval names its fault already
        phase = ""
        if not recovery.interval.part:
            phase = f"{recovery.fault} {recovery.target}"
        for step in STEPS:
            yield ComparedValue(recovery.interval, phase, step, "ms", getattr(recovery, step))
