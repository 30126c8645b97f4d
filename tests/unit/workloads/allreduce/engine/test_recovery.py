"""Recovery from dead rails: how they are detected, and which work is repeated. Pure."""

import json
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.workloads.allreduce.engine.jobs import Timeouts
from railyard.workloads.allreduce.engine.recovery import (
    BARRIER,
    DATA,
    IDLE,
    Action,
    Heartbeat,
    Job,
    JobState,
    LivenessMonitor,
    replacements,
)
from railyard.workloads.allreduce.tasks import merged

LENGTH = 20
SPANS = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda p: (min(p), max(p))), max_size=4)


def elements(spans: Sequence[tuple[int, int]]) -> set[int]:
    return {i for a, b in spans for i in range(a, b)}


def state(job: Job, final: list[tuple[int, int]], done: bool | None = None) -> JobState:
    whole = merged(final) == [(job.start, job.start + job.length)]
    return JobState(job, whole if done is None else done, tuple(merged(final)), 8)


@given(finals=st.lists(SPANS, min_size=2, max_size=4))
def test_unfinished_elements_are_redone_or_relayed(
    finals: list[list[tuple[int, int]]],
) -> None:
    job = Job(3, 0, "allreduce", 1, 0, LENGTH)
    states = {rank: [state(job, final)] for rank, final in enumerate(finals)}
    again = replacements(states, dict.fromkeys(states, 3), lambda _: 0, count(100))
    complete_ranks = [rank for rank, (one,) in states.items() if one.done]
    todo = [i for new in again for i in range(new.start, new.start + new.length)]
    assert len(todo) == len(set(todo))  # nothing twice
    for rank, (one,) in states.items():
        assert elements(one.final) | set(todo) == set(range(LENGTH)), f"rank {rank} is left without"
    assert {new.action for new in again} <= ({"broadcast"} if complete_ranks else {"allreduce"})
    assert all(new.root in complete_ranks for new in again if new.action == "broadcast")
    assert [new.number for new in again] == list(range(100, 100 + len(again)))
    assert {(new.op, new.rail) for new in again} <= {(3, 0)}


def test_node_that_has_not_begun_has_nothing_final() -> None:
    job = Job(3, 0, "allreduce", 1, 5, 10)
    again = replacements({0: [state(job, [(5, 9)])], 1: []}, {0: 3, 1: 2}, lambda _: 2, count(9))
    assert again == [Job(3, 9, "allreduce", 2, 5, 10)]


@pytest.mark.parametrize(
    ("action", "done", "again"),
    [
        ("allreduce", (False, False), 1),  # of an empty buffer: it still tells that all have begun
        ("allreduce", (True, False), 0),
        ("barrier", (True, False), 0),
        ("barrier", (False, False), 1),
        ("all_gather", (True, False), 1),
        ("reduce_scatter", (True, True), 0),
    ],
)
def test_replacements_of_empty_jobs_and_barriers(action: Action, done: tuple[bool, bool], again: int) -> None:
    job = Job(1, 0, action, 0, 0, 0)
    states = {rank: [state(job, [], done=each)] for rank, each in enumerate(done)}
    assert len(replacements(states, dict.fromkeys(states, 3), lambda _: 1, count())) == again


def test_collective_that_a_node_has_left_is_not_redone() -> None:
    """Rank 1 is two operations on and has forgotten it: it was through, so all were."""
    job = Job(3, 0, "reduce_scatter", 1, 0, LENGTH)
    assert replacements({0: [state(job, [], done=True)], 1: []}, {0: 4, 1: 5}, lambda _: 0, count()) == []


@given(final=SPANS)
def test_lost_relay_is_redone_for_missing_elements(final: list[tuple[int, int]]) -> None:
    job = Job(3, 7, "broadcast", 1, 0, LENGTH, root=1)
    states = {0: [state(job, final)], 1: [state(job, [(0, LENGTH)])]}
    again = replacements(states, dict.fromkeys(states, 3), lambda _: 0, count())
    assert elements([(new.start, new.start + new.length) for new in again]) == set(range(LENGTH)) - elements(final)


def test_broadcast_is_redone_for_nodes_that_have_not_begun() -> None:
    job = Job(3, 0, "broadcast", 1, 0, 8, root=0)
    again = replacements({0: [state(job, [(0, 8)])], 1: []}, {0: 3, 1: 2}, lambda _: 0, count())
    assert again == [Job(3, 0, "broadcast", 0, 0, 8, root=0)]
    assert replacements({0: [state(job, [(0, 8)])], 1: []}, {0: 4, 1: 5}, lambda _: 0, count()) == []


def test_job_state_survives_json() -> None:
    one = state(Job(3, 7, "broadcast", 1, 0, 8, root=1), [(0, 3), (5, 6)])
    job, *progress = json.loads(json.dumps(one))
    assert Job(*job) == one.job
    assert progress == [one.done, [list(span) for span in one.final], one.itemsize]


TIMEOUTS = Timeouts(heartbeat_s=0.1, missed_heartbeats=4, stall_s=0.2)


def heartbeat(
    number: int, op: int = 1, moved: tuple[int, int] = (0, 0), busy: tuple[int, int] = (DATA, DATA)
) -> Heartbeat:
    return Heartbeat(number, op, "", moved, busy)


def test_rail_without_heartbeats_of_another_is_silent() -> None:
    watch = LivenessMonitor(2, TIMEOUTS)
    for number in range(1, 4):
        watch.received(1, 0, heartbeat(number), 0.0)
        assert watch.silent([1], {0, 1}) == {}
    watch.received(1, 0, heartbeat(4), 0.0)
    assert watch.silent([1], {0, 1}).keys() == {1}
    assert watch.silent([1], {0}) == {}


def test_sleeping_node_makes_no_rail_dead() -> None:
    watch = LivenessMonitor(2, TIMEOUTS)
    for rail in (0, 1):
        watch.received(1, rail, heartbeat(1), 0.0)
    watch.received(1, 0, heartbeat(2), 100.0)  # awake again: the copy on rail 1 is still on its way
    assert watch.silent([1], {0, 1}) == {}


def test_restored_rail_has_missed_nothing() -> None:
    watch = LivenessMonitor(2, TIMEOUTS)
    for number in range(1, 50):
        watch.received(1, 0, heartbeat(number), 0.0)
    watch.restored(1, 0.0)
    assert watch.silent([1], {0, 1}) == {}


def fed(*heartbeats: tuple[int, Heartbeat, float]) -> LivenessMonitor:
    watch = LivenessMonitor(2, TIMEOUTS)
    for rank, what, now in heartbeats:
        watch.received(rank, 0, what, now)
    return watch


def test_rail_that_moves_nothing_on_any_node_is_stalled() -> None:
    start = [(rank, heartbeat(1), 0.0) for rank in (0, 1)]
    moved = [(rank, heartbeat(4, moved=(5, 0)), 0.25) for rank in (0, 1)]
    assert fed(*start, *moved).stalled([0, 1], {0, 1}, 0.26) == {1: "nothing moved for 200 ms"}
    assert fed(*start, moved[0], (1, heartbeat(4, moved=(0, 1)), 0.25)).stalled([0, 1], {0, 1}, 0.26) == {}


def test_waiting_for_a_late_node_is_no_stall() -> None:
    late = [(0, heartbeat(1, op=2), 0.0), (1, heartbeat(1, op=1, busy=(IDLE, IDLE)), 0.0), (0, heartbeat(4, op=2), 0.3)]
    assert fed(*late).stalled([0, 1], {0, 1}, 0.31) == {}
    assert fed((0, heartbeat(1), 0.0), (0, heartbeat(4), 0.3)).stalled([0, 1], {0, 1}, 0.31) == {}


def test_node_not_run_by_the_machine_is_no_stall() -> None:
    """Both wake after five seconds and say so before anything else: that's a beat of each, not fifty."""
    woken = [(rank, heartbeat(number), now) for number, now in ((1, 0.0), (2, 5.0)) for rank in (0, 1)]
    assert fed(*woken).stalled([0, 1], {0, 1}, 5.0) == {}


def test_barrier_that_waits_for_other_rails_is_no_stall() -> None:
    start = [(0, heartbeat(1, busy=(BARRIER, IDLE)), 0.0), (1, heartbeat(1, busy=(IDLE, DATA)), 0.0)]
    busy = [(0, heartbeat(4, busy=(BARRIER, IDLE)), 0.3), (1, heartbeat(4, moved=(0, 9), busy=(IDLE, DATA)), 0.3)]
    still = [(0, heartbeat(4, busy=(BARRIER, IDLE)), 0.3), (1, heartbeat(4, busy=(BARRIER, IDLE)), 0.3)]
    assert fed(*start, *busy).stalled([0, 1], {0, 1}, 0.31) == {}
    assert fed(*start, *still).stalled([0, 1], {0, 1}, 0.31) == {0: "nothing moved for 200 ms"}


def test_unlike_calls_of_one_operation_are_listed_by_rank(file_regression: FileRegressionFixture) -> None:
    watch = LivenessMonitor(1, TIMEOUTS)
    for rank, call in enumerate(["allreduce of 3 int64", "allreduce of 4 int64", "allreduce of 3 int64"]):
        watch.received(rank, 0, Heartbeat(1, 5, call, (0,), (DATA,)), 0.0)
    file_regression.check(f"{watch.mismatch()}")


def test_absent_ranks_are_late_or_quiet() -> None:
    watch = fed((1, heartbeat(1, op=4), 0.0), (2, heartbeat(1, op=3), 0.0), (3, heartbeat(1, op=4), -2.0))
    assert watch.absent([1, 2, 3, 4], 4, 0.5) == [2, 3, 4]


def test_rare_heartbeats_make_no_rank_absent_too_early() -> None:
    assert TIMEOUTS.dilated(10).heartbeat_s == 1.0
    watch = LivenessMonitor(2, TIMEOUTS.dilated(10))
    watch.received(1, 0, heartbeat(1), 0.0)
    assert watch.absent([1], 1, 4.9) == []
    assert watch.absent([1], 1, 5.1) == [1]


def reported_at(lasting: list[float]) -> list[float]:
    """Return when a node beats whose operations last so long, one after the other."""
    heartbeats: list[float] = []
    now = due = latest = 0.0
    for seconds in lasting:
        due = TIMEOUTS.next_heartbeat(now, due, latest)
        now += seconds
        while due <= now:
            latest = due
            heartbeats.append(due)
            due += TIMEOUTS.heartbeat_s
    return heartbeats


SHORT = st.lists(st.floats(0.001, 0.09), min_size=1, max_size=200)


@given(SHORT)
def test_short_operations_send_a_tenth_of_the_heartbeats(lasting: list[float]) -> None:
    assert abs(len(reported_at(lasting)) - sum(lasting) / (10 * TIMEOUTS.heartbeat_s)) <= 1


@given(SHORT, st.floats(0.5, 3.0))
def test_long_operation_sends_every_heartbeat(lasting: list[float], long: float) -> None:
    begins = sum(lasting)
    mine = [at for at in reported_at([*lasting, long]) if at > begins + 1e-9]
    assert mine[0] <= begins + TIMEOUTS.heartbeat_s + 1e-9
    assert len(mine) >= int(long / TIMEOUTS.heartbeat_s) - 1
