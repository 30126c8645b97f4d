"""Who talks while something breaks: pure choices, made before the fault, the same for every run of a spec."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from topologies.addresses import Gpu
from topologies.plan import Plan

Pair = tuple[Gpu, Gpu]


@dataclass(frozen=True, slots=True)
class Talkers:
    """`streams` carry traffic; `affected` are those whose usual path crosses what breaks; `probes` are probed at 1
    kHz, `at_source` are those of them whose own end is hit, so that their kernel can help itself.
    """

    streams: tuple[Pair, ...]
    affected: frozenset[Pair]
    probes: tuple[Pair, ...]
    at_source: frozenset[Pair] = frozenset()


def talkers(plan: Plan, crosses: Callable[[Gpu, Gpu], bool], dead: Collection[Gpu], probes: int = 3) -> Talkers:
    """Each GPU streams to the next domain, by turns on its rail and to the next rank; some that `crosses` are probed.

    GPUs in `dead` neither stream nor are probed: what counts is what their absence does to the others. One of three
    probes stays on its rail, the rest change rails; the probed pairs stream too, so that goodput is of more than one.
    """
    domains, rails = plan.spec.domains, plan.spec.rails
    alive = [gpu for gpu in plan.gpus if gpu not in dead]
    pairs = [(src, dst) for src in alive for dst in alive if src.domain != dst.domain and crosses(src, dst)]
    same = [pair for pair in pairs if pair[0].rank == pair[1].rank]
    other = [pair for pair in pairs if pair[0].rank != pair[1].rank]
    on_rail = _spread(same, probes // 2)
    probed = on_rail + _spread(other, probes - len(on_rail))
    next_ones = [
        (src, dst)
        for src in alive
        if (dst := Gpu((src.domain + 1) % domains, (src.rank + src.domain % 2) % rails)) not in dead
    ]
    streams = tuple(dict.fromkeys(next_ones + probed))
    return Talkers(streams, frozenset(pair for pair in streams if crosses(*pair)), tuple(probed))


def _spread(pairs: list[Pair], count: int) -> list[Pair]:
    """So many of them, evenly over the list, its last one included."""
    if len(pairs) <= count:
        return pairs
    return [pairs[(i + 1) * len(pairs) // count - 1] for i in range(count)]
