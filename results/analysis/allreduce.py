"""Allreduces on several rails: medians by policy and size, gains over a single rail, performance targets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean, geometric_mean, median
from typing import Any, Final, Literal

from railyard.results.published import nezha
from railyard.results.runs.allreduce import AllreduceResults, Cut, Point, size_name
from railyard.results.runs.records import Rails
from railyard.results.views import format as fmt

SINGLE = "single"
"""A policy `single:NAME` is one rail; `single` alone chooses the best by its nominal cost."""


def is_single(policy: str) -> bool:
    return policy.partition(":")[0] == SINGLE


@dataclass(frozen=True)
class FabricMeasurements:
    """The points of one fabric, of a policy and size one for each start of its processes: medians over these, seconds.

    Small sizes may have more starts than large ones, so whatever speaks of several sizes goes by size first.
    """

    rails: Rails
    points: tuple[Point, ...]

    @cached_property
    def seconds(self) -> dict[str, dict[int, float]]:
        """Policy -> size -> seconds of an operation (the mean of a start, the median over starts)."""
        found: dict[str, dict[int, list[float]]] = {}
        for point in self.points:
            found.setdefault(point.policy, {}).setdefault(point.size, []).append(point.mean_s)
        return {policy: {size: median(times) for size, times in by.items()} for policy, by in found.items()}

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.seconds)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({point.size for point in self.points}))

    def starts(self, policy: str, size: int) -> tuple[Point, ...]:
        """As many as were measured, in their order."""
        return tuple(p for p in self.points if (p.policy, p.size) == (policy, size))

    def max_starts(self, size: int) -> int:
        """Of any policy: one that broke down has fewer."""
        return max(len(self.starts(policy, size)) for policy in self.policies)

    def relative_spread(self, size: int, policies: Iterable[str]) -> float:
        """From the fastest start to the slowest, over the median, of the policy where that is most; 0 of one start."""
        times = [[p.mean_s for p in self.starts(policy, size)] for policy in policies]
        return max(((max(each) - min(each)) / median(each) for each in times if each), default=0.0)

    def at(self, policy: str, size: int) -> float | None:
        """Seconds of an operation; None where it wasn't measured."""
        return self.seconds.get(policy, {}).get(size)

    def ratios(self, policy: str, other: str, size: int) -> list[float]:
        """What an operation usually takes over the other's, of each start: what they share, as they took turns in it,
        is in none of these."""
        own, others = ({p.repeat: p.typical_s for p in self.starts(each, size)} for each in (policy, other))
        return [own[repeat] / others[repeat] for repeat in sorted(own.keys() & others.keys())]

    def singles(self, size: int) -> dict[str, float]:
        """Every single rail's seconds, by policy. `single` itself only where no rail is given by its name."""
        found = {policy: by[size] for policy, by in self.seconds.items() if is_single(policy) and size in by}
        named = {policy: time for policy, time in found.items() if policy != SINGLE}
        return named or found

    def best_single(self, size: int) -> float | None:
        """Seconds of the better rail alone."""
        every = [by[size] for policy, by in self.seconds.items() if is_single(policy) and size in by]
        return min(every, default=None)

    def gain(self, policy: str, size: int) -> float | None:
        """How many times the throughput of the better rail alone."""
        own, best = self.at(policy, size), self.best_single(size)
        return best / own if own and best else None

    def over(self, policy: str, other: str, size: int) -> float | None:
        """How many times the other's throughput; as well, its time over ours."""
        own, others = self.at(policy, size), self.at(other, size)
        return others / own if own and others else None

    def of_ideal(self, policy: str, size: int) -> float | None:
        """Throughput over the sum of all rails' own, measured alone; None unless each was."""
        own, alone = self.at(policy, size), self.singles(size)
        if not own or len(alone) < len(self.rails.names):
            return None
        return 1 / own / sum(1 / time for time in alone.values())

    def shares(self, policy: str, size: int) -> tuple[float, ...] | None:
        """Share of each rail in the start of median time, of two in the middle the faster one.

        Not the mean over starts: of some that split and some that didn't it is a split that never was.
        """
        split_starts = sorted((p for p in self.starts(policy, size) if p.shares), key=lambda p: p.mean_s)
        return split_starts[(len(split_starts) - 1) // 2].shares if split_starts else None

    def predicted(self, policy: str, size: int) -> float | None:
        """Seconds by the equations."""
        rows = [p.predicted_s for p in self.starts(policy, size)]
        return next((value for value in rows if value is not None), None)

    def threshold(self, policy: str = "nezha") -> int | None:
        """The largest size up to which one rail carried all; None if it split from the first, or never."""
        measured = [size for size in self.sizes if self.starts(policy, size)]
        first = min((size for size in measured if self.splits(policy, size)), default=None)
        return max((size for size in measured if first is not None and size < first), default=None)

    def splits(self, policy: str, size: int) -> bool:
        """Whether more than one rail carried some of it in most of its starts."""
        starts = self.starts(policy, size)
        return 2 * sum(p.split for p in starts) > len(starts)


def by_fabric(found: AllreduceResults) -> tuple[FabricMeasurements, ...]:
    """A `FabricMeasurements` a fabric that has points, in the order in which they were built."""
    rows = ((rails, tuple(p for p in found.points if p.fabric == rails.label)) for rails in found.fabrics)
    return tuple(FabricMeasurements(rails, points) for rails, points in rows if points)


def largest(sizes: Iterable[int], minimum: int) -> int | None:
    """The largest size, if it is one of the large ones."""
    return max((size for size in sizes if size >= minimum), default=None)


def between(sizes: Sequence[int], minimum: int, maximum: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if minimum <= size <= maximum)


Unit = Literal["times", "share", "ms", "operations", "elements", "cuts"]
AT_LEAST: Final = "at least"
AT_MOST: Final = "at most"
BASELINE_POLICIES: Final = {
    "mptcp": "Nezha 5.2.2, unlike rails: up to 1.80x",
    "mrib": "Nezha 5.2.2, unlike rails: up to 1.41x",
    "slicing": "",
}
"""Policy -> what is stated of Nezha over it."""
_PAIR_GOAL: Final = 1.95
_TOLERANCE: Final = 0.02
_SMALL_LATENCY_RATIO: Final = 1.03
_SMALL_LATENCY_GAIN: Final = 0.15


@dataclass(frozen=True, slots=True)
class PerformanceTarget:
    """`comparison` the `limit` in `unit`; `checked`: a run that misses it has failed, the rest a slower machine may
    miss.

    `goal`: what we want beyond it; nothing is judged by that.
    """

    what: str
    comparison: Literal["at least", "at most"]
    limit: float
    unit: Unit
    checked: bool = False
    source: str = ""
    goal: float | None = None

    def allows(self, value: float | None) -> bool:
        """None is what never came."""
        if value is None:
            return False
        return value >= self.limit if self.comparison == AT_LEAST else value <= self.limit


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured on a fabric; `met` is None and `fabric` empty where nothing was. `where`: of what it is."""

    target: PerformanceTarget
    fabric: str = ""
    value: float | None = None
    where: str = ""
    measured: bool = True

    @property
    def met(self) -> bool | None:
        """Return if it is met; None where nothing was measured."""
        return self.target.allows(self.value) if self.measured else None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        t = self.target
        limit = {"comparison": t.comparison, "limit": t.limit, "unit": t.unit}
        return {
            "quantity": t.what,
            "fabric": self.fabric,
            "value": self.value,
            **limit,
            "of": self.where,
            "met": self.met,
        }


CORRECT_SUMS: Final = PerformanceTarget("elements other than numpy's sum", AT_MOST, 0, "elements", checked=True)
LINK_BOUND: Final = PerformanceTarget("single rail, ring, large: of its links' bound", AT_LEAST, 0.95, "share")
PAIR: Final[dict[int, PerformanceTarget]] = {
    4: PerformanceTarget(
        "two like rails, 4 nodes, large: of one", AT_LEAST, 1.84, "times", source="Nezha 5.2.1", goal=_PAIR_GOAL
    ),
    8: PerformanceTarget(
        "two like rails, 8 nodes, large: of one", AT_LEAST, 1.87, "times", source="Nezha 5.2.1", goal=_PAIR_GOAL
    ),
}
OVER_BASELINE: Final[dict[str, PerformanceTarget]] = {
    baseline: PerformanceTarget(
        f"nezha, large: throughput of {baseline}'s", AT_LEAST, 1 - _TOLERANCE, "times", source=stated
    )
    for baseline, stated in BASELINE_POLICIES.items()
}
UNLIKE: Final = PerformanceTarget(
    "unlike rails, large: of the better one", AT_LEAST, 1.4, "times", source="Nezha 5.2.2: 1.46 to 1.63"
)
SUM_OF_RAILS: Final = PerformanceTarget("unlike rails, large: of the sum of both", AT_LEAST, 0.95, "share")
SMALL_LATENCY: Final = PerformanceTarget(
    "small, cold: latency of the best single rail's", AT_MOST, _SMALL_LATENCY_RATIO, "times"
)
SMALL_LATENCY_OVER_BASELINE: Final[dict[str, PerformanceTarget]] = {
    baseline: PerformanceTarget(
        f"small, cold: less latency than {baseline}", AT_LEAST, _SMALL_LATENCY_GAIN, "share", source="Nezha 5.2.1"
    )
    for baseline in ("mrib", "mptcp")
}
CONVERGENCE: Final = PerformanceTarget(
    "balancer converges in", AT_MOST, nezha.CONVERGENCE_OPERATIONS, "operations", source="Nezha 4.3"
)
RAIL_TIME_SPREAD: Final = PerformanceTarget(
    "time between rails after that", AT_MOST, nezha.MEAN_RAIL_TIME_SPREAD, "share", source="Nezha 5.3.2"
)
MIGRATION: Final = PerformanceTarget(
    "NIC cut until migrated, median", AT_MOST, 50, "ms", source="Nezha 4.4: below 200, from detection on"
)
MIGRATION_WORST: Final = PerformanceTarget("NIC cut until migrated, worst", AT_MOST, 200, "ms")
CORRECT_DURING_CUT: Final = PerformanceTarget(
    "elements wrong while a rail was cut", AT_MOST, 0, "elements", checked=True
)
ABORTED_BY_CUT: Final = PerformanceTarget("cuts that ended the operations", AT_MOST, 0, "cuts", checked=True)
RAIL_REUSED: Final = PerformanceTarget("cuts after whose repair the rail stayed idle", AT_MOST, 0, "cuts", checked=True)
GLOO: Final = PerformanceTarget("one tcp rail, large: throughput of Gloo's", AT_LEAST, 1.0, "times")
GLOO_PAIR: Final = PerformanceTarget(
    "two tcp rails, large: throughput of Gloo's", AT_LEAST, 1.8, "times", source="Nezha: 1.7 to 4.3"
)

DDP_LOSS_DIFFERENCE: Final = PerformanceTarget(
    "DDP: losses differ from Gloo's by", AT_MOST, 1e-3, "share", checked=True
)
DDP_SPEEDUP: Final = PerformanceTarget("DDP: steps as fast as Gloo's", AT_LEAST, 1.0, "times")


def outcomes(found: AllreduceResults) -> tuple[Outcome, ...]:
    """Every bar, a line for each fabric on which it was measured, or one that says it wasn't."""
    fabrics = by_fabric(found)
    measured: tuple[tuple[PerformanceTarget, list[Outcome]], ...] = (
        (CORRECT_SUMS, _correct_sums(found.points)),
        (LINK_BOUND, _for_each_fabric(fabrics, _link_bound)),
        *((target, _for_each_fabric(fabrics, partial(_like_rails, nodes, target))) for nodes, target in PAIR.items()),
        *(
            (target, _for_each_fabric(fabrics, partial(_over_baseline, baseline, target)))
            for baseline, target in OVER_BASELINE.items()
        ),
        (UNLIKE, _for_each_fabric(fabrics, _unlike_rails)),
        (SUM_OF_RAILS, _for_each_fabric(fabrics, _sum_of_rails)),
        (SMALL_LATENCY, _for_each_fabric(fabrics, _small_latency)),
        *(
            (target, _for_each_fabric(fabrics, partial(_small_latency_over_baseline, baseline, target)))
            for baseline, target in SMALL_LATENCY_OVER_BASELINE.items()
        ),
        (CONVERGENCE, _for_each_fabric(fabrics, _convergence)),
        (RAIL_TIME_SPREAD, _for_each_fabric(fabrics, _rail_time_spread)),
        *_cuts(found.cuts),
        (GLOO, _for_each_fabric(fabrics, _gloo)),
        (GLOO_PAIR, _for_each_fabric(fabrics, _gloo_pair)),
        (
            DDP_LOSS_DIFFERENCE,
            [Outcome(DDP_LOSS_DIFFERENCE, x.fabric, x.losses_apart, f"{len(x.losses)} steps") for x in found.ddp_runs],
        ),
        (DDP_SPEEDUP, [Outcome(DDP_SPEEDUP, x.fabric, x.gloo_step_s / x.step_s, x.policy) for x in found.ddp_runs]),
    )
    return tuple(outcome for target, rows in measured for outcome in rows or [Outcome(target, measured=False)])


def _for_each_fabric(
    fabrics: Sequence[FabricMeasurements], judge: Callable[[FabricMeasurements], Outcome | None]
) -> list[Outcome]:
    return [outcome for outcome in map(judge, fabrics) if outcome is not None]


def _correct_sums(points: Sequence[Point]) -> list[Outcome]:
    """All fabrics and policies together: a single wrong element is one too many."""
    checked = [p for p in points if p.checked]
    if not checked:
        return []
    worst = max(checked, key=lambda p: p.wrong)
    total, wrong = sum(p.checked for p in checked), sum(p.wrong for p in checked)
    where = f"of {total:,} in {len(checked)} points" + (f"; {worst.policy} on {worst.fabric}" if wrong else "")
    return [Outcome(CORRECT_SUMS, "all", float(wrong), where)]


def _large(m: FabricMeasurements) -> int | None:
    return largest(m.sizes, nezha.LARGE)


def _link_bound(m: FabricMeasurements) -> Outcome | None:
    """The worst of the rings at the largest size: what its links alone would take, over what it took.

    Of a ring of N no rank's link can carry less than 2(N-1)/N of the buffer (Patarasuk and Yuan, 2009). Set-up isn't in
    it. Rails that a processor holds below their links are left out: nothing of theirs comes near it.
    """
    size, bps = _large(m), {f"{SINGLE}:{name}": rate for name, rate in _wired_rings(m.rails)}
    ring_factor = 2 * (m.rails.nodes - 1) / m.rails.nodes
    sent_by_ring = {p.policy: p.sent for p in m.points if p.size == size and p.policy in bps}
    if size is None or not sent_by_ring:
        return None
    value, policy = min(
        (ring_factor * 8 * sent / bps[by] / m.seconds[by][size], by) for by, sent in sent_by_ring.items()
    )
    return Outcome(LINK_BOUND, m.rails.label, value, policy)


def _wired_rings(rails: Rails) -> Iterator[tuple[str, float]]:
    """(name, bit/s) of each ring whose links bind it, and not a node's processor."""
    cpus = rails.cpu_s_per_byte or (0.0,) * len(rails.names)
    for name, kind, bps, cpu in zip(rails.names, rails.kinds, rails.bps, cpus, strict=True):
        if kind != "sharp" and cpu <= 8 / bps:
            yield name, bps


def _has_two_like_rails(m: FabricMeasurements) -> bool:
    return len(m.rails.kinds) == 2 and len({*zip(m.rails.kinds, m.rails.bps, strict=True)}) == 1


def _best_gain(m: FabricMeasurements, target: PerformanceTarget) -> Outcome | None:
    size = _large(m)
    gain = m.gain("nezha", size) if size is not None else None
    return None if gain is None else Outcome(target, m.rails.label, gain)


def _like_rails(nodes: int, target: PerformanceTarget, m: FabricMeasurements) -> Outcome | None:
    return _best_gain(m, target) if _has_two_like_rails(m) and m.rails.nodes == nodes else None


def _unlike_rails(m: FabricMeasurements) -> Outcome | None:
    return _best_gain(m, UNLIKE) if len(set(m.rails.kinds)) > 1 else None


def _sum_of_rails(m: FabricMeasurements) -> Outcome | None:
    size = _large(m)
    value = m.of_ideal("nezha", size) if size is not None and len(set(m.rails.kinds)) > 1 else None
    return None if value is None else Outcome(SUM_OF_RAILS, m.rails.label, value)


def _over_baseline(baseline: str, target: PerformanceTarget, m: FabricMeasurements) -> Outcome | None:
    """The size of the large ones where it was worst."""
    sizes = between(m.sizes, nezha.LARGE, nezha.LARGEST)
    found = [(geometric_mean(ratios), size) for size in sizes if (ratios := m.ratios(baseline, "nezha", size))]
    if not found:
        return None
    ratio, size = min(found)
    return Outcome(target, m.rails.label, ratio, f"at {size_name(size)}")


def _small_latency(m: FabricMeasurements) -> Outcome | None:
    """The small size where it was worst, beside the rail that was best there. The median of all is told with it: a
    single size's few operations leave something to chance."""
    found = []
    for size in _small_sizes(m):
        single_rail_ratios = [ratios for rail in m.singles(size) if (ratios := m.ratios("nezha", rail, size))]
        if single_rail_ratios:
            found.append((max(single_rail_ratios, key=geometric_mean), size))
    if not found:
        return None
    worst, at, by_start = max((geometric_mean(ratios), size, ratios) for ratios, size in found)
    median_ratio = median(geometric_mean(ratios) for ratios, _ in found)
    where = f"at {size_name(at)}; median of {len(found)} sizes {times(median_ratio)}{_starts(by_start, 'times')}"
    return Outcome(SMALL_LATENCY, m.rails.label, worst, where)


def _small_latency_over_baseline(baseline: str, target: PerformanceTarget, m: FabricMeasurements) -> Outcome | None:
    """The median of small sizes: the paper's 15% are of set-ups, which all of them have. An operation of the rival's
    that the machine held up is nothing to nezha's credit."""
    found = [ratios for size in _small_sizes(m) if (ratios := m.ratios("nezha", baseline, size))]
    if not found:
        return None
    reduction = 1 - median(map(geometric_mean, found))
    by_start = [1 - median(ratios) for ratios in zip(*found, strict=False)]
    return Outcome(target, m.rails.label, reduction, f"median of {len(found)} sizes{_starts(by_start, 'share')}")


def _starts(values: Sequence[float], unit: Unit) -> str:
    """`; 0.96x to 1.04x in 3 starts`: so that a few percent are taken for what they are."""
    range_text = f"{in_unit(min(values), unit)} to {in_unit(max(values), unit)}"
    return f"; {range_text} in {len(values)} starts" if len(values) > 1 else ""


def _small_sizes(m: FabricMeasurements) -> tuple[int, ...]:
    return between(m.sizes, 0, nezha.SMALL)


def _convergence(m: FabricMeasurements) -> Outcome | None:
    """The size, and of its starts the one, that took longest: however often it is started, it has to converge."""
    split = [p for p in m.points if p.policy == "nezha" and p.split]
    if not split:
        return None
    slowest = max(split, key=lambda p: float("inf") if p.settled_after is None else p.settled_after)
    value = None if slowest.settled_after is None else float(slowest.settled_after)
    return Outcome(CONVERGENCE, m.rails.label, value, f"at {size_name(slowest.size)}")


def _rail_time_spread(m: FabricMeasurements) -> Outcome | None:
    """Nezha's is an average. A size counts once, as the mean of its starts: small ones have more than large ones."""
    starts = [[p.relative_spread for p in m.starts("nezha", size) if p.split] for size in m.sizes]
    split = [fmean(relative_spread) for relative_spread in starts if relative_spread]
    return Outcome(RAIL_TIME_SPREAD, m.rails.label, fmean(split), f"mean of {len(split)} sizes") if split else None


def _cuts(cuts: Sequence[Cut]) -> Iterator[tuple[PerformanceTarget, list[Outcome]]]:
    """By fabric and kind of fault; what fell between two operations isn't in the times."""
    places = list(dict.fromkeys((c.fabric, c.name) for c in cuts))
    groups = [(f"{f}: {fault}", [c for c in cuts if (c.fabric, c.name) == (f, fault)]) for f, fault in places]
    migrations = [(name, times) for name, group_cuts in groups if (times := _migration_times(group_cuts))]
    yield MIGRATION, [Outcome(MIGRATION, name, _median(times), f"n={len(times)}") for name, times in migrations]
    yield (
        MIGRATION_WORST,
        [Outcome(MIGRATION_WORST, name, _maximum(times), f"n={len(times)}") for name, times in migrations],
    )
    yield (
        CORRECT_DURING_CUT,
        [
            Outcome(CORRECT_DURING_CUT, name, float(sum(c.wrong for c in group_cuts)), _checked_text(group_cuts))
            for name, group_cuts in groups
        ],
    )
    yield (
        ABORTED_BY_CUT,
        [
            Outcome(ABORTED_BY_CUT, name, float(sum(bool(c.error) for c in group_cuts)), _error_text(group_cuts))
            for name, group_cuts in groups
        ],
    )
    reuse_times = [(name, [c.home_ms for c in group_cuts if c.carried]) for name, group_cuts in groups]
    yield (
        RAIL_REUSED,
        [
            Outcome(RAIL_REUSED, name, float(times.count(None)), f"of {len(times)}")
            for name, times in reuse_times
            if times
        ],
    )


def _migration_times(cuts: Sequence[Cut]) -> list[float | None]:
    return [cut.migrate_ms for cut in cuts if cut.inside]


def _checked_text(cuts: Sequence[Cut]) -> str:
    return f"of {sum(c.checked for c in cuts):,}"


def _error_text(cuts: Sequence[Cut]) -> str:
    return next((cut.error for cut in cuts if cut.error), f"of {len(cuts)}")


def _median(values: Sequence[float | None]) -> float | None:
    found = median(float("inf") if value is None else value for value in values)
    return None if found == float("inf") else found


def _maximum(values: Sequence[float | None]) -> float | None:
    return None if None in values else max(value for value in values if value is not None)


def _gloo(m: FabricMeasurements) -> Outcome | None:
    size = _large(m)
    tcp = [f"single:{name}" for name, kind in zip(m.rails.names, m.rails.kinds, strict=True) if kind == "tcp"]
    found = [r for policy in (*tcp, "single") if size is not None and (r := m.over(policy, "gloo", size)) is not None]
    return Outcome(GLOO, m.rails.label, found[0]) if found and "tcp" in m.rails.kinds else None


def _gloo_pair(m: FabricMeasurements) -> Outcome | None:
    size = _large(m)
    value = m.over("nezha", "gloo", size) if size is not None and _has_two_like_rails(m) else None
    return None if value is None else Outcome(GLOO_PAIR, m.rails.label, value)


def in_unit(value: float | None, unit: Unit) -> str:
    """As people read it; None never came."""
    if value is None:
        return "never"
    if unit == "share":
        return fmt.percent(value, 1 if value >= 0.005 else 3)
    if unit == "times":
        return times(value)
    return fmt.milliseconds(value) if unit == "ms" else f"{value:,.0f}"


def times(value: float | None) -> str:
    """1.8432 -> `1.84x`."""
    return fmt.NOTHING if value is None else f"{value:.2f}x"


Claim = tuple[str, bool, str]
"""Name, whether it holds, and by which figures: those of railyard.results.runs.checks.Check."""


def requirements(found: AllreduceResults) -> Iterator[Claim]:
    """Yield the requirements for which there are records."""
    checked = [o for o in outcomes(found) if o.target.checked and o.measured]
    for target in dict.fromkeys(o.target for o in checked):
        target_outcomes = [o for o in checked if o.target == target]
        name = f"{target.what}: none" if not target.limit else target.what
        yield name, all(o.met for o in target_outcomes), "; ".join(map(_outcome_text, target_outcomes))
    failed = [s for s in found.skipped if s.failed]
    if found:
        detail = f"{failed[0].policy} on {failed[0].fabric}: {failed[0].why}" if failed else "no policy broke down"
        yield "every policy went through", not failed, detail


def _outcome_text(outcome: Outcome) -> str:
    value = in_unit(outcome.value, outcome.target.unit)
    return f"{value} {outcome.where} ({outcome.fabric})"
