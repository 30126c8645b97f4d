"""Neutral operations become tasks: bytes are conserved, dependencies kept, and mismatches reported."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.schedule import Schedule
from railyard.workloads.tasks import Compute, Transfer
from railyard.workloads.traces.common import Action, Call, Gap, Node, Recv, Send, Trace
from railyard.workloads.traces.lower import Lowered, as_grid, lower
from tests.unit.workloads.messages import CheckMessages

Item = Action | tuple[Action, tuple[int, ...]]


def trace_of(*ranks: Sequence[Item]) -> Trace:
    """An action alone waits for the one before it."""
    nodes = []
    for rank, listed in enumerate(ranks):
        mine = []
        for i, item in enumerate(listed):
            action, after = item if isinstance(item, tuple) else (item, (i - 1,) if i else ())
            mine.append(Node(f"rank {rank}: {i}", action, after))
        nodes.append(tuple(mine))
    return Trace("t", tuple(nodes), lambda measured: {})


def among(group: Collection[int], actions: Sequence[Action], gpus: int = 8) -> Trace:
    """Return a trace in which the ranks of a group have these actions, and the others none."""
    return trace_of(*(actions if gpu in group else [] for gpu in range(gpus)))


def ends_before(schedule: Schedule, early: int, late: int) -> bool:
    """Return whether task `late` can only begin when `early` has ended."""
    todo, seen = [late], set()
    while todo:
        number = todo.pop()
        if number == early:
            return True
        if number not in seen and number > early:
            seen.add(number)
            todo += schedule.tasks[number].after
    return False


GROUPS = st.sampled_from([(0, 1), (0, 4), (0, 1, 4, 5), (1, 3, 5, 7), (0, 1, 2, 3), (2, 3, 4, 5), (5, 0, 2), (7, 6)])
FACTOR = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


@given(group=GROUPS, op=st.sampled_from(sorted(FACTOR)), chunk=st.integers(1, 10**6))
def test_a_ring_sends_what_any_ring_must(group: tuple[int, ...], op: str, chunk: int) -> None:
    """(n - 1) D in all, twice for AllReduce: on a grid, D/n on rails x times, and so on."""
    n = len(group)
    call = Call(op, group, chunk * n)  # type: ignore[arg-type]
    schedule = lower(among(group, [call]), 2, 4, 1.0, 1.0).schedule
    schedule.check()
    assert sum(schedule.matrix.values()) == FACTOR[op] * (n - 1) * chunk * n
    received = Counter(t.dst for _, t in schedule.transfers)
    assert set(received) == set(group)


@given(
    data=st.data(),
    group=st.sampled_from([(0, 1, 2, 3), (0, 1, 2, 3, 4, 5, 6, 7), (3, 1, 6), (0, 2, 4, 6), (1, 5)]),
)
def test_splits_are_honoured_to_the_byte(data: st.DataObject, group: tuple[int, ...]) -> None:
    n = len(group)
    size = st.one_of(st.just(0), st.integers(1, 400_000))
    splits = data.draw(st.lists(st.lists(size, min_size=n, max_size=n), min_size=n, max_size=n))
    place = {gpu: i for i, gpu in enumerate(group)}
    ranks = [
        [
            Call(
                "all-to-allv",
                group,
                sends=tuple(splits[place[gpu]]),
                receives=tuple(splits[j][place[gpu]] for j in range(n)),
            )
        ]
        if gpu in place
        else []
        for gpu in range(8)
    ]
    schedule = lower(trace_of(*ranks), 2, 4, 1.0, 1.0).schedule
    expected = {
        (a, b): splits[place[a]][place[b]] for a in group for b in group if a != b and splits[place[a]][place[b]]
    }
    assert schedule.matrix == expected


@pytest.mark.parametrize("algorithm", ["all-to-all-two-phase", "all-to-all"])
def test_even_all_to_alls_take_the_algorithm_asked_for(algorithm: str) -> None:
    call = Call("all-to-all", tuple(range(8)), 70_000)
    schedule = lower(among(range(8), [call]), 2, 4, 1.0, 1.0, algorithm).schedule
    (phase,) = schedule.phases
    assert (phase.x, phase.y, phase.data_bytes) == (4, 2, 70_000)
    assert phase.collective == algorithm
    direct = {(a, b): 70_000 for a in range(8) for b in range(8) if a != b}
    assert (schedule.matrix == direct) is (algorithm == "all-to-all")


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_rooted_collectives_reach_or_leave_everyone(op: str) -> None:
    group = (0, 1, 2, 3, 4, 5)
    call = Call(op, group, 300_000, root=2)  # type: ignore[arg-type]
    schedule = lower(among(group, [call], 6), 2, 3, 1.0, 1.0).schedule
    into, out_of = Counter[int](), Counter[int]()
    for (src, dst), size in schedule.matrix.items():
        into[dst] += size
        out_of[src] += size
    if op in ("broadcast", "scatter"):
        assert into == {gpu: 300_000 for gpu in group if gpu != 2}
    if op in ("reduce", "gather"):
        assert out_of == {gpu: 300_000 for gpu in group if gpu != 2}
    assert sum(into.values()) == 5 * 300_000


@given(group=st.sampled_from([(0, 1), (0, 1, 2, 3), (4, 1, 6), (0, 1, 2, 3, 4, 5, 6, 7), (0, 2, 5, 7, 1)]))
def test_nobody_passes_a_barrier_before_all_have_come(group: tuple[int, ...]) -> None:
    barrier = Call("barrier", group)
    work: list[Action] = [Gap(1.0), barrier, Gap(2.0)]
    lowered = lower(among(group, work), 2, 4, 1.0, 1.0)
    before = {gpu: lowered.tasks[gpu, 0][0] for gpu in group}
    after = {gpu: lowered.tasks[gpu, 2][0] for gpu in group}
    assert all(ends_before(lowered.schedule, before[a], after[b]) for a in group for b in group)


OPS = ["gap", "all-reduce", "all-to-all", "send", "barrier", "broadcast", "reduce", "gather", "all-to-allv"]
STEPS = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 5)), max_size=9)


def call_of(what: str, group: tuple[int, ...], rank: int) -> Call:
    """Of an uneven exchange only the first of the group sends, to all but the last: so nothing among two."""
    if what != "all-to-allv":
        return Call(what, group, 64_000, group[0] if what in ("broadcast", "reduce", "gather") else None)  # type: ignore[arg-type]
    given = [1000] * (len(group) - 1) + [0]
    none = (0,) * len(group)
    sends = tuple(given) if rank == group[0] else none
    return Call("all-to-allv", group, sends=sends, receives=(given[group.index(rank)], *none[1:]))


@pytest.mark.parametrize("group", [(0, 1, 2, 3), (3, 0, 2)])
@pytest.mark.parametrize("what", [op for op in OPS if op not in ("gap", "send")])
def test_work_before_a_collective_ends_before_work_after_it(what: str, group: tuple[int, ...]) -> None:
    """At each rank, even one that only sends or only receives."""
    listed: list[list[Item]] = [
        [Gap(1.0), call_of(what, group, rank), Gap(1.0)] if rank in group else [] for rank in range(4)
    ]
    lowered = lower(trace_of(*listed), 2, 2, 1.0, 1.0)
    for rank in group:
        (before,), (after,) = lowered.tasks[rank, 0], lowered.tasks[rank, 2]
        assert ends_before(lowered.schedule, before, after)


@given(steps=STEPS, data=st.data())
def test_operation_begins_after_its_dependencies(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    """Four ranks, random dependencies on earlier operations: what one waits for, those after it wait for too."""
    groups = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3), (3, 0, 1)]
    ranks: list[list[tuple[Action, tuple[int, ...]]]] = [[] for _ in range(4)]

    def add(rank: int, action: Action) -> None:
        earlier = (
            st.lists(st.integers(0, len(ranks[rank]) - 1), max_size=2, unique=True) if ranks[rank] else st.just([])
        )
        ranks[rank].append((action, tuple(data.draw(earlier))))

    for what, which in steps:
        group = groups[which]
        if what == "gap":
            add(which % 4, Gap(0.001))
        elif what == "send":
            add(group[0], Send(group[1], 5000, which))
            add(group[1], Recv(group[0], 5000, which))
        else:
            for rank in group:
                add(rank, call_of(what, group, rank))
    lowered = lower(trace_of(*ranks), 2, 2, 1.0, 1.0)
    lowered.schedule.check()
    for rank, listed in enumerate(ranks):
        waited_for: list[set[int]] = []
        for position, (_, after) in enumerate(listed):
            waited_for.append(set(after).union(*(waited_for[wanted] for wanted in after)))
            for wanted in waited_for[position]:
                _check_order(lowered, (rank, wanted), (rank, position))


def _check_order(lowered: Lowered, early: tuple[int, int], late: tuple[int, int]) -> None:
    """Tasks that the later operation itself begins on that GPU; what it receives begins elsewhere."""
    tasks = lowered.schedule.tasks
    begun = [n for n in lowered.tasks.get(late, ()) if _owner(tasks[n]) == late[0]]
    for number in begun:
        for over in lowered.tasks.get(early, ()):
            assert ends_before(lowered.schedule, over, number), f"{late} began before {early} was over"


def _owner(task: Transfer | Compute) -> int:
    return task.src if isinstance(task, Transfer) else task.gpu


def test_collectives_of_one_group_are_serial_others_overlap() -> None:
    both, near = (0, 1, 2, 3), (0, 1)
    calls = [(Call("all-gather", both, 4000), ()), (Call("all-gather", near, 4000), ()), (Call("barrier", both), ())]
    far = [calls[0], calls[2]]
    lowered = lower(trace_of(calls, calls, far, far), 2, 2, 1.0, 1.0)
    first, second, third = (lowered.tasks[0, i] for i in range(3))
    assert not any(ends_before(lowered.schedule, a, b) for a in first for b in second)
    own = [n for n in third if _owner(lowered.schedule.tasks[n]) == 0]
    assert all(ends_before(lowered.schedule, a, own[0]) for a in first)


def test_bytes_and_gaps_are_scaled() -> None:
    trace = trace_of([Gap(2.0), Send(1, 1000, 0)], [Recv(0, 1000, 0)])
    gap, transfer = lower(trace, 2, 2, 2.5, 0.5).schedule.tasks
    assert (gap, transfer) == (Compute(0, 1.0, 0), Transfer(0, 1, 2500, 0, (0,)))


def test_steps_that_differ_have_names_that_differ() -> None:
    """Prediction goes by name: one name, one time."""
    calls: list[Action] = [Call("all-gather", (0, 1, 2, 3), size) for size in (100_000, 100_001, 100_000)]
    phases = lower(trace_of(*[calls] * 4), 2, 2, 1.0, 1.0).schedule.phases
    assert len({(p.name, p.data_bytes) for p in phases}) == len({p.name for p in phases}) < len(phases)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ((0, 1, 4, 5), ((0, 1), (4, 5))),
        ((6, 2), ((2,), (6,))),
        ((3, 1, 2, 0), ((0, 1, 2, 3),)),
        ((2, 3, 4, 5), None),
        ((0, 1, 4), None),
    ],
)
def test_a_grid_has_the_same_ranks_of_each_domain(
    group: tuple[int, ...], expected: tuple[tuple[int, ...], ...] | None
) -> None:
    assert as_grid(group, 4) == expected


A = (0, 1)
B = (1, 0)
UNEVEN = [
    [Call("all-to-allv", A, sends=(1, 2), receives=(1, 5))],
    [Call("all-to-allv", A, sends=(5, 1), receives=(3, 1))],
]
MISMATCHES: Final[dict[str, Sequence[Sequence[Item]]]] = {
    "send without a receive": [[Send(1, 9, 3)], []],
    "receive of another tag": [[Send(1, 9, 3)], [Recv(0, 9, 4)]],
    "receive without a send": [[Recv(1, 9, 0)], []],
    "receive of other bytes": [[Send(1, 9, 0)], [Recv(0, 8, 0)]],
    "call of one rank alone": [[Call("all-reduce", A, 8)], []],
    "calls of other bytes": [[Call("all-reduce", A, 8)], [Call("all-reduce", A, 9)]],
    "calls with other roots": [[Call("broadcast", A, 8, 0)], [Call("broadcast", A, 8, 1)]],
    "splits that don't agree": UNEVEN,
    "cycle of two on one rank": [[(Gap(1), (1,)), (Gap(1), (0,))], []],
    "operation that waits for itself": [[(Gap(1), (0,))], []],
    "cycle of collectives": [[Call("barrier", A), Call("barrier", B)], [Call("barrier", B), Call("barrier", A)]],
    "cycle of messages": [[Recv(1, 9, 0), Send(1, 9, 0)], [Recv(0, 9, 0), Send(0, 9, 0)]],
}


def test_messages_of_mismatches(check_messages: CheckMessages) -> None:
    check_messages({case: partial(lower, trace_of(*ranks), 2, 2, 1, 1) for case, ranks in MISMATCHES.items()})
