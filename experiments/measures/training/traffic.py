"""Traffic of a training's GPUs, by which the progress of a program is known that reports none.

The kernel's counter TCPOrigDataSent has segments with new data: neither retransmissions nor acknowledgements.
"""

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from operator import sub
from typing import IO, Final, Self

from railyard.experiments.measures.training.outcome import Sent
from railyard.topologies.build import namespaces
from railyard.topologies.measure.counters import tcp_counters

SAMPLE_S: Final = 0.02
# Each GPU sends more when a training begins: peers connect with fewer segments.
MIN_SEGMENTS: Final = 20


class TrafficMeter:
    """Counts what GPUs send, in a thread, from when it is entered. `sent`: the samples so far."""

    def __init__(self, gpus: Iterable[str]) -> None:
        self.sent: list[Sent] = []
        self._gpus, self._each = tuple(gpus), list[int]()
        self._files, self._ended = ExitStack(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="traffic of a training", daemon=True)
        self._counters: list[IO[str]] = []

    def __enter__(self) -> Self:
        for gpu in self._gpus:
            # the file stays that of the namespace where it was opened
            with namespaces.inside(gpu):
                self._counters.append(self._files.enter_context(open("/proc/thread-self/net/netstat")))  # noqa: PTH123
        self._before = self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._files.close()

    def has_begun(self, segments: float) -> bool:
        """Return whether each GPU has sent something, and all together as many segments."""
        return min(self._each, default=0) >= MIN_SEGMENTS and sum(self._each) >= segments

    def _follow(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            now_ns = time.monotonic_ns()
            counted = self._read()
            self._each = list(map(sub, counted, self._before))
            self.sent.append(Sent(now_ns, sum(self._each)))

    def _read(self) -> list[int]:
        segments: list[int] = []
        for file in self._counters:
            file.seek(0)
            segments.append(tcp_counters(file.read(), "TcpExt:")["TCPOrigDataSent"])
        return segments
