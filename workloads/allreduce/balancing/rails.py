"""A rail as the engine and the balancer see it: rate, set-up latency, CPU cost, kind.

Source: Nezha section 2.3, Eq. 2 (`T_setup` is paid for each message). Units: bytes, seconds, bytes per second. The
paper's rails: topologies/multirail/rail_kind.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.topologies.multirail.rail_kind import RAIL_KINDS


@dataclass(frozen=True, slots=True)
class Rail:
    """One network that every node has a NIC on.

    `rate` in bytes per second and direction, `setup_s` for each message that waits for the one before,
    `cpu_s_per_byte` for each byte that a node sends while it receives another. `nominal`: rate of
    its data sheet, bytes per second, which is all that MRIB uses; `rate` where 0.
    """

    name: str
    kind: str
    rate: float
    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    nominal: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in RAIL_KINDS:
            raise BadInput(f"rails.{self.name}.kind", self.kind, unknown_name_hint(self.kind, RAIL_KINDS))
        if not 0 < self.rate < math.inf:
            raise BadInput(
                f"rails.{self.name}.rate", self.rate, "must be above 0: a rail without a rate carries nothing"
            )
        for field in ("setup_s", "cpu_s_per_byte", "nominal"):
            value = getattr(self, field)
            if not 0 <= value < math.inf:
                raise BadInput(f"rails.{self.name}.{field}", value, "must be 0 or more")

    @property
    def sums_in_network(self) -> bool:
        """Whether the rail's switch sums, so that an allreduce is a tree and not a ring."""
        return RAIL_KINDS[self.kind].sums_in_network

    @property
    def s_per_byte(self) -> float:
        """Seconds per byte on the wire: chunks are pipelined, so the slower of link and CPU sets it (Fig. 13)."""
        return max(1 / self.rate, self.cpu_s_per_byte)


def scaled(rail: Rail, factor: float) -> Rail:
    """A rail that is `factor` times slower, in bytes: with sizes divided by it too, all times stay as they were.
    Its data sheet is the same."""
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: {factor} must be above 0")
    return replace(rail, rate=rail.rate / factor, cpu_s_per_byte=rail.cpu_s_per_byte * factor)


def combined_rail(rails: Sequence[Rail]) -> Rail:
    """What MPTCP makes of them: as fast as all together, with what a message costs on the first."""
    cpus = [rail.cpu_s_per_byte for rail in rails]
    cpu = 1 / sum(1 / cost for cost in cpus) if all(cpus) else 0.0
    return Rail("mptcp", "tcp", sum(rail.rate for rail in rails), rails[0].setup_s, cpu)


def paper_rail(kind: str) -> Rail:
    """Return a rail of a kind at its full rate."""
    found = RAIL_KINDS[kind]
    return Rail(kind, kind, found.rate_bps / 8, found.setup_s, found.cpu_s_per_byte)
