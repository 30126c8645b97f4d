"""Recovery from faults: repeats together by kind, target and fabric, failure scripts, statistics.

None is "never", and later than any time. The confidence intervals are of the percentile bootstrap (Efron and
Tibshirani, An Introduction to the Bootstrap, 13.3), not taken from scipy: its percentiles interpolate and its BCa
correction subtracts, and neither can be done with "never".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, inf
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from railyard.core.records import ConnectivityCheck, Record, Recovered, Recovery
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import grouped, labels
from railyard.results.analysis.fidelity import Judgement
from railyard.results.format import NOTHING, milliseconds
from railyard.results.runs.records import GoodputTrace, Run, Verdict, worst_verdict

MIN_REPEATS_FOR_MEDIAN: Final = 5  # of fewer, an interval would be no more than the least and the most
MIN_REPEATS_FOR_P95: Final = 20  # of fewer, it is the slowest one, and nothing says how slow others may be
Interval = tuple[float | None, float | None]  # both ends belong to it; None is "never"


@dataclass(frozen=True, slots=True)
class Figure:
    """`n` repeats, their median, 95th percentile, most and least, and where the first two lie with 95% confidence.

    An interval is None if the repeats are too few for it.
    """

    n: int
    median: float | None
    p95: float | None
    most: float | None
    least: float | None
    median_interval: Interval | None
    p95_interval: Interval | None

    @property
    def has_p95(self) -> bool:
        """True if the repeats are enough for the 95th percentile."""
        return self.n >= MIN_REPEATS_FOR_P95

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        plain = {name: getattr(self, name) for name in ("n", "median", "p95")}
        return plain | {"median_95": self.median_interval, "p95_95": self.p95_interval}


def figure(values: Iterable[float | None]) -> Figure | None:
    """Return the statistics of the repeats' values, in whatever order; None if there are none."""
    ordered = np.sort(np.asarray([inf if v is None else v for v in values], dtype=np.float64))
    n = len(ordered)
    if not n:
        return None

    def known(value: float) -> float | None:
        return None if value == inf else float(value)

    def middle_95(statistics: npt.NDArray[np.float64]) -> Interval:
        resampled = np.sort(statistics)
        tail = int(0.025 * len(resampled))
        return known(resampled[tail]), known(resampled[-1 - tail])

    rank95 = ceil(0.95 * n) - 1  # of the value that 95% don't exceed: an observed one, since "never" has no mean
    resampled = ordered[_resample_indices(n)] if n >= MIN_REPEATS_FOR_MEDIAN else None
    return Figure(
        n=n,
        median=known(float(np.median(ordered))),
        p95=known(ordered[rank95]),
        most=known(ordered[-1]),
        least=known(ordered[0]),
        median_interval=None if resampled is None else middle_95(np.median(resampled, axis=1)),
        p95_interval=None if resampled is None or n < MIN_REPEATS_FOR_P95 else middle_95(resampled[:, rank95]),
    )


@lru_cache(maxsize=32)
def _resample_indices(n: int) -> npt.NDArray[np.intp]:
    """Return which of n sorted values each of 4000 resamples takes, sorted: a row a resample."""
    return np.sort(np.random.default_rng(1).integers(0, n, (4000, n)), axis=1)


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


def recovery_rows(run: Run) -> tuple[RecoveryRow, ...]:
    """Return faults that came alone, repeats together: all of a kind next to each other, reroute on before off.

    Faults from which allreduces recover without a controller are not among them.
    """
    names = labels(run)
    alone = [r for r in run.recoveries if r.reroute and not r.script]
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


def script_runs(run: Run) -> tuple[ScriptRow, ...]:
    """Return every repeat of every script, in the order in which they ran."""
    names = labels(run)
    records: list[Recovery | ConnectivityCheck] = [*run.recoveries, *run.connectivity_checks]
    faults = grouped(sorted(run.recoveries, key=lambda r: r.t_fault), "interval")
    checks = grouped(sorted(run.connectivity_checks, key=lambda c: c.monotonic_ns), "interval")
    goodput = grouped(run.goodput, "interval")
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


def median_p95_ms(found: Figure, unit: str = "") -> str:
    """Return `12.3 / 45.6`, median and 95th percentile; `12.3 (n=5)` where the repeats tell nothing of the latter."""
    if found.median is None:
        return "never"
    middle = _ms(found.median)
    p95 = _ms(found.p95)
    if not found.has_p95:
        return f"{middle}{unit} (n={found.n})"
    return f"{middle} / {p95}" + (unit if found.p95 is not None else "")


def median_and_p95(found: Figure) -> tuple[str, str]:
    """Return a cell each, with their intervals; a dash where the repeats tell nothing of the latter."""

    def cell(value: float | None, interval: Interval | None) -> str:
        return milliseconds(value) + (f" [{_ms(interval[0])}, {_ms(interval[1])}]" if interval else "")

    p95 = cell(found.p95, found.p95_interval) if found.has_p95 else NOTHING
    return cell(found.median, found.median_interval), p95


def _ms(ms: float | None) -> str:
    return milliseconds(ms).removesuffix("\u00a0ms")
