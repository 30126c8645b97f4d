"""Processes on another machine that died or are stopped: named with their machine, by this machine's clock."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from railyard.core import watch
from railyard.core.wait import wait_until
from railyard.core.worker import Pipe, Ready
from railyard.experiments.machines import messages, part
from railyard.experiments.machines.cluster import Clock, Machine

HOUR_NS: Final = 3_600 * 10**9
SECOND_NS: Final = 10**9
WITHIN_S: Final = 20.0
NAME: Final = "a replay worker on machine 2 (m2, 10.0.0.2)"


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> watch._Watcher:
    found = watch._Watcher()
    monkeypatch.setattr(watch, "_watcher", found)
    return found


@pytest.fixture
def machine_socket(watcher: watch._Watcher) -> Iterator[tuple[Machine, socket.socket]]:
    """Machine 2, whose clock is an hour ahead, and its part's end of the connection."""
    near, far = socket.socketpair()
    machine = Machine(near, 2, {"name": "m2", "address": "10.0.0.2"})
    machine.clock = Clock(HOUR_NS, 1000)
    with far:
        yield machine, far
        machine.worker.end()


@pytest.fixture
def machine(machine_socket: tuple[Machine, socket.socket]) -> Machine:
    return machine_socket[0]


@pytest.fixture
def sent_by_part(machine_socket: tuple[Machine, socket.socket]) -> Pipe:
    return Pipe(machine_socket[1], [Ready])


def emit(part: Pipe, event: str, **detail: Any) -> None:
    part.send({"kind": "Event", "what": event, "detail": {"name": "a replay worker", **detail}, "ns": 0})


def problem() -> str:
    """What a wait would end with."""
    try:
        watch.check()
    except watch.ProcessMissing as error:
        return str(error)
    return ""


def test_an_interruption_elsewhere_is_named_and_on_our_clock(sent_by_part: Pipe) -> None:
    end_ns = time.monotonic_ns()
    start_ns = end_ns - 3 * SECOND_NS
    times = {"start_ns": start_ns + HOUR_NS, "end_ns": end_ns + HOUR_NS}
    emit(sent_by_part, messages.INTERRUPTION, what="was stopped for 3.0 s", **times)
    (found,) = wait_until(lambda: watch.since(0), "the interruption", 5.0)
    assert str(found).startswith(f"{NAME} was stopped")
    assert (found.start_ns, found.end_ns) == (start_ns, end_ns)


def test_process_missing_elsewhere_ends_waits(sent_by_part: Pipe) -> None:
    stopped_ns = time.monotonic_ns() + HOUR_NS - 5 * SECOND_NS
    emit(sent_by_part, messages.PRESENCE, pid=7, died="", stopped_ns=stopped_ns)
    assert wait_until(problem, "the stop", WITHIN_S).startswith(f"{NAME} is stopped, for 5.")
    emit(sent_by_part, messages.PRESENCE, pid=8, died="died (signal 9)", stopped_ns=0)
    emit(sent_by_part, messages.PRESENCE, pid=7, died="", stopped_ns=0)
    wait_until(lambda: problem().endswith("died (signal 9)"), "the death", WITHIN_S)
    gone = watch.WatchedElsewhere("machine 2 (m2, 10.0.0.2)", 8)
    gone.await_end(0.0)
    gone.release()
    assert problem() == ""


def test_a_part_kills_a_stopped_process_that_is_let_go(watcher: watch._Watcher) -> None:
    states = list[tuple[str, int]]()
    watch.forward(lambda _, found: states.append((found.died, found.stopped_ns)))
    run, own = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    watched = watch.add("it", process.pid, may_exit=True)
    wait_until(lambda: watched.stopped_ns, "the stop", 10.0)
    run.close()
    part._follow(process, watched, own)
    assert process.returncode == -9
    assert states[-1] == ("", 0)
    assert [one.what.partition(" for ")[0] for one in watch.since(0)] == ["was stopped"]


def test_a_death_elsewhere_is_noted_before_the_connection_ends(watcher: watch._Watcher) -> None:
    died = list[str]()
    watch.forward(lambda _, found: died.append(found.died))
    run, own = socket.socketpair()
    process = subprocess.Popen(["sleep", "60"])
    watched = watch.add("it", process.pid, may_exit=True)
    process.kill()
    part._start_following(process, watched, own)
    assert run.recv(1) == b""
    assert died == ["died (signal 9)"]
    run.close()
    wait_until(lambda: died[1:], "its release", 5.0)
    assert died == ["died (signal 9)", ""]


def test_a_reply_that_nobody_waited_for_is_dropped(sent_by_part: Pipe, machine: Machine) -> None:
    machine.send(messages.ReadCounters())
    machine.send(messages.ReadClock())
    for reply in (Ready(), messages.Clock(ns=7)):
        sent_by_part.send(reply)
    assert machine.receive(messages.Clock).ns == 7


def test_checks_pass_while_a_fabric_is_taken_down(sent_by_part: Pipe) -> None:
    emit(sent_by_part, messages.PRESENCE, pid=8, died="died (signal 9)", stopped_ns=0)
    wait_until(problem, "the death", WITHIN_S)
    with watch.unchecked():
        assert problem() == ""
        watch.lose("machine 2", "died")
        assert problem() == "machine 2 died"
