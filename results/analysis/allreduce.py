"""Allreduces on several rails: medians by policy and size, gains over a single rail, performance targets.

Where Nezha's text states a figure, it is what a target asks for; the rest is asked of a correct implementation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from statistics import fmean, geometric_mean, median
from typing import Any, Final, TypeVar

import pandas as pd

from railyard.core.records import IntervalId
from railyard.results.published.figures import nezha
from railyard.results.runs.allreduce import AllreduceResults, Cut, DdpRun, Point, size_name
from railyard.results.runs.records import Rails
from railyard.results.runs.targets import AT_LEAST, AT_MOST, Comparison, Outcome, Target
from railyard.results.views.format import times

SINGLE: Final = "single"
"""A policy `single:NAME` is one rail; `single` alone chooses the best by its nominal cost."""
_COLUMNS: Final = ("policy", "size", "repeat", "mean_s", "typical_s", "split")
Row = TypeVar("Row")


def is_single(policy: str) -> bool:
    """Return if a policy uses one rail."""
    return policy.partition(":")[0] == SINGLE


def grouped(rows: Sequence[Row], *keys: str) -> list[list[Row]]:
    """Return the rows that are alike in these attributes together, in the order in which they come."""
    series = pd.Series(list(rows), dtype=object)
    return [list(group) for _, group in series.groupby([[getattr(r, key) for r in rows] for key in keys], sort=False)]


@dataclass(frozen=True)
class FabricMeasurements:
    """The points of one fabric, of a policy and size one for each start of its processes: medians over these, seconds.

    Small sizes may have more starts than large ones, so whatever covers several sizes groups by size first.
    """

    rails: Rails
    points: tuple[Point, ...]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each point."""
        rows = [[getattr(point, name) for name in _COLUMNS] for point in self.points]
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    @cached_property
    def seconds(self) -> dict[str, dict[int, float]]:
        """Policy -> size -> seconds of an operation (the mean of a start, the median over starts)."""
        found: dict[str, dict[int, float]] = {}
        medians = self.frame.groupby(["policy", "size"], sort=False).mean_s.median().reset_index()
        for policy, size, seconds in medians.itertuples(index=False, name=None):
            found.setdefault(policy, {})[size] = seconds
        return found

    @cached_property
    def _typical(self) -> pd.DataFrame:
        """Seconds that an operation usually takes: a row for each size and start, a column for each policy."""
        return self.frame.pivot(index=["size", "repeat"], columns="policy", values="typical_s")

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies that were measured, in the order in which they began."""
        return tuple(self.seconds)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that were measured, smallest first."""
        return tuple(sorted({point.size for point in self.points}))

    def starts(self, policy: str, size: int) -> tuple[Point, ...]:
        """Return the point of each start, in their order."""
        return tuple(p for p in self.points if (p.policy, p.size) == (policy, size))

    def max_starts(self, size: int) -> int:
        """Return the most starts of any policy: one that broke down has fewer."""
        return int(self.frame[self.frame["size"] == size].groupby("policy").size().max())

    def relative_spread(self, size: int) -> float:
        """Return the largest spread of a policy: slowest less fastest start, over the median; 0 of one start."""
        by_policy = self.frame[self.frame["size"] == size].groupby("policy").mean_s
        return float(((by_policy.max() - by_policy.min()) / by_policy.median()).max())

    def at(self, policy: str, size: int) -> float | None:
        """Return the seconds of an operation; None where it wasn't measured."""
        return self.seconds.get(policy, {}).get(size)

    def ratios(self, policy: str, other: str, size: int) -> list[float]:
        """Return what an operation usually takes over the other's, start by start.

        Policies take turns within a start, so what slows down both cancels out.
        """
        typical = self._typical
        if not {policy, other} <= set(typical.columns) or size not in typical.index:
            return []
        ratios: list[float] = (typical[policy] / typical[other]).loc[size].dropna().tolist()
        return ratios

    def singles(self, size: int) -> dict[str, float]:
        """Return the seconds of each single rail; of `single` itself only where no rail is given by its name."""
        found = {policy: by[size] for policy, by in self.seconds.items() if is_single(policy) and size in by}
        return {policy: seconds for policy, seconds in found.items() if policy != SINGLE} or found

    def gain(self, policy: str, size: int) -> float | None:
        """Return the throughput over that of the better rail alone."""
        own = self.at(policy, size)
        best = min((by[size] for each, by in self.seconds.items() if is_single(each) and size in by), default=None)
        return best / own if own and best else None

    def over(self, policy: str, other: str, size: int) -> float | None:
        """Return the throughput over another policy's."""
        own, others = self.at(policy, size), self.at(other, size)
        return others / own if own and others else None

    def of_ideal(self, policy: str, size: int) -> float | None:
        """Return the throughput over the sum of all rails' own, measured alone; None unless each was."""
        own, alone = self.at(policy, size), self.singles(size)
        if not own or len(alone) < len(self.rails.names):
            return None
        return 1 / own / sum(1 / seconds for seconds in alone.values())

    def shares(self, policy: str, size: int) -> tuple[float, ...] | None:
        """Return each rail's share in the start of median time, of two in the middle the faster one.

        Not the mean over starts: of some that split and some that didn't it is a split that never was.
        """
        split_starts = sorted((p for p in self.starts(policy, size) if p.shares), key=lambda p: p.mean_s)
        return split_starts[(len(split_starts) - 1) // 2].shares if split_starts else None

    def predicted(self, policy: str, size: int) -> float | None:
        """Return the seconds by the equations."""
        return next((p.predicted_s for p in self.starts(policy, size) if p.predicted_s is not None), None)

    def threshold(self, policy: str = "nezha") -> int | None:
        """Return the largest size up to which one rail carried all; None if it split from the first, or never.

        A size is split if more than one rail carried some of it in most of its starts.
        """
        rows = self.frame[self.frame.policy == policy]
        split = rows.groupby("size").split.mean() > 1 / 2
        first = min(split.index[split], default=None)
        return max((int(size) for size in split.index if first is not None and size < first), default=None)


def by_fabric(found: AllreduceResults) -> tuple[FabricMeasurements, ...]:
    """Return the measurements of each fabric that has points, in the order in which they were built."""
    rows = ((rails, tuple(p for p in found.points if p.fabric == rails.label)) for rails in found.fabrics)
    return tuple(FabricMeasurements(rails, points) for rails, points in rows if points)


# Performance targets --------------------------------------------------------------------------------------------------

Figure = tuple[float | None, str]
"""A value (None: never), and of what it is."""
Scope = Callable[[AllreduceResults], Iterable[tuple[IntervalId, Any]]]
"""Parts of the results, and their identity."""
Measure = Callable[[Any], Figure | None]
"""From such a part to its figure; None where it has none."""
_MEASURES: Final[dict[Target, tuple[Scope, Measure]]] = {}


def outcomes(found: AllreduceResults) -> tuple[Outcome, ...]:
    """Return every target, once for each part on which it was measured, or else once as not measured."""
    scopes = {scope: list(scope(found)) for scope, _ in _MEASURES.values()}
    outcomes: list[Outcome] = []
    for target, (scope, measure) in _MEASURES.items():
        figures = [(interval, measure(part)) for interval, part in scopes[scope]]
        measured = [Outcome(target, interval, *figure) for interval, figure in figures if figure]
        outcomes += measured or [Outcome(target)]
    return tuple(outcomes)


def _of_run(found: AllreduceResults) -> Iterator[tuple[IntervalId, AllreduceResults]]:
    yield IntervalId(), found


def _of_fabrics(found: AllreduceResults) -> Iterator[tuple[IntervalId, FabricMeasurements]]:
    return ((IntervalId(m.rails.label), m) for m in by_fabric(found))


def _of_faults(found: AllreduceResults) -> Iterator[tuple[IntervalId, list[Cut]]]:
    return ((IntervalId(c[0].fabric, part=c[0].name), c) for c in grouped(found.cuts, "fabric", "name"))


def _of_ddp_runs(found: AllreduceResults) -> Iterator[tuple[IntervalId, DdpRun]]:
    return ((ddp_run.interval, ddp_run) for ddp_run in found.ddp_runs)


def _target(
    scope: Scope, quantity: str, comparison: Comparison, limit: float, unit: str, **more: Any
) -> Callable[[Measure], Target]:
    """Register a target with the function that measures it; the function's name becomes the target."""
    target = Target(quantity, comparison, limit, unit, **more)

    def register(measure: Measure) -> Target:
        _MEASURES[target] = (scope, measure)
        return target

    return register


@_target(_of_run, "elements other than numpy's sum", AT_MOST, 0, "elements", required=True)
def correct_sums(found: AllreduceResults) -> Figure | None:
    """All fabrics and policies together: a single wrong element is one too many."""
    checked = [p for p in found.points if p.checked]
    if not checked:
        return None
    worst, wrong = max(checked, key=lambda p: p.wrong), sum(p.wrong for p in checked)
    where = f"; {worst.policy} on {worst.fabric}" if wrong else ""
    return float(wrong), f"of {sum(p.checked for p in checked):,} in {len(checked)} points{where}"


def _large(m: FabricMeasurements) -> int | None:
    """Return the largest size, if it is one of the large ones."""
    return m.sizes[-1] if m.sizes[-1] >= nezha.LARGE else None


def _has_two_like_rails(m: FabricMeasurements) -> bool:
    return len(m.rails.kinds) == 2 and len({*zip(m.rails.kinds, m.rails.bps, strict=True)}) == 1


def _has_unlike_rails(m: FabricMeasurements) -> bool:
    return len(set(m.rails.kinds)) > 1


def _figure(value: float | None, of: str = "") -> Figure | None:
    return None if value is None else (value, of)


@_target(_of_fabrics, "single rail, ring, large: of its links' bound", AT_LEAST, 0.95, "share")
def link_bound(m: FabricMeasurements) -> Figure | None:
    """The worst of the rings at the largest size: what its links alone would take, over what it took.

    Of a ring of N no rank's link can carry less than 2(N-1)/N of the buffer (Patarasuk and Yuan, 2009). Set-up is not
    included. Rails whose processor is slower than their links are left out.
    """
    size, rails = _large(m), m.rails
    cpus = rails.cpu_s_per_byte or (0.0,) * len(rails.names)
    rows = zip(rails.names, rails.kinds, rails.bps, cpus, strict=True)
    bps = {f"{SINGLE}:{name}": rate for name, kind, rate, cpu in rows if kind != "sharp" and cpu <= 8 / rate}
    sent = {p.policy: p.sent for p in m.points if p.size == size and p.policy in bps}
    bits = 8 * 2 * (rails.nodes - 1) / rails.nodes
    found = [(bits * sent[by] / bps[by] / m.seconds[by][size], by) for by in sent] if size is not None else []
    return min(found, default=None)


def _best_gain(m: FabricMeasurements) -> Figure | None:
    size = _large(m)
    return _figure(m.gain("nezha", size)) if size is not None else None


def _like_rails(nodes: int, m: FabricMeasurements) -> Figure | None:
    return _best_gain(m) if _has_two_like_rails(m) and m.rails.nodes == nodes else None


PAIR: Final = {
    nodes: _target(
        _of_fabrics,
        f"two like rails, {nodes} nodes, large: of one",
        AT_LEAST,
        nezha.GAINS["tcp+tcp", nodes, "nezha"],
        "times",
        source="Nezha 5.2.1",
        goal=1.95,
    )(partial(_like_rails, nodes))
    for nodes in (4, 8)
}


def _over_baseline(baseline: str, m: FabricMeasurements) -> Figure | None:
    """The size of the large ones where it was worst."""
    sizes = [size for size in m.sizes if nezha.LARGE <= size <= nezha.LARGEST]
    found = [(geometric_mean(ratios), size) for size in sizes if (ratios := m.ratios(baseline, "nezha", size))]
    ratio, size = min(found, default=(None, 0))
    return _figure(ratio, f"at {size_name(size)}")


_STATED: Final = {
    "mptcp": "Nezha 5.2.2, unlike rails: up to 1.80x",
    "mrib": "Nezha 5.2.2, unlike rails: up to 1.41x",
    "slicing": "",
}
"""Policy -> what is stated of Nezha over it."""
OVER_BASELINE: Final = {
    baseline: _target(_of_fabrics, f"nezha, large: throughput of {baseline}'s", AT_LEAST, 0.98, "times", source=stated)(
        partial(_over_baseline, baseline)
    )
    for baseline, stated in _STATED.items()
}


@_target(
    _of_fabrics, "unlike rails, large: of the better one", AT_LEAST, 1.4, "times", source="Nezha 5.2.2: 1.46 to 1.63"
)
def unlike(m: FabricMeasurements) -> Figure | None:
    """Gain at the largest size."""
    return _best_gain(m) if _has_unlike_rails(m) else None


@_target(_of_fabrics, "unlike rails, large: of the sum of both", AT_LEAST, 0.95, "share")
def sum_of_rails(m: FabricMeasurements) -> Figure | None:
    """Throughput at the largest size, over that of all rails alone."""
    size = _large(m)
    return _figure(m.of_ideal("nezha", size)) if size is not None and _has_unlike_rails(m) else None


def _small_sizes(m: FabricMeasurements) -> list[int]:
    return [size for size in m.sizes if size <= nezha.SMALL]


def _starts(values: Sequence[float], show: Callable[[float], str]) -> str:
    """`; 0.96x to 1.04x in 3 starts`: it shows how much a few percent mean."""
    return f"; {show(min(values))} to {show(max(values))} in {len(values)} starts" if len(values) > 1 else ""


@_target(_of_fabrics, "small, cold: latency of the best single rail's", AT_MOST, 1.03, "times")
def small_latency(m: FabricMeasurements) -> Figure | None:
    """The small size where it was worst, beside the rail that was best there.

    The median of all sizes is given with it: one size has few operations, so its figure varies by chance.
    """
    found = []
    for size in _small_sizes(m):
        ratios = [ratios for rail in m.singles(size) if (ratios := m.ratios("nezha", rail, size))]
        if ratios:
            found.append((max(ratios, key=geometric_mean), size))
    if not found:
        return None
    worst, at, by_start = max((geometric_mean(ratios), size, ratios) for ratios, size in found)
    middle = times(median(geometric_mean(ratios) for ratios, _ in found))
    return worst, f"at {size_name(at)}; median of {len(found)} sizes {middle}{_starts(by_start, times)}"


def _small_latency_over(baseline: str, m: FabricMeasurements) -> Figure | None:
    """The median of small sizes: the paper's 15% are of set-ups, which all of them have, so one slow operation of the
    baseline's must not count.
    """
    found = [ratios for size in _small_sizes(m) if (ratios := m.ratios("nezha", baseline, size))]
    if not found:
        return None
    by_start = [1 - median(ratios) for ratios in zip(*found, strict=False)]
    of = f"median of {len(found)} sizes{_starts(by_start, SMALL_LATENCY_OVER_BASELINE[baseline].text)}"
    return 1 - median(map(geometric_mean, found)), of


SMALL_LATENCY_OVER_BASELINE: Final = {
    baseline: _target(
        _of_fabrics, f"small, cold: less latency than {baseline}", AT_LEAST, 0.15, "share", source="Nezha 5.2.1"
    )(partial(_small_latency_over, baseline))
    for baseline in ("mrib", "mptcp")
}


@_target(_of_fabrics, "balancer converges in", AT_MOST, nezha.CONVERGENCE_OPERATIONS, "operations", source="Nezha 4.3")
def convergence(m: FabricMeasurements) -> Figure | None:
    """The size, and of its starts the one, that took longest: it has to converge however often it is started."""
    split = [p for p in m.points if p.policy == "nezha" and p.split]
    if not split:
        return None
    slowest = max(split, key=lambda p: inf if p.settled_after is None else p.settled_after)
    return slowest.settled_after, f"at {size_name(slowest.size)}"


@_target(
    _of_fabrics, "time between rails after that", AT_MOST, nezha.MEAN_RAIL_TIME_SPREAD, "share", source="Nezha 5.3.2"
)
def rail_time_spread(m: FabricMeasurements) -> Figure | None:
    """Nezha's is an average. A size counts once, as the mean of its starts: small ones have more than large ones."""
    split = [p for p in m.points if p.policy == "nezha" and p.split]
    sizes = [fmean(p.relative_spread for p in starts) for starts in grouped(split, "size")]
    return (fmean(sizes), f"mean of {len(sizes)} sizes") if sizes else None


def _migration(cuts: list[Cut], combine: Callable[[list[float]], float]) -> Figure | None:
    """Of faults that fell into an operation."""
    values = [inf if cut.migrate_ms is None else cut.migrate_ms for cut in cuts if cut.inside]
    value = combine(values) if values else inf
    return (None if value == inf else value, f"n={len(values)}") if values else None


@_target(
    _of_faults, "NIC cut until migrated, median", AT_MOST, 50, "ms", source="Nezha 4.4: below 200, from detection on"
)
def migration(cuts: list[Cut]) -> Figure | None:
    """Time from the fault."""
    return _migration(cuts, median)


@_target(_of_faults, "NIC cut until migrated, worst", AT_MOST, 200, "ms")
def migration_worst(cuts: list[Cut]) -> Figure | None:
    """Time from the fault."""
    return _migration(cuts, max)


@_target(_of_faults, "elements wrong while a rail was cut", AT_MOST, 0, "elements", required=True)
def correct_during_cut(cuts: list[Cut]) -> Figure | None:
    """Sum over the repeats."""
    return float(sum(c.wrong for c in cuts)), f"of {sum(c.checked for c in cuts):,}"


@_target(_of_faults, "cuts that ended the operations", AT_MOST, 0, "cuts", required=True)
def aborted_by_cut(cuts: list[Cut]) -> Figure | None:
    """Repeats with an error."""
    errors = [c.error for c in cuts if c.error]
    return float(len(errors)), next(iter(errors), f"of {len(cuts)}")


@_target(_of_faults, "cuts after whose repair the rail stayed idle", AT_MOST, 0, "cuts", required=True)
def rail_reused(cuts: list[Cut]) -> Figure | None:
    """Repeats in which the rail carried something before its fault, and nothing after its repair."""
    carried = [c.home_ms for c in cuts if c.carried]
    return (float(carried.count(None)), f"of {len(carried)}") if carried else None


@_target(_of_fabrics, "one tcp rail, large: throughput of Gloo's", AT_LEAST, 1.0, "times")
def gloo(m: FabricMeasurements) -> Figure | None:
    """The first TCP rail that was measured."""
    size = _large(m)
    rails = [f"{SINGLE}:{name}" for name, kind in zip(m.rails.names, m.rails.kinds, strict=True) if kind == "tcp"]
    policies = (*rails, SINGLE) if rails and size is not None else ()
    found = (m.over(policy, "gloo", size) for policy in policies if size is not None)
    return _figure(next((ratio for ratio in found if ratio is not None), None))


@_target(_of_fabrics, "two tcp rails, large: throughput of Gloo's", AT_LEAST, 1.8, "times", source="Nezha: 1.7 to 4.3")
def gloo_pair(m: FabricMeasurements) -> Figure | None:
    """Nezha over Gloo at the largest size."""
    size = _large(m)
    return _figure(m.over("nezha", "gloo", size)) if size is not None and _has_two_like_rails(m) else None


@_target(_of_ddp_runs, "DDP: losses differ from Gloo's by", AT_MOST, 1e-3, "share", required=True)
def ddp_loss_difference(ddp_run: DdpRun) -> Figure:
    """Difference of any rank and step."""
    return ddp_run.losses_apart, f"{len(ddp_run.losses)} steps"


@_target(_of_ddp_runs, "DDP: steps as fast as Gloo's", AT_LEAST, 1.0, "times")
def ddp_speedup(ddp_run: DdpRun) -> Figure:
    """Gloo's step over ours."""
    return ddp_run.gloo_step_s / ddp_run.step_s, ddp_run.policy
