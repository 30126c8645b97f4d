"""Control of background load: one process sends all of it.

with background(plan, specs) as load:
    ...
    sent = load.stop()  # what was really sent, by flow
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from railyard.core.worker import WorkerProcess
from railyard.topologies.plan import Plan
from railyard.workloads.background.flows import BackgroundFlow, flows_of
from railyard.workloads.background.spec import BackgroundSpec

START_DELAY_NS: Final = 20_000_000  # the process has read the start time by then


@dataclass(frozen=True)
class BackgroundJob:
    """The job of the process: the flows, and the fabric's MTU (bytes), which every datagram fills."""

    flows: tuple[BackgroundFlow, ...]
    mtu: int


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Wire bytes of a flow from the start to the stop: `requested` by its spec, and handed to the kernel."""

    flow: BackgroundFlow
    requested: int
    sent: int

    @property
    def share(self) -> float:
        """The sent share of the requested bytes; 1 if none were requested."""
        return self.sent / self.requested if self.requested else 1.0


class Background:
    """A process that sends. Its sockets are open when this is made; `start` starts its clock. It dies with this
    process.

    `start_ns` (monotonic) is what the specs' times count from. RailyardError if sockets can't be opened.
    """

    def __init__(self, plan: Plan, specs: Sequence[BackgroundSpec]) -> None:
        self.flows = tuple(flow for spec in specs for flow in flows_of(spec, plan))
        self.start_ns = 0
        self._process = WorkerProcess("railyard.workloads.background.sender", "the process of the background load")
        try:
            self._process.send(BackgroundJob(self.flows, plan.spec.mtu))
            self._process.receive()
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, start_ns: int | None = None) -> int:
        """Start the clock, at a future time or at once, and return the start time (monotonic ns)."""
        self.start_ns = time.monotonic_ns() + START_DELAY_NS if start_ns is None else start_ns
        self._process.send(self.start_ns)
        self._process.receive()
        return self.start_ns

    def stop(self) -> tuple[SentBytes, ...]:
        """Stop sending, end the process, and return what was sent, in the order of `flows`."""
        try:
            self._process.send("stop")
            counts = self._process.receive()
        finally:
            self.end()
        return tuple(
            SentBytes(flow, requested, sent) for flow, (requested, sent) in zip(self.flows, counts, strict=True)
        )

    def end(self) -> None:
        """End the process at once; nothing if it has ended."""
        self._process.end()


@contextmanager
def background(plan: Plan, specs: Sequence[BackgroundSpec], start_ns: int | None = None) -> Iterator[Background]:
    """Send background load while entered, or until `stop`."""
    load = Background(plan, specs)
    try:
        load.start(start_ns)
        yield load
    finally:
        load.end()
