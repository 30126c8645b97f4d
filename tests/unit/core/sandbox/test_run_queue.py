"""The queue of runs on a shared machine: the order of turns, dead tickets, other users, and how a class shares it."""

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event, Timer
from uuid import uuid4

import pytest

from railyard.core.sandbox import run_queue
from railyard.core.wait import wait_until
from railyard.experiments.commands.doctor import class_size, class_text

HOLDER = """
import sys, time
from railyard.core.sandbox import run_queue
with run_queue.turn(sys.argv[1], int(sys.argv[2]), sys.argv[3]):
    print("begun", time.monotonic_ns(), flush=True)
    sys.stdin.readline()
    print("ended", time.monotonic_ns(), flush=True)
"""


@pytest.fixture
def queue() -> str:
    """Return the name of a queue that other tests don't use."""
    return f"railyard-test-{uuid4().hex[:8]}"


def start(queue: str, name: str, at_once: int = 1) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, name, str(at_once), queue],
        cwd=Path(__file__).parents[4],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def begun(process: "subprocess.Popen[str]") -> int:
    assert process.stdout
    return int(process.stdout.readline().split()[1])


def end(process: "subprocess.Popen[str]") -> int:
    output, _ = process.communicate("\n")
    return int(output.split()[1])


def test_a_second_run_waits_and_shows_whose_turn_it_is(queue: str) -> None:
    first = start(queue, "collectives")
    begun(first)
    second = start(queue, "recovery")
    assert second.stderr
    assert re.match("place 1 .*collectives", second.stderr.readline())
    ended = end(first)
    assert begun(second) > ended
    end(second)
    assert run_queue.tickets(queue) == []


def test_a_killed_run_leaves_no_ticket(queue: str) -> None:
    first = start(queue, "killed")
    begun(first)
    (ticket,) = run_queue.tickets(queue)
    assert ticket.text.endswith(": killed")
    first.kill()
    first.communicate()
    assert run_queue.tickets(queue) == []


def test_a_turn_is_one_runs_whatever_the_clock_says(
    queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose ticket is the earlier one, since the clock was set back, waits for the one that has the turn."""
    first, stop = start(queue, "first"), Event()
    begun(first)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    Timer(0.2, stop.set).start()
    with pytest.raises(run_queue.Stopped), run_queue.turn("second", 1, queue, stop):
        pass
    end(first)
    with run_queue.turn("second", 1, queue) as held:
        assert len(held) == 2
    assert capsys.readouterr().err.endswith(": first\n")


def test_a_child_holds_the_turn_of_a_run_that_is_killed(queue: str) -> None:
    with run_queue.turn("first", 1, queue) as held:
        child = subprocess.Popen(["sleep", "60"], pass_fds=held)
    stop = Event()
    Timer(0.2, stop.set).start()
    with child:
        with pytest.raises(run_queue.Stopped), run_queue.turn("second", 1, queue, stop):
            pass
        child.kill()
    with run_queue.turn("second", 1, queue):
        pass


def test_no_queue_starts_at_once_and_several_places_are_shared(queue: str) -> None:
    running = [start(queue, "one", 2), start(queue, "two", 2)]
    for process in running:
        begun(process)
    at_once = start(queue, "three", 0)
    begun(at_once)
    for process in (at_once, *running):
        end(process)


def test_a_long_or_odd_name_makes_one_ticket(queue: str) -> None:
    with run_queue.turn("two\nlines \x1b[31m" + "x" * 200, 1, queue):
        (ticket,) = run_queue.tickets(queue)
        assert ticket.text.isprintable()


def test_sockets_that_claim_another_user_keep_nobody_waiting(queue: str) -> None:
    """Neither a ticket nor a turn counts that another user's process has made, nor a turn without a ticket."""
    other, mine = os.geteuid() + 1, os.geteuid()
    names = [
        f"{queue}/{1:020}-1/{other}/root: quickstart",
        f"{queue}-turn/{1:020}-1/{other}",
        f"{queue}-turn/{2:020}-1/{mine}",
    ]
    with ExitStack() as forged:
        for name in [*names, f"{queue}/{1:020}-1/root: quickstart", f"{queue}-place/0", f"{queue}/soon/me: run"]:
            forged.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0{name}")
        assert run_queue.tickets(queue) == []
        with run_queue.turn("mine", 1, queue, tell=pytest.fail):
            assert [ticket.user for ticket in run_queue.tickets(queue)] == [mine]


def test_ordinary_user_is_shown_as_the_kernel_reports(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run_queue, "abstract_sockets", lambda _: [(f"{queue}/{1:020}-1/65534/root: run".encode(), 65534)]
    )
    (ticket,) = run_queue.tickets(queue)
    assert ticket.text == "nobody: run"


def test_twenty_runs_take_turns_one_at_a_time_in_their_order(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "_POLL_S", 0.05)
    running = list[int]()
    order = list[int]()

    def run(number: int) -> None:
        with run_queue.turn(f"run {number}", 1, queue, tell=lambda _: None):
            running.append(number)
            assert len(running) == 1
            order.append(number)
            time.sleep(0.01)
            running.remove(number)

    def has_come(number: int) -> bool:
        return len(run_queue.tickets(queue)) + len(order) > number

    with ThreadPoolExecutor(20) as pool:
        results = []
        for number in range(20):
            results.append(pool.submit(run, number))
            wait_until(partial(has_come, number), "its ticket", 10.0)
        for result in results:
            result.result()
    assert order == list(range(20))


def test_a_class_shares_the_cores_and_memory_of_a_machine() -> None:
    assert run_queue.runs_at_once(2, 4e9) == 1
    assert run_queue.runs_at_once(64, 128e9) == 5
    assert run_queue.runs_at_once(64, 1.5e9) == 2
    text = class_text(class_size(12, 2, 4e9))
    assert "1 run at once" in text
    assert "5 for each student" in text
