"""Rails that die at any moment, by a cut NIC or a closed connection: every result is right, and they come back.

Every case is a seed; what fails is repeated by its number.
"""

import random
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Operations, Timeouts, plain_socket
from railyard.workloads.allreduce.engine.worker import run_operations
from railyard.workloads.allreduce.transport.links import DATA
from railyard.workloads.allreduce.transport.rendezvous import (
    ACK,
    AGGREGATOR,
    Hello,
    HelloListener,
    RailConnections,
)
from tests.unit.workloads.allreduce.multirail_net import Net, free_port, on_all

SHARP_EYED = Timeouts(heartbeat_s=0.01, missed_heartbeats=6, stall_s=0.4, join_s=10, operation_s=20)


def all_collectives(group: Group, number: int, length: int) -> None:
    """Do each collective, and compare its result bit for bit with what it has to be."""
    ranks = sum(range(1, group.size + 1))
    array = np.arange(length) * (group.rank + 1) + number
    group.allreduce(array)
    np.testing.assert_array_equal(array, np.arange(length) * ranks + number * group.size)
    array[:] = -1  # what others still need of the result isn't the caller's
    part = length // 8
    gathered = group.all_gather(np.full(part, group.rank + number))
    np.testing.assert_array_equal(gathered, np.repeat(np.arange(group.size) + number, part))
    scattered = group.reduce_scatter(np.arange(part * group.size))
    np.testing.assert_array_equal(scattered, np.arange(part * group.rank, part * (group.rank + 1)) * group.size)
    copied = np.full(part, group.rank)
    group.broadcast(copied, number % group.size)
    assert (copied == number % group.size).all()


def rounds_until(group: Group, is_done: Callable[[], object]) -> None:
    """Do collectives, as many on every rank: rank 0 decides when it is enough."""
    verdict = np.zeros(1, np.int32)
    while not verdict[0]:
        all_collectives(group, 1, 800)
        verdict[0] = group.rank == 0 and bool(is_done())
        group.broadcast(verdict, 0)


def while_all_wait(steps: threading.Barrier, change: Callable[[], object]) -> None:
    """Make a change once, when no rank is in an operation."""
    if steps.wait() == 0:
        change()
    steps.wait()


def planned_rails(group: Group) -> list[int]:
    return sorted({part.rail for part in group.policy.plan(1000, 8)})


@pytest.mark.parametrize("seed", range(12))
def test_every_result_is_right_whenever_a_rail_dies(seed: int) -> None:
    rng = random.Random(seed)
    kinds = ("tcp tcp", "tcp sharp", "sharp sharp", "tcp glex sharp")[seed % 4]
    rails, nodes, length = len(kinds.split()), rng.choice([2, 3, 4]), rng.choice([9, 20_000, 60_000])
    rounds = 3 if length > 9 else 20
    net, joined = Net(), threading.Event()

    def body(group: Group) -> str:
        joined.set()
        for number in range(rounds):
            all_collectives(group, number, length)
        return "right"

    def trouble() -> None:
        joined.wait(10)
        time.sleep(0.02 + rng.random() * 0.1)  # all have joined by then
        nic = (rng.randrange(rails), rng.randrange(nodes))
        if seed % 3 == 0:
            net.cut.add(nic)
            time.sleep(0.15)
            net.cut.clear()
        else:
            for _ in range(rng.choice([1, 3])):
                net.close((nic[0], rng.randrange(nodes)), rng.choice([None, rng.randrange(20)]))
                time.sleep(rng.random() * 0.003)

    thread = threading.Thread(target=trouble)
    thread.start()
    policy = rng.choice(["nezha", "mrib", "slicing", "equal"])
    assert on_all(kinds, nodes, body, policy=policy, timeouts=SHARP_EYED, net=net) == ["right"] * nodes
    thread.join()


@pytest.mark.parametrize(
    ("kinds", "nic", "gone"),
    [
        ("tcp tcp", (0, 1), False),
        ("sharp tcp", (0, 1), False),
        ("tcp tcp", (0, 0), True),
        ("tcp tcp", (0, 1), True),
        ("sharp tcp", (0, -1), True),
    ],
)
def test_work_of_a_cut_nic_moves_and_the_rail_returns(kinds: str, nic: tuple[int, int], gone: bool) -> None:
    net = Net()
    steps = threading.Barrier(3, timeout=30)

    def cut() -> None:
        net.gone.update({nic} if gone else ())
        net.cut.add(nic)

    def repair() -> None:
        net.gone.clear()
        net.cut.clear()

    def body(group: Group) -> tuple[int, list[int], list[int]]:
        rounds_until(group, lambda: True)
        while_all_wait(steps, cut)
        rounds_until(group, lambda: group.migrations)
        time.sleep(0.1)  # between operations too the rail is called for, by another thread
        without = group.live_rails
        while_all_wait(steps, repair)
        rounds_until(group, lambda: 0 in group.live_rails)
        rounds_until(group, lambda: True)
        return len(group.migrations), without, planned_rails(group)

    assert on_all(kinds, 3, body, timeouts=SHARP_EYED, net=net) == [(1, [1], [0, 1])] * 3


def test_policy_and_report_leave_out_a_rail_until_its_return() -> None:
    net = Net()
    steps = threading.Barrier(3, timeout=30)
    requested = Operations("allreduce", "int32", 4, count=1, seed=1)

    def body(group: Group) -> tuple[list[list[int]], list[Any]]:
        reports = []

        def used(policy: str) -> list[int]:
            group.set_policy(policy)
            all_collectives(group, 1, 800)
            return planned_rails(group)

        reports.append(run_operations(group, requested))
        while_all_wait(steps, lambda: net.cut.add((0, 1)))
        rounds_until(group, lambda: group.migrations)
        reports.append(run_operations(group, requested))
        rails = [used("mrib"), used("single:tcp0")]
        while_all_wait(steps, net.cut.clear)
        rounds_until(group, lambda: 0 in group.live_rails)
        reports.append(run_operations(group, requested))
        rails += [used("equal"), used("mrib"), used("single:tcp0")]
        return rails, [([m.rails for m in report.migrations], report.dead_rails) for report in reports]

    planned = [[1], [1], [0, 1], [0, 1], [0]]
    reported: list[Any] = [([], ()), ([(0,)], (0,)), ([], ())]
    assert on_all("tcp tcp", 3, body, timeouts=SHARP_EYED, net=net) == [(planned, reported)] * 3


def test_closed_connection_is_dialled_again_before_use() -> None:
    """An aggregator that lost a caller: no other caller may wait on an ended connection."""
    address = ("127.0.0.1", free_port())
    listener = HelloListener(plain_socket, {0: address})
    connections = RailConnections(Hello(7, 0, 1, DATA, 0), {(DATA, AGGREGATOR): address}, [], plain_socket, "127.0.0.1")
    poller = select.poll()
    poller.register(listener.sockets[0], select.POLLIN)

    def join() -> socket.socket:
        connections.step()  # calls
        assert poller.poll(5000), "it calls"
        listener.accept()
        (caller,) = listener.unidentified
        deadline = time.monotonic() + 5
        while connections.missing and time.monotonic() < deadline:
            connections.step()
            listener.identify(lambda _, sock: sock.send(ACK) == 1)
        assert connections.missing == []
        return caller

    first = join()
    connections.step()
    assert connections.missing == [], "a connection that only is silent stays"
    first.close()
    time.sleep(0.05)
    join().close()
    connections.close()
    listener.close()


def test_rail_lost_before_its_use_joins_once_more() -> None:
    net = Net()
    lost: list[int] = []
    joined = threading.Barrier(3, timeout=30)

    def body(group: Group) -> list[int]:
        node = group._node
        assert node is not None
        decide = node.changes.decide

        def lose_it_first(message: dict[str, Any], now: float) -> tuple[list[int], list[int]]:
            if message["restored"] and not lost:
                lost.append(group.rank)
                node.transport._rendezvous.begin(0, node.transport.incarnations[0])
            return decide(message, now)

        if group.rank == 1:
            node.changes.decide = lose_it_first  # type: ignore[method-assign]
        while_all_wait(joined, lambda: net.close((0, 1)))
        rounds_until(group, lambda: len(group.migrations) == 2)
        rounds_until(group, lambda: 0 in group.live_rails)
        rounds_until(group, lambda: True)
        return planned_rails(group)

    assert on_all("tcp tcp", 3, body, timeouts=SHARP_EYED, net=net) == [[0, 1]] * 3
    assert lost == [1]


def test_loss_of_the_last_rail_is_an_error_on_every_rank() -> None:
    net = Net()

    def body(group: Group) -> None:
        all_collectives(group, 1, 100)
        if group.rank == 0:
            net.close((0, 1))
        for number in range(10_000):
            all_collectives(group, number, 100)

    problems = on_all("tcp", 3, body, timeouts=SHARP_EYED, net=net)
    assert [type(problem) for problem in problems] == [GroupBroken] * 3
    for problem in problems:
        assert "no rail" in str(problem) or "is gone" in str(problem)


def test_two_cut_rails_end_in_an_error_on_every_rank() -> None:
    net = Net()

    def body(group: Group) -> None:
        all_collectives(group, 1, 100)
        if group.rank == 2:
            net.cut.update({(0, 2), (1, 1)})
        for number in range(10_000):
            all_collectives(group, number, 1000)

    impatient = Timeouts(heartbeat_s=0.01, missed_heartbeats=6, stall_s=0.3, join_s=10, operation_s=0.5)
    problems = on_all("tcp tcp", 3, body, timeouts=impatient, net=net)
    assert [type(problem) for problem in problems] == [GroupBroken] * 3


def test_idle_cut_rail_is_found_with_few_heartbeats() -> None:
    timeouts = Timeouts(heartbeat_s=0.05, missed_heartbeats=4, join_s=10, operation_s=20)
    net = Net()

    def body(group: Group) -> tuple[float, int, list[int]]:
        array = np.zeros(8)
        group.allreduce(array)
        group.take_samples()
        began, operations = time.monotonic(), 0
        while array[0] == 0 and operations < 100_000:  # until all have seen that it's time
            array[:] = time.monotonic() - began > 0.5
            group.allreduce(array)
            operations += 1
        lasted, heartbeats = time.monotonic() - began, len(group.take_samples()) - operations
        net.cut.add((1, 0))
        array[:] = 0
        while array[0] < group.size:
            array[:] = len(group.live_rails) < 2
            group.allreduce(array)
        return lasted, heartbeats, group.live_rails

    for lasted, heartbeats, left in on_all("tcp tcp", 2, body, policy="single:tcp0", timeouts=timeouts, net=net):
        assert heartbeats <= lasted / timeouts.heartbeat_s / 2, "some operations may have been held up, but not most"
        assert left == [0]
