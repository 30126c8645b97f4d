"""Traffic during faults: the job and the log of the traffic process, and a handle on the process."""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import InstanceOf

from railyard.core.errors import CheckFailed
from railyard.core.worker import Message, Ready, Worker
from railyard.failure.analysis.recovery_times import ProbeLog
from railyard.failure.scenario.pairs import Pair


@dataclass(frozen=True)
class TrafficJob:
    """Streams at `stream_bytes_per_s` each, and a probe a millisecond for each probed pair."""

    streams: tuple[Pair, ...]
    probes: tuple[Pair, ...]
    stream_bytes_per_s: float
    port: int = 7100


@dataclass
class TrafficLog:
    """Log of the traffic process. By stream number: bytes sent, receipts as (ns, bytes), and why a stream broke."""

    sent: dict[int, int] = field(default_factory=dict)
    receipts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    probes: list[ProbeLog] = field(default_factory=list)

    def received(self, stream: int) -> int:
        return sum(size for _, size in self.receipts.get(stream, ()))

    @property
    def lost_bytes(self) -> int:
        """Bytes sent and never received. CheckFailed if a stream received more than was sent: the surplus would hide
        what another stream has lost.
        """
        lost = 0
        for stream, sent in self.sent.items():
            received = self.received(stream)
            if received > sent:
                raise CheckFailed(f"stream {stream}: {received:,} bytes arrived of {sent:,} sent, which TCP can't do")
            lost += sent - received
        return lost


class Connect(Message):
    """Connect the streams and open the probes' sockets: Ready, or Failed."""

    kind: Literal["connect"] = "connect"
    job: InstanceOf[TrafficJob]


class Start(Message):
    """Start sending. There is no answer."""

    kind: Literal["start"] = "start"


class Stop(Message):
    """Stop sending, and wait `drain_s` for what is on its way: Finished."""

    kind: Literal["stop"] = "stop"
    drain_s: float


class Finished(Message):
    """The log of everything."""

    kind: Literal["finished"] = "finished"
    log: InstanceOf[TrafficLog]


class Traffic:
    """A traffic process, connected when made; `start` starts the clock, `stop` ends the sending and returns the log."""

    def __init__(self, job: TrafficJob) -> None:
        self._worker = Worker("railyard.failure.probes.traffic_worker", "the traffic process", Ready, Finished)
        try:
            self._worker.ask(Connect(job=job), Ready, timeout_s=None)
        except BaseException:
            self.end()
            raise

    def start(self) -> None:
        """Start sending."""
        self._worker.send(Start())

    def stop(self, drain_s: float) -> TrafficLog:
        """Stop sending, wait at most `drain_s` for bytes in flight, and end the process."""
        try:
            return self._worker.ask(Stop(drain_s=drain_s), Finished, timeout_s=None).log
        finally:
            self.end()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._worker.end()
