"""Recovery from faults: repeats together by kind, target and fabric, runs of failure scripts, statistics over repeats.

None is "never", and later than any time. The confidence intervals are of the percentile bootstrap (Efron and
Tibshirani, An Introduction to the Bootstrap, 13.3), not taken from scipy: its percentiles interpolate and its BCa
correction subtracts, and neither can be done with "never".
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, inf
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from railyard.core.records import Recovery
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import labels
from railyard.results.runs.fidelity import ORDER, Judgement
from railyard.results.runs.records import ConnectivityCheck, GoodputTrace, Run, Verdict
from railyard.results.views.format import NOTHING, milliseconds

MIN_REPEATS_FOR_MEDIAN: Final = 5  # repeats: of fewer, an interval would be no more than the least and the most
MIN_REPEATS_FOR_P95: Final = (
    20  # of fewer, the 95th percentile is the slowest one, and nothing says how slow others may be
)
CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 4000
_SEED: Final = 1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it; None is "never"."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """`n` repeats, their median, 95th percentile and worst, and where the first two lie with 95% confidence.

    An interval is None if the repeats are too few for it.
    """

    n: int
    median: float | None
    p95: float | None
    most: float | None
    median_interval: Interval | None
    p95_interval: Interval | None

    @property
    def has_p95(self) -> bool:
        """Whether the repeats are enough to say anything of the 95th percentile: of fewer it is but the slowest."""
        return self.n >= MIN_REPEATS_FOR_P95

    def as_dict(self) -> dict[str, Any]:
        """For summary.json: intervals are pairs, or None."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("n", "median", "p95")}
        return plain | {"median_95": _pair(self.median_interval), "p95_95": _pair(self.p95_interval)}


def _pair(found: Interval | None) -> list[float | None] | None:
    return None if found is None else [found.low, found.high]


def figure(values: Iterable[float | None]) -> Figure | None:
    """Of the repeats' values; None if there are none. The same values, in whatever order, give the same figure."""
    ordered_values = np.sort(np.asarray([inf if v is None else v for v in values], dtype=np.float64))
    n = len(ordered_values)
    if not n:
        return None
    resampled = ordered_values[_resample_indices(n)] if n >= MIN_REPEATS_FOR_MEDIAN else None
    return Figure(
        n=n,
        median=_none_if_never(_medians(ordered_values[None, :])[0]),
        p95=_none_if_never(ordered_values[_rank95(n)]),
        most=_none_if_never(ordered_values[-1]),
        median_interval=None if resampled is None else _interval(_medians(resampled)),
        p95_interval=None if resampled is None or n < MIN_REPEATS_FOR_P95 else _interval(resampled[:, _rank95(n)]),
    )


def _rank95(n: int) -> int:
    """Of n sorted values the one that 95% of them don't exceed: an observed one, so "never" needs no arithmetic."""
    return ceil(0.95 * n) - 1


def _medians(rows: Floats) -> Floats:
    """Of each sorted row."""
    n = rows.shape[1]
    middle: Floats = (rows[:, (n - 1) // 2] + rows[:, n // 2]) / 2
    return middle


@lru_cache(maxsize=32)
def _resample_indices(n: int) -> npt.NDArray[np.intp]:
    """Which of n sorted values each resample takes, themselves sorted: a row a resample."""
    return np.sort(np.random.default_rng(_SEED).integers(0, n, (_RESAMPLES, n)), axis=1)


def _interval(statistics: Floats) -> Interval:
    ordered = np.sort(statistics)
    tail = (1 - CONFIDENCE) / 2 * len(ordered)
    return Interval(_none_if_never(ordered[int(tail)]), _none_if_never(ordered[ceil(len(ordered) - tail) - 1]))


def _none_if_never(value: float) -> float | None:
    return None if value == inf else float(value)


Side = Literal["source", "far"]
SIDES: Final[tuple[Side, ...]] = ("source", "far")
STEPS: Final = (
    "detect_ms",
    "decided_ms",
    "reroute_ms",
    "first_packet_ms",
    "goodput_ms",
    "goodput_after_repair_ms",
    "primary_path_ms",
)
FROM_REPAIR: Final = ("goodput_after_repair_ms", "primary_path_ms")
"""The others count from the fault."""
TOGETHER_NS: Final = 50_000_000  # acts so near each other are one
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
        """Its kind; with its target where that alone would not tell which."""
        return fault_name(self.fault, self.target, self.is_one_of_several)

    @property
    def recovered(self) -> int:
        return sum(r.recovered for r in self.repeats)

    @property
    def unaffected(self) -> bool:
        """Whether nobody was cut off: a GPU that dies where no other's traffic passes through it hurts itself alone."""
        return all(is_unaffected(r) for r in self.repeats)

    @property
    def unprobed(self) -> bool:
        """Whether no probed pair was hit, so that nothing is known of first packets."""
        return not any(map(is_probed, self.repeats))

    @cached_property
    def steps(self) -> dict[str, Figure]:
        """By the name of the column of recovery.csv, in ms."""
        found = {step: figure(getattr(r, step) for r in self.repeats) for step in STEPS}
        return {step: made for step, made in found.items() if made}

    @cached_property
    def sides(self) -> dict[Side, Figure]:
        """First packets (ms) by side of the fault; only sides of which pairs were probed."""
        found = {side: figure(side_values(self.repeats, side)) for side in SIDES}
        return {side: made for side, made in found.items() if made}

    @property
    def connections_lost(self) -> int:
        return sum(r.connections_lost for r in self.repeats)

    def total(self, column: str) -> int:
        """Return the sum of a column of recovery.csv over the repeats."""
        return sum(getattr(r, column) for r in self.repeats)


def fault_name(fault: str, target: str, is_one_of_several: bool) -> str:
    """What to call a fault that came alone."""
    return f"{fault} {target}" if is_one_of_several else fault


def with_several_targets(records: Iterable[Recovery | GoodputTrace]) -> frozenset[tuple[str, str]]:
    """(fabric, as recorded, and kind of fault) wherever it has more than one target."""
    targets = Counter((fabric, fault) for fabric, fault, _ in {(t.fabric, t.fault, t.target) for t in records})
    return frozenset(sort_key for sort_key, count in targets.items() if count > 1)


def side_values(repeats: Sequence[Recovery], side: Side) -> list[float | None]:
    """Of each repeat in which such pairs were probed, until packets flowed on this side (ms, None: never)."""
    return [getattr(r, f"{side}_side_ms") for r in repeats if probed_on(r, side)]


def probed_on(recovery: Recovery, side: Side) -> int:
    """How many pairs on this side were probed."""
    return recovery.source_side_probed if side == "source" else recovery.far_side_probed


def pairs_probed(recovery: Recovery) -> int:
    """How many on either side."""
    return recovery.source_side_probed + recovery.far_side_probed


def is_probed(recovery: Recovery) -> bool:
    """Whether any pair that it hit was."""
    return pairs_probed(recovery) > 0


def has_goodput_evidence(recovery: Recovery) -> bool:
    """Whether goodput fell, so that whether it came back says something even where no pair was probed."""
    return bool(recovery.goodput_ms) or not recovery.recovered


def is_unaffected(recovery: Recovery) -> bool:
    """Whether no probe of another GPU's was lost to this fault."""
    return is_probed(recovery) and recovery.probes_lost == 0 and recovery.first_packet_ms == 0


def recovery_rows(run: Run, has_controller: bool = True) -> tuple[RecoveryRow, ...]:
    """Faults that came alone, by fabric, repeats together: all of a kind next to each other, reroute on before off.

    Without `has_controller`, those of fabrics that no controller reroutes.
    """
    names, alone = labels(run), [r for r in run.recoveries if not r.script and bool(r.reroute) == has_controller]
    groups: defaultdict[tuple[str, str, str, str], list[Recovery]] = defaultdict(list)
    for r in alone:
        groups[names[r.fabric, r.policy], r.fault, r.target, r.reroute].append(r)
    several_targets = with_several_targets(alone)
    rows = [
        RecoveryRow(*key, tuple(repeats), (repeats[0].fabric, repeats[0].fault) in several_targets)
        for key, repeats in groups.items()
    ]
    faults, targets = list(dict.fromkeys(r.fault for r in alone)), list(dict.fromkeys(r.target for r in alone))
    fabrics = list(dict.fromkeys(names.values()))

    def sort_key(row: RecoveryRow) -> tuple[int, int, int, bool]:
        return faults.index(row.fault), fabrics.index(row.fabric), targets.index(row.target), row.reroute != "on"

    return tuple(sorted(rows, key=sort_key))


@dataclass(frozen=True)
class ScriptRow:
    """One repeat of a failure script on a fabric: faults in the order of time, connectivity checks, goodput.

    Random faults have another seed, and so other faults, in every repeat.
    """

    fabric: str
    script: str
    reroute: str
    repeat: int
    faults: tuple[Recovery, ...]
    connectivity_checks: tuple[ConnectivityCheck, ...]
    goodput: tuple[GoodputTrace, ...]

    @property
    def done(self) -> int:
        """The number of due connectivity checks that the machine had time for."""
        return sum(c.done for c in self.connectivity_checks)

    @property
    def matched(self) -> int:
        return sum(c.done and matches_oracle(c) for c in self.connectivity_checks)

    @property
    def repaired_alone(self) -> tuple[Recovery, ...]:
        """Faults from which traffic returned, and nothing else was broken then: what is lost there, the return lost."""
        return tuple(
            r
            for r in self.faults
            if traffic_returns(r) and not any(_is_active_at_repair(other, r) for other in self.faults)
        )

    @property
    def probes_lost_after_repair(self) -> int:
        """Probes lost while traffic returned from faults that were repaired alone."""
        return sum(r.probes_lost_after_repair for r in self.repaired_alone)

    @property
    def lost_bytes(self) -> int:
        """Each fault's record has what the whole script lost."""
        return max((r.lost_bytes for r in self.faults), default=0)

    @property
    def connections_lost(self) -> int:
        return max((r.connections_lost for r in self.faults), default=0)


def matches_oracle(connectivity_check: ConnectivityCheck) -> bool:
    """Whether the fabric and the oracle agree, as far as anybody looked: of one not taken nothing is known."""
    return not mismatch_count(connectivity_check)


def mismatch_count(connectivity_check: ConnectivityCheck) -> int:
    """Pairs, and dead parts, of which the fabric and the oracle say different things."""
    return (
        connectivity_check.not_recovered
        + connectivity_check.unexpected_answers
        + connectivity_check.forwarding_failed_parts
    )


def traffic_returns(recovery: Recovery) -> bool:
    """Whether traffic had gone round it, so that it returns. Else what is lost after the repair is the fault's own:
    a repair isn't done in no time.
    """
    return recovery.first_packet_ms is not None and definition_of(recovery.fault).is_rerouted


def _is_active_at_repair(other: Recovery, recovery: Recovery) -> bool:
    """Whether the other is there when this one is mended."""
    after_repair_ns = recovery.t_repair + TOGETHER_NS
    return other.t_fault <= after_repair_ns < other.t_repair


def checks_text(connectivity_checks: Sequence[ConnectivityCheck]) -> str:
    """`73 of 86 done, all match`; `73 of 86 done, 71 match`."""
    taken = [c for c in connectivity_checks if c.done]
    matched = sum(map(matches_oracle, taken))
    result_text = "all match" if matched == len(taken) else f"{matched} match"
    return f"{len(taken)} of {len(connectivity_checks)} done" + (f", {result_text}" if taken else "")


def script_runs(run: Run) -> tuple[ScriptRow, ...]:
    """Every repeat of every script, in the order in which they ran."""
    names = labels(run)
    records: list[Recovery | ConnectivityCheck] = [*run.recoveries, *run.connectivity_checks]
    found = []
    for key in dict.fromkeys(row.interval for row in records if row.script):
        faults = [r for r in run.recoveries if r.interval == key]
        connectivity_checks = [c for c in run.connectivity_checks if c.interval == key]
        goodput = [t for t in run.goodput if t.interval == key]
        found.append(
            ScriptRow(
                fabric=names.get((key.fabric, key.policy), key.fabric),
                script=key.script,
                reroute=key.reroute,
                repeat=key.repeat,
                faults=tuple(sorted(faults, key=lambda r: r.t_fault)),
                connectivity_checks=tuple(sorted(connectivity_checks, key=lambda c: c.monotonic_ns)),
                goodput=tuple(goodput),
            )
        )
    return tuple(found)


def verdict(recoveries: Iterable[Recovery], judgement: Judgement) -> Verdict:
    """Return the worst verdict of the intervals in which these faults were injected."""
    return max((judgement.intervals.get(r.interval, "ok") for r in recoveries), key=ORDER.index, default="ok")


def median_p95_text(found: Figure) -> str:
    """`12.3 / 45.6 ms`: median and 95th percentile. Where the repeats tell nothing of the latter: `12.3 ms (n=5)`."""
    if not found.has_p95 and found.median is not None:
        return f"{milliseconds(found.median)} (n={found.n})"
    shown = median_p95_ms(found)
    return shown if shown.endswith("never") else f"{shown}\u00a0ms"


def median_p95_ms(found: Figure) -> str:
    """Return the same without the unit."""
    if found.median is None:
        return "never"
    return f"{_ms(found.median)} / {_ms(found.p95)}" if found.has_p95 else f"{_ms(found.median)} (n={found.n})"


def median_and_p95(found: Figure) -> tuple[str, str]:
    """Return a cell each, with their intervals; a dash where the repeats tell nothing of the latter."""
    p95 = with_interval(found.p95, found.p95_interval) if found.has_p95 else NOTHING
    return with_interval(found.median, found.median_interval), p95


def with_interval(value: float | None, interval: Interval | None) -> str:
    """`12.3 ms [11.0, 14.2]`; without an interval the value alone."""
    return milliseconds(value) + (f" [{_ms(interval.low)}, {_ms(interval.high)}]" if interval else "")


def _ms(ms: float | None) -> str:
    return milliseconds(ms).removesuffix("\u00a0ms")
