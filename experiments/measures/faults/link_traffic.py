"""Traffic around faults on each link, by the goodput records of a run: for the live page of a finished run.

A failure script sends paced streams between pairs that follow from the fault and the fabric alone, and records only
their sums. So each of the streams that a fault affects gets an even part of their goodput, and each of the others of
the rest. While a fault was rerouted, a stream is on the path that the controller chooses for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from railyard.controller.failover.detours import Broken, choose
from railyard.core.records import Recovery
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.pairs import (
    PairSelection,
    affected_pairs,
    broken_by,
    monitored_pairs,
    select_script_pairs,
)
from railyard.failure.recovery_times import BIN_MS
from railyard.results.measured import CrossedLinks, LinkTraffic
from railyard.results.runs.records import GoodputTrace, Run
from railyard.topologies.addresses import Pair
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.forwarding import Shares
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.plan import Plan

Values = npt.NDArray[np.float64]


def traffic_of(run: Run, label: str, plan: FabricPlan, crossed: CrossedLinks) -> Iterator[LinkTraffic]:
    """Yield the traffic around each fault, or script of faults, of a fabric."""
    for trace in run.rows(GOODPUT):
        rows = _faults_of(trace, run)
        first = _first_fault(trace, rows)
        if trace.fabric != label or first is None or not trace.bps:
            continue
        if isinstance(plan, Plan):
            yield _Streams(trace, first, rows, plan, crossed).traffic()
        elif isinstance(plan, MultirailPlan) and trace.link:
            yield _nic_traffic(trace, first, plan)


def _faults_of(trace: GoodputTrace, run: Run) -> list[Recovery]:
    """Return the faults of a trace's interval, without those of plugins that are not loaded."""
    return [row for row in run.rows(RECOVERIES) if row.interval == trace.interval and row.fault in FAULTS]


def _first_fault(trace: GoodputTrace, rows: Sequence[Recovery]) -> Recovery | None:
    """Return the fault from which a trace counts."""
    for row in rows:
        if (row.fault, row.target) == (trace.fault, trace.target):
            return row
    return None


def _bin_ns(trace: GoodputTrace) -> int:
    """Return how long a bin of a trace lasts."""
    bin_ms = BIN_MS
    if len(trace.t_ms) > 1:
        bin_ms = trace.t_ms[1] - trace.t_ms[0]
    return round(bin_ms * 1e6)


def _begin_ns(trace: GoodputTrace, first: Recovery) -> int:
    """Return when the first bin of a trace begins (monotonic ns)."""
    return first.t_fault + round(trace.t_ms[0] * 1e6)


def _nic_traffic(trace: GoodputTrace, first: Recovery, plan: MultirailPlan) -> LinkTraffic:
    """Return the traffic of one NIC; its record has both directions together."""
    _, node = plan.place_of(trace.target)
    rail_names = [rail.name for rail in plan.rails]
    nic_end = (plan.hosts[node], f"rail{rail_names.index(trace.link)}")
    ends = [(link.a.node, link.a.interface) for link in plan.links]
    bits = np.zeros((2, len(plan.links), len(trace.bps)))
    bits[:, ends.index(nic_end)] = np.array(trace.bps) / 2
    return LinkTraffic(_begin_ns(trace, first), _bin_ns(trace), _wire_bits(bits, trace, plan.spec.mtu))


def _wire_bits(bps: Values, trace: GoodputTrace, mtu: int) -> Values:
    """Return bits on the wire in each bin, of goodput in bit/s."""
    return bps * _bin_ns(trace) / 1e9 / payload_fraction(mtu)


@dataclass(frozen=True)
class _Streams:
    """The streams of one goodput record. `first`: the fault from which it counts; `rows`: all faults of its script."""

    trace: GoodputTrace
    first: Recovery
    rows: Sequence[Recovery]
    plan: Plan
    crossed: CrossedLinks

    def traffic(self) -> LinkTraffic:
        """Return what the streams put on the links."""
        begin_ns = _begin_ns(self.trace, self.first)
        bin_ns = _bin_ns(self.trace)
        total = np.array(self.trace.bps)
        affected = np.zeros_like(total)
        if not self._is_script:
            affected = np.array(self.trace.affected_bps)
        unaffected = total - affected
        count = len(total)
        bits = np.zeros((2, len(self.plan.links), count))
        changes = {0, count}
        for at_ns in chain.from_iterable(map(self._rerouted, self.rows)):
            changes.add(min(count, max(0, (at_ns - begin_ns) // bin_ns)))
        # between two changes each stream stays on its path
        for start, end in pairwise(sorted(changes)):
            broken = self._broken_at(begin_ns + start * bin_ns, bin_ns)
            for pairs, bps in ((self._affected, affected), (self._unaffected, unaffected)):
                weights = self._weights(pairs, broken)
                bits[:, :, start:end] += weights[:, :, None] * bps[start:end]
        return LinkTraffic(begin_ns, bin_ns, _wire_bits(bits, self.trace, self.plan.spec.mtu))

    @property
    def _is_script(self) -> bool:
        return bool(self.trace.interval.script)

    @cached_property
    def _selection(self) -> PairSelection:
        faults = [Fault(row.fault, row.target) for row in self.rows]
        if self._is_script:
            affected = [affected_pairs(fault, self.plan) for fault in faults]
            return select_script_pairs(self.plan, affected)[0]
        return monitored_pairs(faults[0], self.plan)

    @property
    def _affected(self) -> list[Pair]:
        """The streams whose sum is recorded apart; a script's record has no such sum."""
        if self._is_script:
            return []
        return [pair for pair in self._selection.streams if pair in self._selection.affected]

    @property
    def _unaffected(self) -> list[Pair]:
        return [pair for pair in self._selection.streams if pair not in self._affected]

    def _rerouted(self, row: Recovery) -> tuple[int, int]:
        """Return from when to when a fault's streams were on detours, ns: from the fault, as few bytes flow before."""
        if row.reroute_ms is None:
            return row.t_fault, row.t_fault
        return row.t_fault, row.t_repair + round((row.primary_path_ms or 0) * 1e6)

    def _broken_at(self, bin_begin_ns: int, bin_ns: int) -> Broken:
        """Return what the controller routes around in a bin, from a change in it on."""
        broken = Broken()
        for row in self.rows:
            begin_ns, end_ns = self._rerouted(row)
            if begin_ns - bin_ns < bin_begin_ns <= end_ns - bin_ns:
                more = broken_by(Fault(row.fault, row.target).impact(self.plan), self.plan)
                broken = Broken(
                    links=broken.links | more.links,
                    rails=broken.rails | more.rails,
                    disconnected_ranks=broken.disconnected_ranks | more.disconnected_ranks,
                    hb=broken.hb | more.hb,
                    planes=broken.planes | more.planes,
                )
        return broken

    def _weights(self, pairs: Sequence[Pair], broken: Broken) -> Values:
        """Return the share of the pairs' bytes on each link, in both directions, if each pair sends as much."""
        weights = np.zeros((2, len(self.plan.links)))
        spec = self.plan.spec
        # a pair without a path sends nothing
        paths: dict[Pair, Shares] = {}
        for src, dst in pairs:
            shares = choose(spec, src, dst, broken)
            if shares:
                paths[src, dst] = shares
        for pair, shares in paths.items():
            for direction, number, share in self.crossed(pair, shares):
                weights[direction, number] += share / len(paths)
        return weights
