"""Kinds of rails: what a network that every node has a NIC on costs, and where its sums are made.

A kind is one module of `rail_kinds/`, or a plugin: `RAIL_KINDS.add("roce", RailKind(rate_bps=200e9, ...))`.
Source of the paper's three: Nezha section 2.3, Table 1 and 2, Fig. 2 and 13. The fit: docs/multirail-bench.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from railyard.core.registry import Registry


@dataclass(frozen=True, slots=True)
class RailKind:
    """A kind of rail at full rate, before a fabric's `scale` slows it down.

    `rate_bps`: of the NIC by its data sheet.
    `effective_bps`: what a rail moves at large sizes, bit/s and direction; `auto` rates are this, to scale.
    `setup_s`: latency of each message that waits for the one before it.
    `cpu_s_per_byte`: CPU time for each byte that a node sends.
    `sums_in_network`: the switch has an aggregator, and an allreduce is a tree through it; a ring of the nodes
    otherwise.
    `is_tcp`: an ordinary TCP network, on which other engines (Gloo, MPI) run by preference.
    """

    rate_bps: float
    effective_bps: float
    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    sums_in_network: bool = False
    is_tcp: bool = False


def _problems(name: str, kind: RailKind) -> Iterator[str]:
    for field in ("rate_bps", "effective_bps"):
        if not 0 < getattr(kind, field) < math.inf:
            yield f"{field} must be above 0"
    for field in ("setup_s", "cpu_s_per_byte"):
        if not 0 <= getattr(kind, field) < math.inf:
            yield f"{field} must be 0 or more"


RAIL_KINDS: Final = Registry[RailKind]("rail kind", "railyard.topologies.rail_kinds", RailKind, check=_problems)
