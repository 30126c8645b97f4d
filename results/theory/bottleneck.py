"""A lower bound on completion time, from what the links have to carry: the prediction of every collective."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pace import Side, gpu_hops
from railyard.workloads.scale import Rates

Sizes = Mapping[tuple[int, int], float]
"""Bytes by (source, destination), as GPU numbers of y HB domains with x GPUs."""


def bottleneck_s(stages: Iterable[Sizes], x: int, y: int, rates: Rates, fabric: FabricSpec) -> float:
    """Return our own lower bound, in s, for stages that each GPU runs one after the other, on y domains of x GPUs.

    Two things take time for certain, and the longest of them is the bound:

    - a port carries its bytes of all stages, forwarded ones included, at its rate; so do all uplinks of a rail switch
      together (their even share is assumed, which hashing doesn't promise);
    - a GPU sends and receives its own bytes stage by stage, each stage at the rate of its busiest port.

    With uniform stages it equals Rail-only Eq. 1, 2 and 3 (tests/unit/test_bottleneck.py). Every pair takes the paths
    of the fabric's forwarding policy from its first byte to its last.
    """
    rate: dict[Side, float] = {"hb": rates.hb, "rail": rates.rail}
    uplinks_rate = y * rates.rail / (fabric.oversubscription or 1)
    port_s: defaultdict[tuple[object, ...], float] = defaultdict(float)
    gpu_s: defaultdict[int, float] = defaultdict(float)
    for sizes in stages:
        own_s: defaultdict[tuple[int, Side, str], float] = defaultdict(float)
        for (src, dst), size in sizes.items():
            for share, path in gpu_hops(src, dst, x, fabric):
                part = share * size
                for a, b, side in path:
                    port_s[a, side, "out"] += part / rate[side]
                    port_s[b, side, "in"] += part / rate[side]
                    if side == "rail" and a % x != b % x:
                        port_s["uplinks", a % x, "up"] += part / uplinks_rate
                        port_s["uplinks", b % x, "down"] += part / uplinks_rate
                own_s[src, path[0][2], "out"] += part / rate[path[0][2]]
                own_s[dst, path[-1][2], "in"] += part / rate[path[-1][2]]
        for gpu, busy_s in _busiest(own_s):
            gpu_s[gpu] += busy_s
    return max((*port_s.values(), *gpu_s.values()), default=0.0)


def _busiest(own_s: Mapping[tuple[int, Side, str], float]) -> Iterator[tuple[int, float]]:
    """Yield the time of each GPU's busiest port in one stage."""
    longest: defaultdict[int, float] = defaultdict(float)
    for (gpu, _, _), seconds in own_s.items():
        longest[gpu] = max(longest[gpu], seconds)
    yield from longest.items()
