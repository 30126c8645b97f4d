"""Observers of a run, such as the live page: they follow its steps, fabrics, events and replays while these happen.

The records of a run are in `Run`; what is emitted here is for who watches, and nothing of it is needed later. A run
emits the same without an observer. A process runs one experiment, so its observers are those of the process.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from railyard.core.records import Recovery
from railyard.failure.active import Operation
from railyard.failure.faults import Fault
from railyard.results.runs.records import Event
from railyard.topologies.build.network import EmulatedNet
from railyard.workloads.replay.job import PhaseEndCallback
from railyard.workloads.schedule import Schedule

FIRST_PACKET: Final = "first-packet"  # the event of packets that flow again after a fault


def _ignore(ns: int) -> None:
    """Do nothing at a time, monotonic ns."""


class ReplayCallbacks(NamedTuple):
    """Callbacks of a replay, called with monotonic ns: when it has begun, and at the end of phases, by their number."""

    started: Callable[[int], None] = _ignore
    watched: Mapping[int, PhaseEndCallback] = MappingProxyType({})


class Observer:
    """Base of observers: what one doesn't define, it doesn't follow. Methods are called from any thread."""

    def provenance(self) -> Mapping[str, str]:
        """Return what a run records of the observer, as keys and values of its provenance."""
        return {}

    def begin_step(self, text: str) -> None:
        """Take in what the run does next; the run waits until this returns."""

    def show(self, ns: int, event: str, detail: dict[str, Any]) -> None:
        """Take in an event, monotonic ns."""

    def fabric(self, label: str, net: EmulatedNet, events: list[Event]) -> AbstractContextManager[None]:
        """Follow a fabric that is up while the result is entered.

        `label`: of the fabric. `events`: of the run, to which those are added that change the fabric.
        """
        return nullcontext()

    def probing(self, fault: Fault) -> AbstractContextManager[Callable[[int], None]]:
        """Probe the pairs that a fault affects while the result is entered.

        It gives a function, to be called with when the fault was injected, monotonic ns.
        """
        return nullcontext(_ignore)

    def replay_callbacks(self, schedule: Schedule, callbacks: ReplayCallbacks) -> ReplayCallbacks:
        """Return callbacks of a replay that follow it too, and call those that are given."""
        return callbacks


_observers: list[Observer] = []


@contextmanager
def subscribed(observer: Observer) -> Iterator[None]:
    """Let an observer follow the run while entered."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def provenance() -> dict[str, str]:
    """Return what the run records of its observers."""
    combined: dict[str, str] = {}
    for observer in _observers:
        combined |= observer.provenance()
    return combined


def begin_step(text: str) -> None:
    """Emit what the run does next, and wait while an observer holds the run."""
    for observer in _observers:
        observer.begin_step(text)


def show(event: str, detail: dict[str, Any], ns: int | None = None) -> None:
    """Emit an event, of now or `ns`, from any thread. `detail`: the values of its sentence."""
    for observer in _observers:
        observer.show(ns or time.monotonic_ns(), event, detail)


def show_fault(operation: Operation, fault: Fault, ns: int) -> None:
    """Emit that a fault was injected or repaired, monotonic ns; a preparation isn't shown."""
    if operation != "prepare":
        show(operation, {"kind": fault.kind, "target": fault.target}, ns)


def first_packet_event(row: Recovery) -> tuple[int, dict[str, Any]] | None:
    """Return when packets flowed again after a fault (monotonic ns), with the values of the event; None if never."""
    if row.first_packet_ms is None:
        return None
    detail = {"kind": row.fault, "target": row.target, "ms": round(row.first_packet_ms, 1)}
    return row.t_fault + round(row.first_packet_ms * 1e6), detail


def show_first_packet(row: Recovery) -> None:
    """Emit when packets flowed again after a fault, if they did."""
    event = first_packet_event(row)
    if event:
        (ns, detail) = event
        show(FIRST_PACKET, detail, ns)


@contextmanager
def fabric(label: str, net: EmulatedNet, events: list[Event]) -> Iterator[None]:
    """Let observers follow a fabric that is up while entered, and change it. `events`: of the run."""
    with ExitStack() as stack:
        for observer in _observers:
            stack.enter_context(observer.fabric(label, net, events))
        yield


@contextmanager
def probing(fault: Fault) -> Iterator[Callable[[int], None]]:
    """Let observers probe the pairs that a fault affects, which nothing else probes; leave before its repair.

    The function that it gives is to be called with when the fault was injected, monotonic ns.
    """
    with ExitStack() as stack:
        callbacks = [stack.enter_context(observer.probing(fault)) for observer in list(_observers)]

        def injected(ns: int) -> None:
            for callback in callbacks:
                callback(ns)

        yield injected


def replay_callbacks(
    schedule: Schedule,
    started: Callable[[int], None] = _ignore,
    watched: Mapping[int, PhaseEndCallback] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the arguments `started` and `watched` of a replay, with which observers follow its phases too."""
    callbacks = ReplayCallbacks(started, watched)
    for observer in _observers:
        callbacks = observer.replay_callbacks(schedule, callbacks)
    return callbacks._asdict()
