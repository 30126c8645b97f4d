"""A lower bound on completion time, from what the links have to carry: the prediction of every collective."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pace import gpu_hops
from railyard.workloads.scale import Rates

Sizes = Mapping[tuple[int, int], float]
"""Bytes by (source, destination), as GPU numbers of y HB domains with x GPUs."""
Port = tuple[int, str, str]
"""(GPU number, or rank of the rail switch; hb, rail or uplinks; out or in)."""


def bottleneck_s(stages: Iterable[Sizes], x: int, y: int, rates: Rates, fabric: FabricSpec) -> float:
    """Return our own lower bound, in s, for stages that each GPU runs one after the other, on y domains of x GPUs.

    Two things take time for certain, and the longest of them is the bound:

    - a port carries its bytes of all stages, forwarded ones included, at its rate; so do all uplinks of a rail switch
      together (their even share is assumed, which hashing doesn't promise);
    - a GPU sends and receives its own bytes stage by stage, each stage at the rate of its busiest port.

    With uniform stages it equals Rail-only Eq. 1, 2 and 3 (tests/unit/test_bottleneck.py). Every pair takes the paths
    of the fabric's forwarding policy from its first byte to its last.
    """
    rate = {"hb": rates.hb, "rail": rates.rail, "uplinks": y * rates.rail / (fabric.oversubscription or 1)}
    port_bytes: defaultdict[Port, float] = defaultdict(float)
    gpu_s: defaultdict[int, float] = defaultdict(float)
    for sizes in stages:
        own_bytes: defaultdict[Port, float] = defaultdict(float)
        for (src, dst), size in sizes.items():
            for share, path in gpu_hops(src, dst, x, fabric):
                part = share * size
                for a, b, side in path:
                    port_bytes[a, side, "out"] += part
                    port_bytes[b, side, "in"] += part
                    if side == "rail" and a % x != b % x:
                        port_bytes[a % x, "uplinks", "out"] += part
                        port_bytes[b % x, "uplinks", "in"] += part
                own_bytes[src, path[0][2], "out"] += part
                own_bytes[dst, path[-1][2], "in"] += part
        busiest_s: defaultdict[int, float] = defaultdict(float)
        for (gpu, link, _), size in own_bytes.items():
            busiest_s[gpu] = max(busiest_s[gpu], size / rate[link])
        for gpu, seconds in busiest_s.items():
            gpu_s[gpu] += seconds
    port_s = (size / rate[link] for (_, link, _), size in port_bytes.items())
    return max((*port_s, *gpu_s.values()), default=0.0)
