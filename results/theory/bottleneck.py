"""How long an exchange takes at least: by what its busiest port has to carry. For what no equation is about."""

from collections import Counter
from collections.abc import Mapping

from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.traffic_matrix import port_bytes_of
from railyard.workloads.scale import Rates


def bottleneck_port_s(sizes: Mapping[tuple[int, int], int], x: int, y: int, rates: Rates, fabric: FabricSpec) -> float:
    """Our own lower bound, in s: the longest that any port is busy, if all work at the same time, at their rates.

    `sizes`: bytes of each pair (source, destination) of y domains with x GPUs, all under way at once, each on the path
    of the fabric's policy, so forwarded bytes count where they pass. Of a uniform all-to-all it is what
    `all_to_all_forwarded_s` says, and over spines Eq. 2 with `all_to_all_thinned_s`: a rail switch's uplinks count
    as one port, by their even share.
    """
    ports = port_bytes_of(sizes, x * y, x, fabric.chosen_policy)
    busy_s = [
        max(ports.rail_in.max(), ports.rail_out.max()) / rates.rail,
        max(ports.hb_in.max(), ports.hb_out.max()) / rates.hb,
    ]
    if fabric.chosen_policy == "spine":
        uplinks_bytes_per_s = y * rates.rail / (fabric.oversubscription or 1)
        up, down = Counter[int](), Counter[int]()
        for (src, dst), size in sizes.items():
            if src // x != dst // x and src % x != dst % x:
                up[src % x] += size
                down[dst % x] += size
        busy_s += [size / uplinks_bytes_per_s for size in (*up.values(), *down.values())]
    return float(max(busy_s))
