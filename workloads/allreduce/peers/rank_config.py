"""What each rank of another engine is told before it begins, and how its engine looks to who plays operations on it."""

from dataclasses import dataclass
from typing import Protocol

from railyard.workloads.allreduce.engine.jobs import Layout, ProcessPlacement
from railyard.workloads.allreduce.engine.tasks import Array


@dataclass(frozen=True, slots=True)
class RankConfig:
    """One rank's. `layout` has all of the fabric's rails; `rails` are those that the engine is to use.

    Ranks may meet in `folder`. `timeout_s`: how long they wait for each other, by this machine's clock.
    """

    rank: int
    layout: Layout
    placement: ProcessPlacement
    rails: tuple[int, ...]
    folder: str
    timeout_s: float = 60.0

    @property
    def nodes(self) -> int:
        return self.layout.size

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The NICs that the engine is to use."""
        assert self.placement.devices is not None  # ranks sit on a fabric's nodes
        return tuple(self.placement.devices[rail] for rail in self.rails)


class Engine(Protocol):
    """The collectives as `railyard.workloads.allreduce.engine.group.Group` has them, so that it is one too."""

    def allreduce(self, array: Array) -> None: ...

    def reduce_scatter(self, array: Array) -> Array: ...

    def all_gather(self, array: Array) -> Array: ...

    def broadcast(self, array: Array, root: int) -> None: ...

    def close(self) -> None: ...
