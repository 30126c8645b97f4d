"""Who talks while something breaks: pure choices, made before the fault, the same for every run of a spec."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Final

import numpy as np

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan

Pair = tuple[Gpu, Gpu]
Crosses = Callable[[Gpu, Gpu], bool]
"""Something of the usual path between two GPUs of different domains."""

PROBES: Final = 4
ONE_SIDE_PROBES: Final = 3  # where the fault has no other
MAX_PROBES: Final = 8
"""All together: at a thousand a second each, more would be a load of their own."""
SHARED_PROBES: Final = 4
"""Of a long script: what it is for is the census, and all that runs for minutes should leave cores idle."""
_FAULT_WEIGHT: Final = 100  # more than all sides of all faults that one pair can be on


@dataclass(frozen=True, slots=True)
class FaultImpact:
    """Whom a fault concerns.

    `crosses`: whether a pair's usual path goes by what breaks; `own`: whether that is the cable by which it leaves its
    own domain, so that the kernel there can help itself. `dead`: GPUs that don't live while it lasts.
    """

    crosses: Crosses
    own: Crosses
    dead: frozenset[Gpu] = frozenset()

    def pairs(self, gpus: Iterable[Gpu]) -> list[Pair]:
        """The pairs of others that it may cut off."""
        alive = [gpu for gpu in gpus if gpu not in self.dead]
        return [(a, b) for a in alive for b in alive if a.domain != b.domain and self.crosses(a, b)]


@dataclass(frozen=True, slots=True)
class PairSelection:
    """`streams` carry traffic; `affected` are those whose usual path crosses what breaks; `probes` are probed at 1
    kHz, `at_source` are those of them whose own end is hit, so that their kernel can help itself.
    """

    streams: tuple[Pair, ...]
    affected: frozenset[Pair]
    probes: tuple[Pair, ...]
    at_source: frozenset[Pair] = frozenset()


def select_pairs(plan: Plan, impact: FaultImpact) -> PairSelection:
    """Each GPU streams to the next domain, by turns on its rail and to the next rank; some that are hit are probed.

    Dead GPUs neither stream nor are probed: what counts is what their absence does to the others. Of the probes two
    are hit at their source and two on their far side, or three where there is one side alone; one of each side stays
    on its rail, the rest change rails. The probed pairs stream too, so that goodput is of more than one.
    """
    probed = _probed(plan, impact)
    streams = tuple(dict.fromkeys([*_next_domain_pairs(plan, impact.dead), *probed]))
    return _select_for(impact, streams, probed)


def select_script_pairs(plan: Plan, impacts: Sequence[FaultImpact]) -> tuple[PairSelection, ...]:
    """The same for several faults, in their order: all with the same streams, each with those probes that it hits.

    All GPUs stream, those that die as well: their connections stall and go on. Where the faults are too many for
    probes of their own, the pairs are taken that most of them hit.
    """
    own = list(dict.fromkeys(pair for impact in impacts for pair in _probed(plan, impact)))
    probed = own if len(own) <= MAX_PROBES else _max_coverage(plan, impacts)
    streams = tuple(dict.fromkeys([*_next_domain_pairs(plan, frozenset()), *probed]))
    return tuple(_select_for(impact, streams, probed) for impact in impacts)


def _select_for(impact: FaultImpact, streams: tuple[Pair, ...], probed: Sequence[Pair]) -> PairSelection:
    affected = frozenset(pair for pair in streams if impact.dead.isdisjoint(pair) and impact.crosses(*pair))
    probes = tuple(pair for pair in probed if pair in affected)
    return PairSelection(streams, affected, probes, frozenset(pair for pair in probes if impact.own(*pair)))


def _next_domain_pairs(plan: Plan, dead: frozenset[Gpu]) -> list[Pair]:
    domains, rails = plan.spec.domains, plan.spec.rails
    pairs = ((src, Gpu((src.domain + 1) % domains, (src.rank + src.domain % 2) % rails)) for src in plan.gpus)
    return [pair for pair in pairs if dead.isdisjoint(pair)]


def _sides(plan: Plan, impact: FaultImpact) -> list[list[Pair]]:
    """The pairs that it hits at their source, and those that it hits elsewhere; the sides that there are."""
    pairs = impact.pairs(plan.gpus)
    own = [impact.own(*pair) for pair in pairs]
    return [side for side in (list(compress(pairs, own)), list(compress(pairs, map(not_, own)))) if side]


def _probed(plan: Plan, impact: FaultImpact) -> list[Pair]:
    sides = _sides(plan, impact)
    return [pair for side in sides for pair in _choose(side, PROBES // 2 if len(sides) > 1 else ONE_SIDE_PROBES)]


def _choose(pairs: list[Pair], count: int) -> list[Pair]:
    same = _evenly_spaced([pair for pair in pairs if pair[0].rank == pair[1].rank], 1)
    return same + _evenly_spaced([pair for pair in pairs if pair[0].rank != pair[1].rank], count - len(same))


def _evenly_spaced(pairs: list[Pair], count: int) -> list[Pair]:
    """So many of them, evenly over the list, its last one included."""
    if len(pairs) <= count:
        return pairs
    return [pairs[(i + 1) * len(pairs) // count - 1] for i in range(count)]


def _max_coverage(plan: Plan, impacts: Sequence[FaultImpact]) -> list[Pair]:
    """So many pairs that as many faults as possible hit one, and then as many of their sides; taken one by one."""
    all_pairs = [(a, b) for a in plan.gpus for b in plan.gpus if a.domain != b.domain]
    numbers = {pair: number for number, pair in enumerate(all_pairs)}
    sides = [_sides(plan, impact) for impact in impacts]
    rows = [[pair for side in both for pair in side] for both in sides] + [side for both in sides for side in both]
    weights = np.array([_FAULT_WEIGHT] * len(sides) + [1] * (len(rows) - len(sides)))
    hits = np.zeros((len(rows), len(all_pairs)), dtype=np.bool_)
    for row, pairs in enumerate(rows):
        hits[row, [numbers[pair] for pair in pairs]] = True
    chosen: list[Pair] = []
    uncovered = np.ones(len(rows), dtype=np.bool_)
    while len(chosen) < SHARED_PROBES:
        if not hits[uncovered].any():  # all have one: a second time
            uncovered[:] = True
        best = int(np.argmax((weights[:, None] * hits)[uncovered].sum(axis=0)))
        chosen.append(all_pairs[best])
        uncovered &= ~hits[:, best]
        hits[:, best] = False
    return chosen
