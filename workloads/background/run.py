"""The handle on background load: one process sends all of it.

with background(plan, specs) as load:
    ...
    sent = load.stop()  # what was really sent, by flow
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import InstanceOf

from railyard.core.worker import Message, Ready, Worker
from railyard.topologies.plan import Plan
from railyard.workloads.background.flows import BackgroundFlow, flows_of
from railyard.workloads.background.spec import BackgroundSpec

START_DELAY_NS: Final = 20_000_000  # the process has read the start time by then


class BackgroundJob(Message):
    """Open the sockets of these flows: Ready. Every datagram fills the fabric's MTU (bytes)."""

    kind: Literal["job"] = "job"
    flows: tuple[InstanceOf[BackgroundFlow], ...]
    mtu: int


class StartAt(Message):
    """Send from that time on (ns, monotonic): Ready."""

    kind: Literal["start"] = "start"
    start_ns: int


class Stop(Message):
    """Stop sending: Sent."""

    kind: Literal["stop"] = "stop"


class Sent(Message):
    """Wire bytes of each flow: (requested, sent)."""

    kind: Literal["sent"] = "sent"
    counts: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Wire bytes of a flow from the start to the stop: `requested` by its spec, and handed to the kernel."""

    flow: BackgroundFlow
    requested: int
    sent: int

    @property
    def share(self) -> float:
        """Share of the requested bytes that was sent; 1 if none were requested."""
        return self.sent / self.requested if self.requested else 1.0


class Background:
    """A process that sends. Its sockets are open when this is made; `start` starts its clock. It dies with this
    process.

    `start_ns` (monotonic) is what the specs' times count from. RailyardError if sockets can't be opened.
    """

    def __init__(self, plan: Plan, specs: Sequence[BackgroundSpec]) -> None:
        self.flows = tuple(flow for spec in specs for flow in flows_of(spec, plan))
        self.start_ns = 0
        self._worker = Worker("railyard.workloads.background.sender", "the background sender", Ready, Sent)
        try:
            self._worker.ask(BackgroundJob(flows=self.flows, mtu=plan.spec.mtu), Ready)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._worker.pid

    def start(self, start_ns: int | None = None) -> int:
        """Start the clock, at a time to come or in a moment; the start time."""
        self.start_ns = time.monotonic_ns() + START_DELAY_NS if start_ns is None else start_ns
        self._worker.ask(StartAt(start_ns=self.start_ns), Ready)
        return self.start_ns

    def stop(self) -> tuple[SentBytes, ...]:
        """Stop sending and end the process; what was sent, in the order of `flows`."""
        try:
            counts = self._worker.ask(Stop(), Sent).counts
        finally:
            self.end()
        return tuple(
            SentBytes(flow, requested, sent) for flow, (requested, sent) in zip(self.flows, counts, strict=True)
        )

    def end(self) -> None:
        """End the process, whatever it is doing; nothing if it has ended."""
        self._worker.end()


@contextmanager
def background(plan: Plan, specs: Sequence[BackgroundSpec], start_ns: int | None = None) -> Iterator[Background]:
    """Background load while entered, or until `stop`."""
    load = Background(plan, specs)
    try:
        load.start(start_ns)
        yield load
    finally:
        load.end()
