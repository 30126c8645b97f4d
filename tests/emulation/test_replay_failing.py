"""A replay that can't be finished ends, soon, and says why."""

import os
import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from railyard.core.errors import RailyardError
from railyard.topologies.addresses import Gpu
from railyard.workloads.collectives.algorithm import collective_schedule
from railyard.workloads.replay.job import Windows
from railyard.workloads.replay.run import Replay, replay
from tests.emulation.fabrics import build, eventually
from tests.emulation.programs import command_line

pytestmark = pytest.mark.sandbox

WINDOWS = Windows(200_000, 200_000, 36_000)
SECONDS_OF_BYTES = 30_000_000  # 2.4 s at 100 Mbit/s


def workers() -> list[int]:
    return [p.pid for p in psutil.Process().children() if "railyard.workloads.replay.worker" in command_line(p)]


def while_it_runs(do: Callable[[], None]) -> Callable[[int], None]:
    """For `replay`'s progress: does it once some bytes have arrived."""
    done: list[bool] = []

    def progress(delivered: int) -> None:
        if delivered and not done:
            done.append(True)
            do()

    return progress


def test_bytes_behind_a_cut_link_are_missing_at_the_deadline() -> None:
    fabric = build("rail-only", 2, 2, reroute=False, backups=False)
    schedule = collective_schedule("all-to-all-in-rail", 2, 2, SECONDS_OF_BYTES // 2)
    cut = while_it_runs(lambda: fabric.set_link(Gpu(0, 1), "down"))
    done = replay(schedule, WINDOWS, 1, 6.0, cut)
    assert done.broken
    arrived = {pair for pair, size in schedule.matrix.items() if done.delivered_matrix.get(pair) == size}
    assert arrived == {(0, 2), (2, 0)}, "by the other rail"


def test_replay_that_is_interrupted_or_loses_a_worker_ends() -> None:
    """First one that is whole. Other processes notice a dead worker by their connections: none waits for a deadline."""
    build("rail-only", 2, 2)
    schedule = collective_schedule("all-to-all-in-rail", 2, 2, 100_000)
    reported: list[int] = []
    done: Replay = replay(schedule, WINDOWS, 1, started=reported.append)
    assert done.start_ns == reported[0]
    assert done.spans.keys() == set(range(len(schedule.tasks)))
    assert all(done.start_ns <= start < end <= done.end_ns for start, end in done.spans.values())

    schedule = collective_schedule("all-to-all-in-rail", 2, 2, SECONDS_OF_BYTES)
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        replay(schedule, WINDOWS, 1, 600.0, while_it_runs(timer.start))
    eventually(lambda: workers() == [])

    begun = time.monotonic()
    with pytest.raises(RailyardError, match="replay worker died"):
        replay(schedule, WINDOWS, 1, 600.0, while_it_runs(lambda: os.kill(workers()[0], signal.SIGKILL)))
    assert time.monotonic() - begun < 120
    assert workers() == []
