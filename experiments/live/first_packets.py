"""First packets after faults of the live page: probes of the pairs that a click affects, until they arrive again."""

import threading
import time
from contextlib import suppress
from typing import Final, Protocol

from railyard.core.errors import RailyardError
from railyard.core.records import IN_FLIGHT_NS
from railyard.core.worker import Message, Worker
from railyard.failure.analysis.recovery_times import LATE_NS, first_packet_ms, late_losses
from railyard.failure.faults import Fault
from railyard.failure.probes import traffic
from railyard.failure.probes.sites import Site
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.failure.scenario.pairs import monitored_pairs
from railyard.topologies.plan import Plan

FIRST_PACKET: Final = "first-packet"  # the event, with the fault and the ms since its injection
PORT: Final = 7600  # beside those of failure scripts (7100) and of replayed workloads (7000)
MAX_PROBED: Final = 8  # pairs of one fault, at most: see scenario/pairs.py
OBSERVE_S: Final = 10.0  # after that, packets are taken not to flow again before the repair
_POLL_S: Final = 0.2


class OnFirstPacket(Protocol):
    """Called with a fault, when packets flowed again (monotonic ns), and how long after its injection, ms."""

    def __call__(self, fault: Fault, at_ns: int, ms: float) -> None: ...


class FirstPackets:
    """Probes during faults on a fabric. One process is started beforehand, so that a click need not wait for it."""

    def __init__(self, plan: Plan, on_found: OnFirstPacket) -> None:
        self._plan, self._on_found = plan, on_found
        self._observers: list[threading.Thread] = []
        self._closing = threading.Event()
        self._spare: Worker | None = None
        self._count, self._lock = 0, threading.Lock()
        self._prepare()

    def begin(self, fault: Fault) -> Traffic | None:
        """Probe the pairs that a fault will affect, from now on; None if it affects none, or they can't be probed."""
        probes = monitored_pairs(fault, self._plan).probes
        if not probes:
            return None
        self._count += 1
        port = PORT + MAX_PROBED * (self._count % 16)
        job = TrafficJob(streams=(), probes=probes, stream_bytes_per_s=0.0, port=port)
        try:
            found = Traffic(job, [Site(start=self._take)])
            found.start()
        except (RailyardError, OSError):  # such as a GPU that an earlier fault has removed
            return None
        return found

    def observe(self, probes: Traffic, fault: Fault, injected_ns: int, is_over: threading.Event) -> None:
        """Report in a thread when the probes arrive again; stop at the latest when `is_over`, the fault's repair."""
        observer = threading.Thread(
            target=self._observe, args=(probes, fault, injected_ns, is_over), name="first packets", daemon=True
        )
        self._observers = [one for one in self._observers if one.is_alive()] + [observer]
        observer.start()

    def close(self) -> None:
        """End all probes."""
        self._closing.set()
        for observer in self._observers:
            observer.join()
        if self._spare:
            self._spare.end()

    def _observe(self, probes: Traffic, fault: Fault, injected_ns: int, is_over: threading.Event) -> None:
        with suppress(RailyardError, OSError), probes:
            end_s = time.monotonic() + OBSERVE_S
            while time.monotonic() < end_s and not is_over.wait(_POLL_S) and not self._closing.is_set():
                if (ms := self._resumed_ms(probes, fault, injected_ns)) is not None:
                    self._on_found(fault, injected_ns + round(ms * 1e6), ms)
                    break
        if not self._closing.is_set():
            self._prepare()

    def _resumed_ms(self, probes: Traffic, fault: Fault, injected_ns: int) -> float | None:
        """Return when packets flowed again, ms after the injection; None if they do not, or not for long enough."""
        until_ns = time.monotonic_ns() - IN_FLIGHT_NS
        logs = [log.before(until_ns) for log in probes.peek().probes]
        is_intermittent = fault.definition.loses_packets_throughout
        if until_ns < injected_ns + 2 * LATE_NS or late_losses(logs, until_ns, is_intermittent):
            return None
        return first_packet_ms(logs, injected_ns, until_ns, is_intermittent=is_intermittent)

    def _prepare(self) -> None:
        with self._lock:
            if self._spare is None:
                self._spare = self._start(traffic.__name__, "the probes of the live page", *traffic.REPLIES)

    def _take(self, module: str, name: str, *replies: type[Message]) -> Worker:
        with self._lock:
            spare, self._spare = self._spare, None
        return spare or self._start(module, name, *replies)

    def _start(self, module: str, name: str, *replies: type[Message]) -> Worker:
        worker = Worker(module, name, *replies)
        worker.watched.release()  # a run does not depend on its page
        return worker
