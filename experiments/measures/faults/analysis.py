"""Recovery from faults: repeats together by kind, target and fabric, and repeats of failure scripts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

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
FROM_REPAIR: Final = ("goodput_after_repair_ms", "primary_path_ms")  # the others count from the fault
_TOGETHER_NS: Final = 50_000_000  # acts so near each other are one
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
        return all(r.is_unaffected for r in self.repeats)

    def unfallen(self, step: str) -> int:
        """Return in how many repeats goodput never fell: after the fault, or after the repair."""
        return sum(getattr(r, step) == 0 for r in self.repeats)

    def recovered(self, state: Recovered) -> int:
        """Return in how many repeats the recovery had this outcome."""
        return sum(r.recovered is state for r in self.repeats)

    @property
    def unprobed(self) -> bool:
        """True if no probed pair was affected, so that nothing is known of first packets."""
        return not any(r.is_probed for r in self.repeats)

    @cached_property
    def steps(self) -> dict[str, Figure]:
        """Statistics by column of recovery.csv, in ms; of goodput without the repeats in which it never fell."""
        by_step = {}
        for step in STEPS:
            times_ms = [getattr(r, step) for r in self.repeats]
            if step in GOODPUT_STEPS:
                times_ms = [ms for ms in times_ms if ms != 0]
            by_step[step] = figure(times_ms)
        return {step: statistics for step, statistics in by_step.items() if statistics}

    @cached_property
    def sides(self) -> dict[Side, Figure]:
        """Statistics of first packets (ms) by side of the fault; only sides of which pairs were probed."""
        return {side: found for side in SIDES if (found := figure(side_values(self.repeats, side)))}

    def total(self, column: str) -> int:
        """Return the sum of a column of recovery.csv over the repeats."""
        return sum(getattr(r, column) for r in self.repeats)


def fault_name(fault: str, target: str, is_one_of_several: bool) -> str:
    """Return the name of a fault that came alone."""
    return f"{fault} {target}" if is_one_of_several else fault


def with_several_targets(records: Iterable[Recovery | GoodputTrace]) -> frozenset[tuple[str, str]]:
    """Return (fabric, as recorded, and kind of fault) wherever it has more than one target."""
    targets = Counter((fabric, fault) for fabric, fault, _ in {(t.fabric, t.fault, t.target) for t in records})
    return frozenset(sort_key for sort_key, count in targets.items() if count > 1)


def side_values(repeats: Sequence[Recovery], side: Side) -> list[float | None]:
    """Return the times until packets flowed on a side (ms, None: never), of repeats in which it was probed."""
    return [getattr(r, f"{side}_side_ms") for r in repeats if pairs_probed(r, side)]


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
    alone = [r for r in run.rows(RECOVERIES) if r.reroute and not r.script]
    several = with_several_targets(alone)
    rows = []
    for key, repeats in grouped(alone, "fabric", "policy", "fault", "target", "reroute").items():
        fabric, policy, fault, target, reroute = key
        what = (names[fabric, policy], fault, target, reroute)
        rows.append(RecoveryRow(*what, tuple(repeats), (fabric, fault) in several))
    faults = [r.fault for r in alone]
    targets = [r.target for r in alone]
    fabrics = list(names.values())
    rows.sort(
        key=lambda r: (faults.index(r.fault), fabrics.index(r.fabric), targets.index(r.target), r.reroute != "on")
    )
    return tuple(rows)


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
        return tuple(
            r
            for r in self.faults
            if traffic_returns(r)
            and not any(other.t_fault <= r.t_repair + _TOGETHER_NS < other.t_repair for other in self.faults)
        )

    @property
    def probes_lost_after_repair(self) -> int:
        """Probes lost while traffic returned from faults that were repaired alone."""
        return sum(r.probes_lost_after_repair for r in self.repaired_alone)

    @property
    def lost_bytes(self) -> int:
        """Each fault's record has what the whole script lost."""
        return max((r.lost_bytes for r in self.faults), default=0)


def traffic_returns(recovery: Recovery) -> bool:
    """Return True if traffic was rerouted and returns; else a loss after the repair is due to the fault itself."""
    return recovery.first_packet_ms is not None and definition_of(recovery.fault).is_rerouted


def checks_text(connectivity_checks: Sequence[ConnectivityCheck]) -> str:
    """Return `73 of 86 done, all match` or `73 of 86 done, 71 match`."""
    taken = [c for c in connectivity_checks if c.done]
    matched = sum(not c.mismatch_count for c in taken)
    result_text = "all match" if matched == len(taken) else f"{matched} match"
    return f"{len(taken)} of {len(connectivity_checks)} done" + (f", {result_text}" if taken else "")


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
    faults = grouped(sorted(run.rows(RECOVERIES), key=lambda r: r.t_fault), "interval")
    checks = grouped(sorted(run.rows(CONNECTIVITY_CHECKS), key=lambda c: c.monotonic_ns), "interval")
    goodput = grouped(run.rows(GOODPUT), "interval")
    return tuple(
        ScriptRow(
            replace(i, fabric=names.get((i.fabric, i.policy), i.fabric)),
            *(tuple(faults.get(i, ())), tuple(checks.get(i, ())), tuple(goodput.get(i, ()))),
        )
        for i in dict.fromkeys(r.interval for r in records if r.script)
    )


def verdict(recoveries: Iterable[Recovery], judgement: Judgement) -> Verdict:
    """Return the worst verdict of the intervals in which these faults were injected."""
    return worst_verdict(judgement.intervals.get(r.interval, "ok") for r in recoveries)


def compared_values(run: Run) -> Iterator[ComparedValue]:
    """Yield the time of each step of each recovery, ms, for comparisons of runs."""
    for recovery in run.rows(RECOVERIES):
        phase = "" if recovery.interval.part else f"{recovery.fault} {recovery.target}"
        for step in STEPS:
            yield ComparedValue(recovery.interval, phase, step, "ms", getattr(recovery, step))
