"""The machines of a fabric, as probes and faults need them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from railyard.core.worker import Message, Ready, Worker


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


class SiteWorkers:
    """A worker process on each machine of a fabric; a context manager that ends them all."""

    def __init__(
        self,
        sites: Sequence[Site],
        module: str,
        name: str,
        answers: Sequence[type[Message]],
        opening: Sequence[Callable[[Site], Message]],
        *within_s: float,
    ) -> None:
        """Start the processes and send each message of `opening` to all, the next when all are Ready (`within_s`).

        `answers`: the messages that they send, beside Ready. All are ended if one fails.
        """
        self._sites = sites
        self._workers: list[Worker] = []
        try:
            for site in sites:
                self._workers.append(site.start(module, name, Ready, *answers))
            for message_to in opening:
                for site, worker in zip(sites, self._workers, strict=True):
                    worker.send(message_to(site))
                for worker in self._workers:
                    worker.receive(Ready, *within_s)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
