"""Where everybody is: an address for each rail of each node, and one for each aggregator."""

from collections.abc import Sequence
from dataclasses import dataclass

from railyard.core.errors import BadInput
from railyard.workloads.allreduce.balancing.rails import Rail
from railyard.workloads.allreduce.transport.connections import Address


@dataclass(frozen=True, slots=True)
class Layout:
    """`nodes[rail][rank]`; `aggregators[rail]`, None where the rail has none. `group` keeps strangers apart."""

    rails: tuple[Rail, ...]
    nodes: tuple[tuple[Address, ...], ...]
    aggregators: tuple[Address | None, ...]
    group: int = 0

    def __post_init__(self) -> None:
        if not self.rails:
            raise BadInput("rails", [], "must have one rail or more")
        if len({len(row) for row in self.nodes}) != 1 or not self.nodes[0]:
            raise BadInput(
                "nodes", [len(row) for row in self.nodes], "must be the same number, 1 or more, on each rail"
            )
        for rail, address in zip(self.rails, self.aggregators, strict=True):
            if rail.sums_in_network != (address is not None):
                raise BadInput(
                    f"rails.{rail.name}", address, "needs an aggregator if and only if it sums in the network"
                )

    @property
    def size(self) -> int:
        """Nodes."""
        return len(self.nodes[0])

    @property
    def trees(self) -> frozenset[int]:
        return frozenset(rail for rail, address in enumerate(self.aggregators) if address is not None)


def loopback(rails: Sequence[Rail], nodes: int, first_port: int, group: int = 0) -> Layout:
    """A rail is a row of 127.64.0.0/10: node n of rail r is 127.(64 + r).n.1, its aggregator 127.(64 + r).255.1."""
    if nodes > 254 or len(rails) > 64:
        raise BadInput("nodes, rails", (nodes, len(rails)), "can be 254 and 64 at most on loopback addresses")
    return Layout(
        tuple(rails),
        tuple(tuple((f"127.{64 + r}.{n}.1", first_port) for n in range(nodes)) for r in range(len(rails))),
        tuple((f"127.{64 + r}.255.1", first_port) if rail.sums_in_network else None for r, rail in enumerate(rails)),
        group,
    )
