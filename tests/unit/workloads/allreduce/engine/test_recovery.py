"""Work that is repeated when a rail dies: enough for every node, and never more than is safe. Pure."""

import json
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.allreduce.engine.recovery import Action, Job, JobState, replacements
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
