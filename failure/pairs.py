"""Choice of the pairs of GPUs that stream and are probed during a fault: pure, the same for every run of a spec."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations
from typing import Final, TypeVar

import numpy as np

from railyard.controller.failover.detours import Broken, find_disconnected_ranks, gpus_without_link, is_intact
from railyard.failure.faults import Fault, Impact
from railyard.failure.faults.support.impact import cable, impaired_links
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.forwarding import Path, hops, rail_ends
from railyard.topologies.plan import Plan

T = TypeVar("T")
PairFilter = Callable[[Gpu, Gpu], bool]  # a property of the default path between two GPUs of different domains

PROBES: Final = 4
ONE_SIDE_PROBES: Final = 3  # if the fault affects only sources or only far ends
# at 1000 packets/s each, more probes would be a load of their own
MAX_PROBES: Final = 8
# share of a rail for each stream: two or three leave from each GPU, and detours need room
STREAM_SHARE: Final = 0.08
SHARED_PROBES: Final = 4
"""In a long script, whose purpose is connectivity checks: what runs for minutes should leave cores idle."""
_ALL_PAIRS_GPUS: Final = 64
"""GPUs of the largest fabric of which every pair is looked at, which is 10 µs for each pair and fault."""
# so many domains, and ranks, of a larger fabric: a fault's pairs are chosen between their GPUs
_SOME: Final = 8
_SHARED_CANDIDATES: Final = 512
# more than the number of sides of faults that one pair can be on
_FAULT_WEIGHT: Final = 100


@dataclass(frozen=True, slots=True)
class AffectedPairs:
    """The pairs that a fault affects.

    `crosses`: whether a pair's default path crosses what breaks.
    `is_at_source`: whether that is the cable by which the path leaves its own domain, so that the kernel there can
    switch to its backup route.
    `dead`: GPUs that are down.
    `domains`, `ranks`: of the GPUs and rail switches that break; every path that crosses them ends at one of each.
    """

    crosses: PairFilter
    is_at_source: PairFilter
    dead: frozenset[Gpu] = frozenset()
    domains: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()

    def sides(self, candidates: Iterable[Pair]) -> list[list[Pair]]:
        """Return the pairs of live GPUs that a fault may cut off at their source, and elsewhere; no empty lists."""
        at_source: list[Pair] = []
        elsewhere: list[Pair] = []
        for src, dst in candidates:
            if src.domain == dst.domain or not self._affects(src, dst):
                continue
            side = at_source if self.is_at_source(src, dst) else elsewhere
            side.append((src, dst))
        return [side for side in (at_source, elsewhere) if side]

    def _affects(self, src: Gpu, dst: Gpu) -> bool:
        return self.dead.isdisjoint((src, dst)) and self.crosses(src, dst)

    def selection(self, streams: tuple[Pair, ...], probed: Sequence[Pair]) -> "PairSelection":
        """Return which of these streams and probes count for the fault."""
        affected = frozenset(pair for pair in streams if self._affects(*pair))
        probes = tuple(pair for pair in probed if pair in affected)
        at_source = frozenset(pair for pair in probes if self.is_at_source(*pair))
        return PairSelection(streams, affected, probes, at_source)


def broken_by(impact: Impact, plan: Plan) -> Broken:
    """Return what an impact disables for path choice. A dead GPU takes its rail link along."""
    kind = plan.spec.definition
    impaired = impaired_links(impact, plan)
    # leaf switches don't count: the loss of one is in `islands`
    rail_switches = plan.switches_of("rail", "single")
    rails = frozenset(switch.index for switch in rail_switches if switch.name in impact.nodes)
    islands = frozenset[frozenset[Gpu]]()
    if kind.is_graph:
        islands = plan.graph.islands(impact.nodes, impact.cables)
    planes = impaired if kind.planes > 1 else frozenset()
    return Broken(
        links=gpus_without_link(impaired, kind.planes),
        planes=planes,
        rails=rails,
        islands=islands,
        disconnected_ranks=_disconnected_ranks(impact, plan),
        hb=impact.gpus_impaired_at("hb"),
    )


def _disconnected_ranks(impact: Impact, plan: Plan) -> frozenset[tuple[int, int]]:
    """Return the pairs of ranks whose rail switches no spine joins any more."""
    # one of several spines may be lost without effect: switches spread their connections over the others
    dead_spines = {spine.dpid for spine in plan.switches_of("spine") if spine.name in impact.nodes}
    down_ports: set[tuple[int, int]] = set()
    for link in plan.uplinks:
        if cable(link.a.node, link.b.node) in impact.cables:
            for end in (link.a, link.b):
                down_ports.add((plan.dpids[end.node], end.port or 0))
    if not (dead_spines or down_ports):
        return frozenset()
    return find_disconnected_ranks(plan, down_ports, dead_spines)


def affected_pairs(fault: Fault, plan: Plan) -> AffectedPairs:
    """Return the pairs that a fault affects; all that have a path for a fault of the control plane."""
    # no pair may notice the loss of a control process
    if fault.definition.is_control_plane:
        return AffectedPairs(lambda src, dst: bool(plan.spec.paths(src, dst)), lambda src, dst: False)
    impact = fault.impact(plan)
    broken = broken_by(impact, plan)
    sources = impact.gpus_impaired_at("rail")
    uplinks = {cable(link.a.node, link.b.node) for link in plan.uplinks}
    on_graph = plan.spec.definition.is_graph or not uplinks.isdisjoint(impact.impaired_cables)
    spines = {spine.name for spine in plan.switches_of("spine")}
    hits_spine = not spines.isdisjoint(impact.nodes)

    def crosses(src: Gpu, dst: Gpu) -> bool:
        for share in plan.spec.paths(src, dst):
            path = share.path
            # the hash of a switch chooses the spine, so any path over spines may cross the one that is hit
            if hits_spine and path.kind == "spine":
                return True
            if on_graph and _crosses_graph(path, src, dst, impact, plan):
                return True
            if not is_intact(path, src, dst, broken, plan.spec.kind, plan.spec.rail_of_rank):
                return True
        return False

    def is_at_source(src: Gpu, dst: Gpu) -> bool:
        return any(rail_ends(share.path, src, dst)[0] in sources for share in plan.spec.paths(src, dst))

    hit_gpus = impact.dead_gpus | sources | impact.gpus_impaired_at("hb")
    if on_graph:
        for name in impact.nodes.union(*impact.impaired_cables):
            hit_gpus = hit_gpus.union(plan.graph.gpus_at.get(name, ()))
    domains = frozenset(gpu.domain for gpu in hit_gpus)
    ranks = frozenset(gpu.rank for gpu in hit_gpus) | broken.rails
    return AffectedPairs(crosses, is_at_source, impact.dead_gpus, domains, ranks)


def _crosses_graph(path: Path, src: Gpu, dst: Gpu, impact: Impact, plan: Plan) -> bool:
    """Return whether frames on a path may pass a dead switch, or an impaired cable between switches."""
    for hop in hops(path, src, dst):
        if hop.side == "rail" and plan.graph.crosses(hop.a, hop.b, impact.nodes, impact.impaired_cables):
            return True
    return False


@dataclass(frozen=True, slots=True)
class PairSelection:
    """`streams` carry traffic, and the default path of the `affected` ones crosses what breaks. `probes` are probed at
    1 kHz; those `at_source` have their own end hit, so that their kernel can use its backup route. Each stream is paced
    to `stream_share` of a rail.
    """

    streams: tuple[Pair, ...]
    affected: frozenset[Pair]
    probes: tuple[Pair, ...]
    at_source: frozenset[Pair] = frozenset()
    stream_share: float = STREAM_SHARE


def monitored_pairs(fault: Fault, plan: Plan) -> PairSelection:
    """Select pairs for one fault: each GPU streams to the next domain, alternately to its own and to the next rank.

    Dead GPUs neither stream nor are probed: what counts is the effect of their absence on others. Two of the probes
    are hit at their source and two on their far side, or three where there is only one side; one of each side stays
    on its rail, the rest change rails. Where the fault's streams are to fill the rails, each GPU streams to its own
    rank in every other domain, and no pair is probed: probes would wait in full queues.
    """
    impact = affected_pairs(fault, plan)
    load = fault.definition.stream_load(fault.parameters)
    if load:
        streams = tuple((src, dst) for src, dst in permutations(plan.gpus, 2) if src.rank == dst.rank)
        return replace(impact.selection(streams, ()), stream_share=load / max(1, plan.spec.domains - 1))
    probed = _probed(plan, impact)
    # the probed pairs stream too, so that the goodput of the affected pairs is the sum of several streams
    streams = tuple(dict.fromkeys([*_next_domain_pairs(plan, impact.dead), *probed]))
    return impact.selection(streams, probed)


def select_script_pairs(plan: Plan, impacts: Sequence[AffectedPairs]) -> tuple[PairSelection, ...]:
    """Select pairs for several faults, in their order: all have the same streams, each has the probes that it hits.

    If there are too many faults for probes of their own, the pairs are probed that most of them hit.
    """
    probed: list[Pair] = []
    for impact in impacts:
        probed += _probed(plan, impact)
    probed = list(dict.fromkeys(probed))
    if len(probed) > MAX_PROBES:
        probed = _max_coverage(plan, impacts, probed)
    # GPUs that fail stream too: their connections stall and continue
    streams = tuple(dict.fromkeys([*_next_domain_pairs(plan), *probed]))
    return tuple(impact.selection(streams, probed) for impact in impacts)


def _next_domain_pairs(plan: Plan, dead: frozenset[Gpu] = frozenset()) -> list[Pair]:
    pairs: list[Pair] = []
    for src in plan.gpus:
        domain = (src.domain + 1) % plan.spec.domains
        rank = (src.rank + src.domain % 2) % plan.spec.rails
        dst = Gpu(domain, rank)
        if not plan.spec.paths(src, dst):
            dst = Gpu(domain, src.rank)
        if dead.isdisjoint((src, dst)):
            pairs.append((src, dst))
    return pairs


def _probed(plan: Plan, impact: AffectedPairs) -> list[Pair]:
    """Choose for each side a pair that stays on its rail, and others; evenly spaced, and including the last one."""
    chosen: list[Pair] = []
    sides = impact.sides(permutations(_gpus_near(plan, impact), 2))
    probes_of_side = PROBES // 2 if len(sides) > 1 else ONE_SIDE_PROBES
    for side in sides:
        on_rail: list[Pair] = []
        across_rails: list[Pair] = []
        for src, dst in side:
            pairs = on_rail if src.rank == dst.rank else across_rails
            pairs.append((src, dst))
        probes_on_rail = _spaced(on_rail, 1)
        chosen += probes_on_rail
        chosen += _spaced(across_rails, probes_of_side - len(probes_on_rail))
    return chosen


def _spaced(items: list[T], number: int) -> list[T]:
    """Return at most `number` items, evenly spaced, of which the last one is the last of all."""
    if len(items) <= number:
        return items
    return [items[(i + 1) * len(items) // number - 1] for i in range(number)]


def _gpus_near(plan: Plan, impact: AffectedPairs) -> Sequence[Gpu]:
    """Return all GPUs. In a large fabric, return those of a few domains and ranks, up to half of which are hit."""
    if len(plan.gpus) <= _ALL_PAIRS_GPUS:
        return plan.gpus

    domains = _some_numbers(plan.spec.domains, impact.domains)
    ranks = _some_numbers(plan.spec.rails, impact.ranks)
    return [gpu for gpu in plan.gpus if gpu.domain in domains and gpu.rank in ranks]


def _some_numbers(count: int, hit: Iterable[int]) -> set[int]:
    """Return `_SOME` numbers below `count`, up to half of them from those that are hit."""
    chosen = _spaced(sorted(hit), _SOME // 2)
    remaining = [number for number in range(count) if number not in chosen]
    return {*chosen, *_spaced(remaining, _SOME - len(chosen))}


def _max_coverage(plan: Plan, impacts: Sequence[AffectedPairs], probed: list[Pair]) -> list[Pair]:
    """Choose `SHARED_PROBES` pairs greedily, each hit by as many uncovered faults, then sides, as possible.

    `probed`: the pairs that were chosen for each fault alone, from which those for all are taken on a large fabric.
    """
    if len(plan.gpus) > _ALL_PAIRS_GPUS:
        candidates = _spaced(probed, _SHARED_CANDIDATES)
    else:
        candidates = list(permutations(plan.gpus, 2))
    all_pairs = [(a, b) for a, b in candidates if a.domain != b.domain]
    # Each set to be covered is a fault or one of its sides. A fault outweighs any number of sides: with few probes,
    # each fault should be observed at all before any is observed on both sides.
    fault_sets: list[list[Pair]] = []
    side_sets: list[list[Pair]] = []
    for impact in impacts:
        sides = impact.sides(all_pairs)
        fault_sets.append(list(chain.from_iterable(sides)))
        side_sets += sides
    pair_sets = fault_sets + side_sets
    weights = np.array([_FAULT_WEIGHT] * len(fault_sets) + [1] * len(side_sets))
    columns = {pair: number for number, pair in enumerate(all_pairs)}
    hits = np.zeros((len(pair_sets), len(all_pairs)), dtype=np.bool_)
    for row, pairs in enumerate(pair_sets):
        columns_of_row = [columns[pair] for pair in pairs]
        hits[row, columns_of_row] = True
    chosen: list[Pair] = []
    uncovered = np.ones(len(pair_sets), dtype=np.bool_)
    while len(chosen) < SHARED_PROBES:
        # once all are covered, further probes cover them a second time
        if not hits[uncovered].any():
            uncovered[:] = True
        best = int(np.argmax((weights[:, None] * hits)[uncovered].sum(axis=0)))
        chosen.append(all_pairs[best])
        uncovered &= ~hits[:, best]
        hits[:, best] = False
    return chosen
