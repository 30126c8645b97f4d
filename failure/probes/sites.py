"""The machines of a fabric, as probes and faults need them."""

from collections.abc import Callable
from dataclasses import dataclass

from railyard.core.worker import Worker


@dataclass(frozen=True)
class Site:
    """A machine with some namespaces of a fabric, None: all. `start` starts a process there, as `Worker` does here.

    `offset_ns`: its monotonic clock less that of this machine.
    """

    nodes: frozenset[str] | None = None
    start: Callable[..., Worker] = Worker
    offset_ns: int = 0

    def has(self, node: str) -> bool:
        """Return whether it has a namespace."""
        return self.nodes is None or node in self.nodes
