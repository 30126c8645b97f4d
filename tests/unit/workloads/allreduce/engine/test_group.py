"""The collectives over real sockets on loopback: right on every rank, every kind of rail, odd and empty sizes."""

import math
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from railyard.core.errors import BadInput
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Layout, Timeouts, loopback
from railyard.workloads.allreduce.tasks import DTYPES
from tests.unit.workloads.allreduce.multirail_net import Net, free_port, on_all, rails_of
from tests.unit.workloads.messages import CheckMessages

Numbers = np.ndarray[Any, Any]
KINDS = ("tcp", "tcp tcp", "sharp", "tcp sharp", "glex sharp tcp")


def parts(length: int, nodes: int, dtype: str, seed: int) -> list[Numbers]:
    """Return what each rank brings: the whole range of integers, floats of all sizes."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return [rng.integers(info.min, info.max, length, kind, endpoint=True) for _ in range(nodes)]
    values = [rng.standard_normal(length) * 10.0 ** rng.integers(-2, 3, length) for _ in range(nodes)]
    return [(value + 1j * value[::-1] if kind.kind == "c" else value).astype(kind) for value in values]


def within_tolerance(got: Numbers, brought: list[Numbers]) -> bool:
    """Bit for bit for integers; for floats an ulp of what was added up, times the logarithm of the nodes."""
    if got.dtype.kind in "iu":
        return bool((got == np.sum(brought, axis=0, dtype=got.dtype)).all())
    exact = np.sum([part.astype(np.complex256) for part in brought], axis=0)
    added_up = np.sum(np.abs(np.array(brought)).astype(np.float64), axis=0)
    ulp = np.finfo(got.dtype).eps
    return bool((np.abs(got - exact) <= ulp * max(1.0, math.log2(len(brought))) * added_up).all())


def sums_on_all(kinds: str, nodes: int, brought: Sequence[list[Numbers]], policy: str = "nezha") -> list[list[Numbers]]:
    """Return by rank the sums of arrays, of which each rank brings its own."""

    def body(group: Group) -> list[Numbers]:
        arrays = [ranks[group.rank].copy() for ranks in brought]
        for array in arrays:
            group.allreduce(array)
        return arrays

    return on_all(kinds, nodes, body, policy=policy)


@pytest.mark.parametrize("kinds", ["tcp", "glex sharp tcp"])
@pytest.mark.parametrize("policy", ["nezha", "mrib", "slicing", "single", "equal"])
def test_the_sum_is_numpys_on_every_rank(kinds: str, policy: str) -> None:
    sizes = [(0, "int32"), (1, "int64"), (3, "uint8"), (10_007, "int64"), (70_001, "float32")]
    brought = [parts(length, 3, dtype, seed) for seed, (length, dtype) in enumerate(sizes)]
    ranks = sums_on_all(kinds, 3, brought, policy)
    for number, ranks_parts in enumerate(brought):
        assert within_tolerance(ranks[0][number], ranks_parts)
        for rank in ranks[1:]:  # the same bits everywhere, of floats too
            assert rank[number].tobytes() == ranks[0][number].tobytes()


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_sums_with_any_number_of_nodes_and_every_type(nodes: int) -> None:
    brought = [parts(997, nodes, dtype.name, seed) for seed, dtype in enumerate(DTYPES)]
    for rank in sums_on_all("tcp sharp", nodes, brought):
        assert all(within_tolerance(got, ranks) for got, ranks in zip(rank, brought, strict=True))


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("length", [0, 4_001])
def test_gather_scatter_and_broadcast_give_numpys_results(kinds: str, length: int) -> None:
    def body(group: Group) -> tuple[Numbers, ...]:
        gathered = group.all_gather(np.full(length, group.rank, np.int32))
        scattered = group.reduce_scatter(np.repeat(np.arange(3, dtype=np.int64), length) * (group.rank + 1))
        reported = np.full(length, group.rank, np.float64)
        group.broadcast(reported, root=2)
        return gathered, scattered, reported

    for rank, (gathered, scattered, reported) in enumerate(on_all(kinds, 3, body)):
        assert gathered.tolist() == [0] * length + [1] * length + [2] * length
        assert scattered.tolist() == [rank * 6] * length
        assert reported.tolist() == [2.0] * length


def test_late_rank_gets_early_frames_and_copies_only_the_result() -> None:
    def body(group: Group) -> tuple[list[int], int, int]:
        array = np.full(50_000, group.rank + 1)
        if group.rank == 1:
            time.sleep(0.3)
        group.allreduce(array)
        return np.unique(array).tolist(), group.copies.result, group.copies.own_part

    assert on_all("tcp tcp", 3, body) == [([6], 400_000, 0)] * 3


def test_policies_in_turn_keep_their_learned_shares() -> None:
    def body(group: Group) -> Any:
        def turn(policy: str) -> Any:
            group.set_policy(policy)
            for _ in range(12):
                array = np.full(20_000, group.rank + 1, np.int64)
                group.allreduce(array)
                assert (array == 6).all()
            return group.policy

        fixed, nezha = turn("single:tcp1"), turn("nezha")
        learnt = [each.cost for each in nezha.rails.estimators]
        assert turn("equal") not in (fixed, nezha)
        with pytest.raises(BadInput, match="policy: 'nehza'"):
            group.set_policy("nehza")
        group.set_policy("nezha")
        assert (group.policy, [each.cost for each in nezha.rails.estimators]) == (nezha, learnt)
        used = {part.rail for part in fixed.plan(20_000, 8)}
        return used, learnt, turn("nezha").plan(20_000, 8)

    ranks = on_all("tcp tcp", 3, body, policy="mrib")
    assert ranks[0] == ranks[1] == ranks[2], "all learn the same"
    used, learnt, plan = ranks[0]
    assert used == {1}
    assert learnt != tuple(allreduce_cost(rail, 3) for rail in rails_of("tcp tcp"))
    assert sum(part.length for part in plan) == 20_000


Call = Callable[[Group], Any]


def unlike_sizes(group: Group) -> None:
    group.allreduce(np.ones(100 if group.rank else 101))


def unlike_types(group: Group) -> None:
    group.allreduce(np.ones(100, np.float32 if group.rank == 2 else np.int32))


def empty_or_not(group: Group) -> None:
    group.allreduce(np.ones(10 if group.rank == 1 else 0))


def unlike_collectives(group: Group) -> None:
    if group.rank == 1:
        group.broadcast(np.ones(100), root=0)
    else:
        group.allreduce(np.ones(100))


@pytest.mark.parametrize("kinds", ["tcp tcp", "tcp sharp"])
@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (unlike_sizes, ["rank 0: allreduce of 101 float64", "rank 1, 2: allreduce of 100 float64"]),
        (unlike_types, ["rank 0, 1: allreduce of 100 int32", "rank 2: allreduce of 100 float32"]),
        (empty_or_not, ["rank 0, 2: allreduce of 0 float64", "rank 1: allreduce of 10 float64"]),
        (unlike_collectives, ["rank 1: broadcast of 100 float64 from rank 0"]),
    ],
)
def test_unlike_calls_are_an_error_on_every_rank(kinds: str, body: Call, calls: list[str]) -> None:
    problems = on_all(kinds, 3, body)
    assert {type(problem) for problem in problems} == {GroupBroken}
    assert len({str(problem) for problem in problems}) == 1
    assert any(call in str(problems[0]) for call in calls)  # two that differ are enough to stop


IMPATIENT = Timeouts(heartbeat_s=0.02, missed_heartbeats=10, join_s=0.5, operation_s=0.5)


@pytest.mark.parametrize(("late", "kinds"), [(0, "tcp tcp"), (2, "sharp")])
def test_rank_without_a_call_is_named_on_the_others(late: int, kinds: str) -> None:
    done = threading.Barrier(3)

    def body(group: Group) -> None:
        group.allreduce(np.ones(10))
        if group.rank == late:
            done.wait(30)
            group.allreduce(np.ones(11))
        try:
            group.allreduce(np.ones(11))
        finally:
            done.wait(30)

    problems = on_all(kinds, 3, body, timeouts=IMPATIENT)
    assert [type(problem) for problem in problems] == [GroupBroken] * 3
    del problems[late]
    assert all(re.match(rf"rank {late} .* operation 2 \(allreduce of 11 float64\)", str(each)) for each in problems)


def test_a_rank_that_never_joins_is_named() -> None:
    problems = on_all("tcp tcp", 4, lambda group: group.allreduce(np.ones(3)), timeouts=IMPATIENT, absent=(3,))
    assert all(isinstance(problem, GroupBroken) for problem in problems[:3])
    assert all(re.match("rank 3 .* rail tcp0; rank 3 .* rail tcp1", str(problem)) for problem in problems[:3])


def test_a_process_that_dies_is_named_and_the_others_end() -> None:
    net = Net()

    def body(group: Group) -> None:
        group.allreduce(np.ones(10))
        if group.rank == 1:
            raise RuntimeError("of its own")
        group.allreduce(np.ones(10_000))

    problems = on_all("tcp tcp", 3, body, net=net)
    assert isinstance(problems[1], RuntimeError)
    assert all(isinstance(problems[rank], GroupBroken) for rank in (0, 2))
    assert "rank 1" in str(problems[0])


def test_messages_of_impossible_calls(check_messages: CheckMessages) -> None:
    frozen = np.ones(3)
    frozen.flags.writeable = False
    rail = Rail("a", "tcp", 1e6)
    node = (("127.0.0.1", 1),)
    with Group(0, loopback(rails_of("tcp"), 1, free_port())) as group:
        calls: dict[str, Callable[[], object]] = {
            "an array that is not contiguous": partial(group.allreduce, np.ones((4, 4))[:, 1]),
            "an array that is read-only": partial(group.allreduce, frozen),
            "a type that can't be summed": partial(group.allreduce, np.ones(3, bool)),
            "a root outside the group": partial(group.broadcast, np.ones(3), root=1),
            "a rank outside the group": partial(Group, 4, loopback(rails_of("tcp"), 2, free_port())),
            "a layout without rails": partial(Layout, (), (), ()),
            "rails with other numbers of nodes": partial(Layout, (rail, rail), (node, ()), (None, None)),
            "an aggregator of a ring": partial(Layout, (rail,), (node,), (("127.0.0.1", 2),)),
        }
        check_messages(calls)


def test_array_without_a_part_for_each_rank_is_refused() -> None:
    connected = threading.Barrier(2)

    def body(group: Group) -> None:
        group.allreduce(np.ones(2))
        connected.wait(30)  # else one may close its rails before the other has its sum
        group.reduce_scatter(np.ones(3))

    for problem in on_all("tcp", 2, body):
        assert isinstance(problem, BadInput)
        assert (problem.field, problem.value) == ("array", 3)


def test_taken_or_foreign_address_is_named() -> None:
    port = free_port()
    taken = loopback(rails_of("tcp tcp"), 2, port)
    host, second = taken.nodes[1][0]
    with socket.create_server((host, second)), pytest.raises(BadInput, match=f"rails.1: '{host}:{second}' can't be"):
        Group(0, taken)


def test_the_barrier_after_a_gather_counts_for_no_rail() -> None:
    """It comes when all rails are through, on the first; which has a hundredth of the bytes here, and ends first."""

    def body(group: Group) -> bool:
        ends = []
        for _ in range(3):
            group.all_gather(np.zeros(200_000, np.int32))
            ends.append(group.last.ends)
        return any(first < second for first, second in ends)

    assert all(on_all("tcp tcp", 3, body, policy="weights:1:99"))
