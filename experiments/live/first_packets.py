"""First packets after faults of the live page: probes of the pairs that a click affects, until they arrive again."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from railyard.core.errors import RailyardError
from railyard.core.worker import Worker
from railyard.failure.faults import Fault
from railyard.failure.pairs import monitored_pairs
from railyard.failure.probes import traffic
from railyard.failure.probes.ports import PAGE_PORT, ProbePorts
from railyard.failure.probes.sites import Site
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.failure.recovery_times import LATE_NS, OBSERVE_S, first_packet_ms
from railyard.topologies.plan import Plan

MAX_PROBED: Final = 8  # pairs of one fault, at most: see scenario/pairs.py
QUEUE_NS: Final = 500_000_000  # a packet waits no longer in queues
_POLL_S: Final = 0.2


class OnFirstPacket(Protocol):
    """Called with a fault, when packets flowed again (monotonic ns), and how long after its injection, ms."""

    def __call__(self, fault: Fault, at_ns: int, ms: float) -> None: ...


class _Kept(Worker):
    """A traffic process that is kept for the next job when one is over."""

    def end(self) -> None:
        """Keep it."""

    def close(self) -> None:
        """End it."""
        super().end()


@dataclass(frozen=True)
class Probes:
    """Probes of the pairs that a fault affects. `is_kept`: their process is the one that is kept."""

    fault: Fault
    traffic: Traffic
    is_kept: bool
    port: int


class FirstPackets:
    """Probes during faults on a fabric. Their process is started beforehand, so that a click need not wait for it.

    A fault beside another one has a process of its own.
    """

    def __init__(self, plan: Plan, on_found: OnFirstPacket) -> None:
        self._plan = plan
        self._on_found = on_found
        self._observers: list[threading.Thread] = []
        self._closing = threading.Event()
        self._in_use = threading.Lock()
        self._ports = ProbePorts(PAGE_PORT, MAX_PROBED)
        self._kept = self._start()

    def begin(self, fault: Fault) -> Probes | None:
        """Probe the pairs that a fault will affect, from now on; None if it affects none, or they can't be probed."""
        pairs = monitored_pairs(fault, self._plan).probes
        if not pairs:
            return None
        port = self._ports.take()
        job = TrafficJob(streams=(), probes=pairs, stream_bytes_per_s=0.0, port=port)
        is_kept = self._in_use.acquire(blocking=False)
        try:
            traffic = Traffic(job, [Site(start=lambda *_: self._kept) if is_kept else Site()])
            traffic.start()
        except (RailyardError, OSError):  # such as a GPU that an earlier fault has removed
            self._ports.release(port)
            if is_kept:
                self._replace()
            return None
        return Probes(fault, traffic, is_kept, port)

    @contextmanager
    def during(self, fault: Fault) -> Iterator[Callable[[int], None]]:
        """Probe the pairs that a fault will affect while entered, until its repair.

        The function that it returns is to be called with when the fault was injected, monotonic ns.
        """
        probes = self.begin(fault)
        is_over = threading.Event()
        is_observed = threading.Event()

        def injected(at_ns: int) -> None:
            if probes:
                is_observed.set()
                self.observe(probes, at_ns, is_over)

        try:
            yield injected
        finally:
            is_over.set()
            if probes and not is_observed.is_set():
                self.end(probes)

    def end(self, probes: Probes) -> None:
        """End probes."""
        try:
            probes.traffic.stop(0)
        except (RailyardError, OSError):
            if probes.is_kept:
                self._replace()
        else:
            if probes.is_kept:
                self._in_use.release()
        self._ports.release(probes.port)

    def observe(self, probes: Probes, injected_ns: int, is_over: threading.Event) -> None:
        """Report in a thread when the probes arrive again; stop at the latest when `is_over`, the fault's repair."""
        observer = threading.Thread(
            target=self._observe, args=(probes, injected_ns, is_over), name="first packets", daemon=True
        )
        self._observers = list(filter(threading.Thread.is_alive, self._observers))
        self._observers.append(observer)
        observer.start()

    def close(self) -> None:
        """End all probes."""
        self._closing.set()
        for observer in self._observers:
            observer.join()
        self._kept.close()

    def _observe(self, probes: Probes, injected_ns: int, is_over: threading.Event) -> None:
        # an arrival is judged only when later probes have had their time in queues
        end_s = time.monotonic() + OBSERVE_S + (QUEUE_NS + LATE_NS) / 1e9
        with suppress(RailyardError, OSError):
            while time.monotonic() < end_s and not is_over.wait(_POLL_S) and not self._closing.is_set():
                if (ms := _resumed_ms(probes.traffic, injected_ns)) is not None:
                    self._on_found(probes.fault, injected_ns + round(ms * 1e6), ms)
                    break
        self.end(probes)

    def _start(self) -> _Kept:
        worker = _Kept(traffic.__name__, "the probes of the live page", *traffic.REPLIES)
        # a run does not depend on its page
        worker.watched.release()
        return worker

    def _replace(self) -> None:
        """Replace the process that is kept, after an error, and have it free."""
        self._kept.close()
        self._kept = self._start()
        self._in_use.release()


def _resumed_ms(probes: Traffic, injected_ns: int) -> float | None:
    """Return when packets flowed again, ms after the injection, or 0 if none was cut off; None if they do not yet.

    Nothing keeps the page's user from filling the links, whose queues then delay and lose probes: the first outage
    counts, and probes that were sent `QUEUE_NS` ago or before.
    """
    now_ns = time.monotonic_ns()
    if now_ns < injected_ns + QUEUE_NS + LATE_NS:
        return None
    logs = [log.before(now_ns - QUEUE_NS) for log in probes.peek().probes]
    return first_packet_ms(logs, injected_ns, time.monotonic_ns(), is_intermittent=True)
