"""Kinds of rails: what a network that every node has a NIC on costs, and where its sums are made.

A kind is one module of `rail_kinds/`, or a plugin:

    from railyard.topologies.rail_kind import RAIL_KINDS, RailKind

    RAIL_KINDS.add("roce", RailKind(rate_bps=200e9, effective_bps=6e9, setup_s=5e-6, cpu_s_per_byte=1.3e-9))

Source of the paper's three: Nezha section 2.3, Table 1 and 2, Fig. 2, Fig. 13. The text states times
at some sizes only, so set-up latency and CPU cost are fitted to these:

| what | stated | fitted on 4 nodes |
|---|---|---|
| SHARP, 1 KB, 8 MB, 64 MB (Table 1) | 9, 22,140, 181,484 us | 9, 22,396, 179,111 us |
| TCP, 1 KB, 8 MB, 64 MB (Table 1) | 982, 37,137, 316,323 us | 982, 38,765, 303,252 us |
| SHARP over TCP at 32 KB (section 2.3.1) | 12 times the throughput | 12 times |
| GLEX above SHARP (section 2.3.1) | from 64 KB, SHARP best under 256 KB | from 128 KB |
| TCP beside GLEX (section 5.2.2) | gains 46% (beside SHARP 52%) | ideal 53% (60%): the same 12% is lost to contention |

Table 1's TCP slows down from 232 to 213 MB/s between 8 and 64 MB, which a straight line can't: it stays within 5%.
All three stay far below their NIC's 100 or 128 Gbit/s (Table 2), so the CPU is the bottleneck (Fig. 13).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from railyard.core.registry import Registry


@dataclass(frozen=True, slots=True)
class RailKind:
    """A kind of rail at full rate, before a fabric's `scale` slows it down.

    `rate_bps`: of the NIC by its data sheet. `effective_bps`: what a rail moves at large sizes, bit/s and direction;
    `auto` rates are this, to scale. `setup_s`: latency of each message that waits for the one before it.
    `cpu_s_per_byte`: CPU time for each byte that a node sends. `sums_in_network`: the switch has an aggregator, and an
    allreduce is a tree through it; a ring of the nodes otherwise. `is_tcp`: an ordinary TCP network, on which other
    engines (Gloo, MPI) run by preference. `description`: what `list --kinds` shows.
    """

    rate_bps: float
    effective_bps: float
    description: str = ""
    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    sums_in_network: bool = False
    is_tcp: bool = False


def _problems(name: str, kind: object) -> Iterator[str]:
    if not isinstance(kind, RailKind):
        yield "must be a RailKind"
        return
    for field in ("rate_bps", "effective_bps"):
        if not 0 < getattr(kind, field) < math.inf:
            yield f"{field} must be above 0"
    for field in ("setup_s", "cpu_s_per_byte"):
        if not 0 <= getattr(kind, field) < math.inf:
            yield f"{field} must be 0 or more"


RAIL_KINDS: Final = Registry[RailKind]("rail kind", "railyard.topologies.rail_kinds", check=_problems)
