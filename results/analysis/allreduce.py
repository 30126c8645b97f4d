"""Allreduces on several rails: medians by policy and size, gains over a single rail, performance targets.

Where Nezha's text states a figure, it is what a target asks for; the rest is asked of a correct implementation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean, geometric_mean, median
from typing import Any, Final, Literal

import pandas as pd

from railyard.core.records import IntervalId, Record
from railyard.core.units import size_name
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.targets import Outcome, Sample, Target
from railyard.results.format import times
from railyard.results.runs.allreduce import AllreduceResults, Cut, DdpRun, Point
from railyard.results.runs.records import Rails, Verdict, worst_verdict
from railyard.results.theory import nezha

SINGLE: Final = "single"  # a policy `single:NAME` is one rail; `single` alone chooses the best by its nominal cost


def is_single(policy: str) -> bool:
    """Return if a policy uses one rail."""
    return policy.partition(":")[0] == SINGLE


@dataclass(frozen=True)
class FabricMeasurements:
    """The points of one fabric, of a policy and size one for each start of its processes: medians over these, seconds.

    Small sizes may have more starts than large ones, so whatever covers several sizes groups by size first.
    """

    rails: Rails
    points: tuple[Point, ...]
    left_out: tuple[Point, ...] = ()  # invalid ones, of which only the sizes count

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each point."""
        columns = ["policy", "size", "repeat", "mean_s", "typical_s", "split"]
        return pd.DataFrame([[getattr(point, name) for name in columns] for point in self.points], columns=columns)

    @cached_property
    def seconds(self) -> dict[str, dict[int, float]]:
        """Policy -> size -> seconds of an operation (the mean of a start, the median over starts)."""
        by_policy = self.frame.groupby("policy", sort=False)
        return {str(name): dict(rows.groupby("size", sort=False).mean_s.median()) for name, rows in by_policy}

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies that were measured, in the order in which they began."""
        return tuple(self.seconds)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that were measured, smallest first."""
        return tuple(sorted({point.size for point in self.points}))

    @property
    def largest(self) -> int:
        """The largest size that was measured, whether or not it is valid."""
        return max(point.size for point in (*self.points, *self.left_out))

    @property
    def large(self) -> int | None:
        """The largest size, if it is one of the large ones. A target for it is not judged by a smaller one."""
        return self.largest if self.largest >= nezha.LARGE else None

    @property
    def small(self) -> list[int]:
        """The sizes that count as small."""
        return [size for size in self.sizes if size <= nezha.SMALL]

    def starts(self, policy: str, size: int) -> tuple[Point, ...]:
        """Return the point of each start, in their order."""
        return tuple(p for p in self.points if (p.policy, p.size) == (policy, size))

    def at(self, policy: str, size: int | None) -> float | None:
        """Return the seconds of an operation; None where it wasn't measured, or without a size."""
        return self.seconds.get(policy, {}).get(size) if size is not None else None

    def ratios(self, policy: str, other: str, size: int) -> list[float]:
        """Return what an operation usually takes over the other's, start by start.

        Policies take turns within a start, so what slows down both cancels out.
        """
        of_size = self.frame[self.frame["size"] == size]
        typical = of_size.pivot(index="repeat", columns="policy", values="typical_s")
        known = {policy, other} <= set(typical.columns)
        return list((typical[policy] / typical[other]).dropna()) if known else []

    def singles(self, size: int | None) -> dict[str, float]:
        """Return the seconds of each single rail; of `single` itself only where no rail is given by its name."""
        found = {each: s for each in self.seconds if is_single(each) and (s := self.at(each, size)) is not None}
        return {policy: seconds for policy, seconds in found.items() if policy != SINGLE} or found

    def gain(self, policy: str, size: int | None) -> float | None:
        """Return the throughput over that of the better rail alone."""
        gains = [self.over(policy, each, size) for each in self.seconds if is_single(each)]
        return min((gain for gain in gains if gain), default=None)

    def over(self, policy: str, other: str, size: int | None) -> float | None:
        """Return the throughput over another policy's."""
        own = self.at(policy, size)
        others = self.at(other, size)
        return others / own if own and others else None

    def of_ideal(self, policy: str, size: int | None) -> float | None:
        """Return the throughput over the sum of all rails' own, measured alone; None unless each was."""
        own = self.at(policy, size)
        alone = self.singles(size)
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
    points = grouped(found.points, "fabric")
    left_out = grouped(found.left_out, "fabric")
    return tuple(
        FabricMeasurements(rails, tuple(points[rails.label]), tuple(left_out.get(rails.label, ())))
        for rails in found.fabrics
        if rails.label in points
    )


# Performance targets --------------------------------------------------------------------------------------------------

Scope = Literal["run", "fabric", "fault", "DDP run"]
Measure = Callable[[Any], float | tuple[float | None, str] | None]
"""From a part of the results to its value, or a value (None: never) and of what it is; None where it has none."""
_MEASURES: Final[dict[Target, tuple[Scope, Measure]]] = {}
_LOSSES: Final = "DDP: losses differ from Gloo's by"


def outcomes(found: AllreduceResults, verdicts: Mapping[IntervalId, Verdict] | None = None) -> tuple[Outcome, ...]:
    """Return every target, once for each part on which it was measured, or else once as not measured.

    `verdicts` of the intervals: what is invalid is left out, but for targets of correctness, which hold on any machine.
    """
    verdicts = verdicts or {}
    everything = _parts(found)
    valid = _parts(found.without({interval for interval, verdict in verdicts.items() if verdict == "invalid"}))
    outcomes: list[Outcome] = []
    for target, (scope, measure) in _MEASURES.items():
        measured = []
        for interval, part, rows in (everything if target.claim else valid)[scope]:
            figure = measure(part)
            if figure is not None:
                value, of = figure if isinstance(figure, tuple) else (figure, "")
                place = ": ".join(filter(None, (interval.fabric, interval.part))) or "all"
                verdict = "ok" if target.claim else worst_verdict(verdicts.get(row.interval, "ok") for row in rows)
                measured.append(Outcome(target, place, samples=(Sample(value, of, interval),), verdict=verdict))
        outcomes += measured or [Outcome(target)]
    return tuple(outcomes)


def _parts(found: AllreduceResults) -> "dict[Scope, list[tuple[IntervalId, Any, Sequence[Record]]]]":
    """Return what targets are measured on: its name, itself, and the rows that it consists of."""
    faults = grouped(found.cuts, "fabric", "name").items()
    return {
        "run": [(IntervalId(), found, found.points)],
        "fabric": [(IntervalId(m.rails.label), m, m.points) for m in by_fabric(found)],
        "fault": [(IntervalId(fabric, part=name), cuts, cuts) for (fabric, name), cuts in faults],
        "DDP run": [(ddp_run.interval, ddp_run, [ddp_run]) for ddp_run in found.ddp_runs],
    }


def _target(scope: Scope, quantity: str, unit: str, **more: Any) -> Callable[[Measure], Target]:
    """Register a target with the function that measures it on each part; the function's name becomes the target."""
    target = Target(quantity=quantity, unit=unit, **more)

    def register(measure: Measure) -> Target:
        _MEASURES[target] = (scope, measure)
        return target

    return register


def _none_target(scope: Scope, quantity: str, unit: str) -> Callable[[Measure], Target]:
    """Register a target of 0 that every run has to meet."""
    return _target(scope, quantity, unit, most=0, claim=f"{quantity}: none")


@_none_target("run", "elements other than numpy's sum", "elements")
def correct_sums(found: AllreduceResults) -> tuple[float, str] | None:
    """All fabrics and policies together: a single wrong element is one too many."""
    checked = [p for p in found.points if p.checked]
    if not checked:
        return None
    worst = max(checked, key=lambda p: p.wrong)
    wrong = sum(p.wrong for p in checked)
    where = f"; {worst.policy} on {worst.fabric}" if wrong else ""
    return float(wrong), f"of {sum(p.checked for p in checked):,} in {len(checked)} points{where}"


def _has_two_like_rails(m: FabricMeasurements) -> bool:
    return len(m.rails.kinds) == 2 and len({*zip(m.rails.kinds, m.rails.bps, strict=True)}) == 1


@_target("fabric", "single rail, ring, large: of its links' bound", "share", least=0.95)
def link_bound(m: FabricMeasurements) -> tuple[float, str] | None:
    """The worst of the rings at the largest size: what its links alone would take, over what it took.

    Of a ring of N no rank's link can carry less than 2(N-1)/N of the buffer (Patarasuk and Yuan, 2009). Set-up is not
    included. Rails whose processor is slower than their links are left out.
    """
    rails = m.rails
    cpus = rails.cpu_s_per_byte or (0.0,) * len(rails.names)
    rows = zip(rails.names, rails.kinds, rails.bps, cpus, strict=True)
    bps = {f"{SINGLE}:{name}": rate for name, kind, rate, cpu in rows if kind != "sharp" and cpu <= 8 / rate}
    sent = {p.policy: p.sent for p in m.points if p.size == m.large and p.policy in bps}
    bits = 8 * 2 * (rails.nodes - 1) / rails.nodes
    return min(((bits * sent[by] / bps[by] / (m.at(by, m.large) or inf), by) for by in sent), default=None)


def _like_rails(nodes: int) -> Target:
    """Register the gain on so many nodes."""
    quantity = f"two like rails, {nodes} nodes, large: of one"
    stated = nezha.GAINS["tcp+tcp", nodes, "nezha"]

    @_target("fabric", quantity, "times", least=stated, source="Nezha 5.2.1", goal=1.95)
    def gain(m: FabricMeasurements) -> float | None:
        return m.gain("nezha", m.large) if _has_two_like_rails(m) and m.rails.nodes == nodes else None

    return gain


PAIR: Final = {nodes: _like_rails(nodes) for nodes in (4, 8)}


def _over_baseline(baseline: str, stated: str) -> Target:
    """Register the throughput over a baseline's, at the size of the large ones where it was worst."""

    @_target("fabric", f"nezha, large: throughput of {baseline}'s", "times", least=0.98, source=stated)
    def throughput(m: FabricMeasurements) -> tuple[float, str] | None:
        sizes = [size for size in m.sizes if nezha.LARGE <= size <= nezha.LARGEST]
        found = [(geometric_mean(ratios), size) for size in sizes if (ratios := m.ratios(baseline, "nezha", size))]
        ratio, size = min(found, default=(None, 0))
        return None if ratio is None else (ratio, f"at {size_name(size)}")

    return throughput


OVER_BASELINE: Final = {
    "mptcp": _over_baseline("mptcp", "Nezha 5.2.2, unlike rails: up to 1.80x"),
    "mrib": _over_baseline("mrib", "Nezha 5.2.2, unlike rails: up to 1.41x"),
    "slicing": _over_baseline("slicing", ""),
}


@_target("fabric", "unlike rails, large: of the better one", "times", least=1.4, source="Nezha 5.2.2: 1.46 to 1.63")
def unlike(m: FabricMeasurements) -> float | None:
    """Gain at the largest size."""
    return m.gain("nezha", m.large) if len(set(m.rails.kinds)) > 1 else None


@_target("fabric", "unlike rails, large: of the sum of both", "share", least=0.95)
def sum_of_rails(m: FabricMeasurements) -> float | None:
    """Throughput at the largest size, over that of all rails alone."""
    return m.of_ideal("nezha", m.large) if len(set(m.rails.kinds)) > 1 else None


def _starts(values: Sequence[float], show: Callable[[float], str]) -> str:
    """`; 0.96x to 1.04x in 3 starts`: it shows how much a few percent mean."""
    return f"; {show(min(values))} to {show(max(values))} in {len(values)} starts" if len(values) > 1 else ""


@_target("fabric", "small, cold: latency of the best single rail's", "times", most=1.03)
def small_latency(m: FabricMeasurements) -> tuple[float, str] | None:
    """The small size where it was worst, beside the rail that was best there.

    The median of all sizes is given with it: one size has few operations, so its figure varies by chance.
    """
    found = []
    for size in m.small:
        ratios = [ratios for rail in m.singles(size) if (ratios := m.ratios("nezha", rail, size))]
        if ratios:
            by_start = max(ratios, key=geometric_mean)
            found.append((geometric_mean(by_start), size, by_start))
    if not found:
        return None
    worst, at, by_start = max(found)
    middle = times(median(ratio for ratio, *_ in found))
    return worst, f"at {size_name(at)}; median of {len(found)} sizes {middle}{_starts(by_start, times)}"


def _small_latency_over(baseline: str) -> Target:
    """Register the median of small sizes: the paper's 15% are of set-ups, which all of them have, so one slow operation
    of the baseline's must not count.
    """
    quantity = f"small, cold: less latency than {baseline}"

    @_target("fabric", quantity, "share", least=0.15, source="Nezha 5.2.1")
    def latency(m: FabricMeasurements) -> tuple[float, str] | None:
        found = [ratios for size in m.small if (ratios := m.ratios("nezha", baseline, size))]
        if not found:
            return None
        by_start = [1 - median(ratios) for ratios in zip(*found, strict=False)]
        of = f"median of {len(found)} sizes{_starts(by_start, SMALL_LATENCY_OVER_BASELINE[baseline].text)}"
        return 1 - median(map(geometric_mean, found)), of

    return latency


SMALL_LATENCY_OVER_BASELINE: Final = {baseline: _small_latency_over(baseline) for baseline in ("mrib", "mptcp")}


@_target("fabric", "balancer converges in", "operations", most=nezha.CONVERGENCE_OPERATIONS, source="Nezha 4.3")
def convergence(m: FabricMeasurements) -> tuple[float | None, str] | None:
    """The size, and of its starts the one, that took longest: it has to converge however often it is started."""
    split = [p for p in m.points if p.policy == "nezha" and p.split]
    slowest = max(split, key=lambda p: inf if p.settled_after is None else p.settled_after, default=None)
    return (slowest.settled_after, f"at {size_name(slowest.size)}") if slowest else None


@_target("fabric", "time between rails after that", "share", most=nezha.MEAN_RAIL_TIME_SPREAD, source="Nezha 5.3.2")
def rail_time_spread(m: FabricMeasurements) -> tuple[float, str] | None:
    """Nezha's is an average. A size counts once, as the mean of its starts: small ones have more than large ones."""
    split = [p for p in m.points if p.policy == "nezha" and p.split]
    sizes = [fmean(p.relative_spread for p in starts) for starts in grouped(split, "size").values()]
    return (fmean(sizes), f"mean of {len(sizes)} sizes") if sizes else None


def _migration(cuts: list[Cut], combine: Callable[[list[float]], float]) -> tuple[float | None, str] | None:
    """Return the time from the fault, of faults that fell into an operation and of kinds that traffic is moved from."""
    moved = [cut for cut in cuts if cut.inside and definition_of(cut.fault).is_rerouted]
    values = [inf if cut.migrate_ms is None else cut.migrate_ms for cut in moved]
    value = combine(values) if values else inf
    return (None if value == inf else value, f"n={len(values)}") if values else None


migration: Final = _target(
    "fault", "NIC cut until migrated, median", "ms", most=50, source="Nezha 4.4: below 200, from detection on"
)(lambda cuts: _migration(cuts, median))
migration_worst: Final = _target("fault", "NIC cut until migrated, worst", "ms", most=200)(
    lambda cuts: _migration(cuts, max)
)


@_none_target("fault", "elements wrong while a rail was cut", "elements")
def correct_during_cut(cuts: list[Cut]) -> tuple[float, str]:
    """Sum over the repeats."""
    return float(sum(c.wrong for c in cuts)), f"of {sum(c.checked for c in cuts):,}"


@_none_target("fault", "cuts that ended the operations", "cuts")
def aborted_by_cut(cuts: list[Cut]) -> tuple[float, str]:
    """Repeats with an error."""
    errors = [c.error for c in cuts if c.error]
    return float(len(errors)), next(iter(errors), f"of {len(cuts)}")


@_none_target("fault", "cuts after whose repair the rail stayed idle", "cuts")
def rail_reused(cuts: list[Cut]) -> tuple[float, str] | None:
    """Repeats in which the rail carried something before its fault, and nothing after its repair."""
    carried = [c.home_ms for c in cuts if c.carried]
    return (float(carried.count(None)), f"of {len(carried)}") if carried else None


@_target("fabric", "one tcp rail, large: throughput of Gloo's", "times", least=1.0)
def gloo(m: FabricMeasurements) -> float | None:
    """The first TCP rail that was measured."""
    rails = [f"{SINGLE}:{name}" for name, kind in zip(m.rails.names, m.rails.kinds, strict=True) if kind == "tcp"]
    found = (m.over(policy, "gloo", m.large) for policy in ((*rails, SINGLE) if rails else ()))
    return next((ratio for ratio in found if ratio is not None), None)


@_target("fabric", "two tcp rails, large: throughput of Gloo's", "times", least=1.8, source="Nezha: 1.7 to 4.3")
def gloo_pair(m: FabricMeasurements) -> float | None:
    """Nezha over Gloo at the largest size."""
    return m.over("nezha", "gloo", m.large) if _has_two_like_rails(m) else None


@_target("DDP run", _LOSSES, "share", most=1e-3, claim=_LOSSES)
def ddp_loss_difference(ddp_run: DdpRun) -> tuple[float, str]:
    """Difference of any rank and step."""
    return ddp_run.losses_apart, f"{len(ddp_run.losses)} steps"


@_target("DDP run", "DDP: steps as fast as Gloo's", "times", least=1.0)
def ddp_speedup(ddp_run: DdpRun) -> tuple[float, str]:
    """Gloo's step over ours."""
    return ddp_run.gloo_step_s / ddp_run.step_s, ddp_run.policy
