"""Bytes from rank to rank over Gloo, by its algorithms."""

from typing import Any

import pytest

from railyard.workloads.recording.gloo_bytes import pair_bytes

WORLD = {"world": ((0, 1, 2, 3),)}


def sent(rank: int, op: str, **fields: Any) -> dict[tuple[int, int], int]:
    program = [{"op": op, "communicator": "world", **fields}, {"op": "compute", "flops": 5}]
    return dict(pair_bytes({rank: program}, WORLD))


@pytest.mark.parametrize("op", ["all-reduce", "reduce-scatter"])
def test_a_ring_sends_all_but_a_part_twice(op: str) -> None:
    assert sent(0, op, bytes=400) == {(0, 3): 600}
    assert sent(2, op, bytes=400) == {(2, 1): 600}


def test_a_gathered_buffer_goes_round_but_for_a_part() -> None:
    assert sent(3, "all-gather", bytes=400) == {(3, 0): 300}
    assert sent(0, "all-gatherv", receives=[10, 20, 30, 40]) == {(0, 1): 80}


def test_a_broadcast_is_a_tree_from_its_root() -> None:
    assert sent(1, "broadcast", bytes=8, root=1) == {(1, 2): 8, (1, 3): 8}
    assert sent(2, "broadcast", bytes=8, root=1) == {(2, 0): 8}
    assert sent(3, "broadcast", bytes=8, root=1) == {}


def test_parts_of_an_all_to_all_go_to_their_ranks() -> None:
    assert sent(1, "all-to-all", bytes=5) == {(1, 0): 5, (1, 2): 5, (1, 3): 5}
    assert sent(1, "all-to-allv", sends=[1, 2, 3, 4]) == {(1, 0): 1, (1, 2): 3, (1, 3): 4}


def test_only_the_root_scatters_and_the_others_gather() -> None:
    assert sent(0, "scatter", bytes=5, root=0) == {(0, 1): 5, (0, 2): 5, (0, 3): 5}
    assert sent(1, "scatter", bytes=5, root=0) == {}
    assert sent(1, "gather", bytes=5, root=0) == {(1, 0): 5}
    assert sent(0, "gather", bytes=5, root=0) == {}
    assert sent(2, "reduce", bytes=400, root=0) == {(2, 1): 300, (2, 0): 100}
    assert sent(2, "send", bytes=7, peer=3) == {(2, 3): 7}
    assert sent(2, "barrier") == {}
