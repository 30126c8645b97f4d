"""The traffic that runs while something breaks: what its process is told, what it answers, and the handle on it."""

from dataclasses import dataclass, field

from railyard.core.errors import CheckFailed, RailyardError
from railyard.core.worker import WorkerProcess
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
    """What the process saw. By stream number: bytes sent, receipts as (ns, bytes), and why it broke if it did."""

    sent: dict[int, int] = field(default_factory=dict)
    receipts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    probes: list[ProbeLog] = field(default_factory=list)

    def received(self, stream: int) -> int:
        return sum(size for _, size in self.receipts.get(stream, ()))

    @property
    def lost_bytes(self) -> int:
        """Sent and never seen at the other end. CheckFailed if more came out of a stream than went in: a surplus of one
        would hide what another has lost.
        """
        lost = 0
        for stream, sent in self.sent.items():
            received = self.received(stream)
            if received > sent:
                raise CheckFailed(f"stream {stream}: {received:,} bytes arrived of {sent:,} sent, which TCP can't do")
            lost += sent - received
        return lost


class Traffic:
    """A traffic process. Connected when made; `start` starts the clock, `stop` ends the sending and gives the log."""

    def __init__(self, job: TrafficJob) -> None:
        self._process = WorkerProcess("railyard.failure.probes.traffic_worker", "the traffic process")
        self._process.send(job)
        if self._process.receive() != "connected":
            raise RailyardError("the traffic process did not connect its streams")

    def start(self) -> None:
        """Start sending."""
        self._process.send("start")

    def stop(self, drain_s: float) -> TrafficLog:
        """Stop sending, let what is on its way arrive for at most `drain_s`, and end the process."""
        try:
            self._process.send(("stop", drain_s))
            log = self._process.receive()
            if not isinstance(log, TrafficLog):
                raise RailyardError(f"the traffic process answered {log!r}")
            return log
        finally:
            self.end()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.end()
