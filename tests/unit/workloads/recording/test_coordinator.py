"""Ranks get the parts that they wait for; ranks that can never go on are named with what they wait for."""

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.recording.coordinator import Coordinator, Wait
from railyard.workloads.recording.messages import Buffer, encode, joined, split


def coordinator_of(*ranks: int) -> Coordinator:
    return Coordinator("train.py", set(ranks))


def wait(key: str, *ranks: int, required: bool = False) -> Wait:
    return Wait(key, ranks, f"operation {key}", required)


def test_a_rank_gets_the_parts_of_ranks_that_are_run() -> None:
    coordinator = coordinator_of(0, 3)
    coordinator.post(0, "w/1", "all-gather uint8", [b"a"])
    coordinator.wait(0, wait("w/1", 0, 1, 2, 3))
    assert coordinator.answers() == []
    coordinator.post(3, "w/1", "all-gather uint8", [b"d"])
    assert coordinator.answers() == [(0, {0: [b"a"], 3: [b"d"]})]
    coordinator.check_progress()


def test_a_rank_whose_part_is_needed_is_started() -> None:
    coordinator = coordinator_of(4)
    coordinator.wait(4, wait("tp/1", 0, required=True))
    assert coordinator.ranks_to_start() == {0}
    coordinator.started.add(0)
    assert coordinator.ranks_to_start() == set()
    assert coordinator.answers() == []


def test_ranks_that_wait_for_each_other_are_named() -> None:
    coordinator = coordinator_of(0, 1)
    coordinator.wait(0, wait("recv from 1", 1))
    coordinator.check_progress()
    coordinator.wait(1, wait("recv from 0", 0))
    with pytest.raises(BadInput) as refused:
        coordinator.check_progress()
    assert str(refused.value) == (
        "train.py: 'ranks' wait for each other for ever: rank 0 waits in operation recv from 1 for rank 1; "
        "rank 1 waits in operation recv from 0 for rank 0"
    )


def test_a_rank_that_ended_is_waited_for_in_vain() -> None:
    coordinator = coordinator_of(0, 1)
    coordinator.ended[1] = 7
    coordinator.wait(0, wait("w/8", 0, 1))
    coordinator.post(0, "w/8", "barrier uint8", [])
    with pytest.raises(BadInput, match="'rank 1' ended after 7 operations, while rank 0 waits for it in operation w/8"):
        coordinator.check_progress()


def test_different_calls_of_an_operation_are_refused() -> None:
    coordinator = coordinator_of(0, 1)
    coordinator.post(0, "w/5", "all-reduce float32 of 4 bytes", [b"1234"])
    with pytest.raises(BadInput, match=r"operation 5.*rank 0 calls all-reduce.*and rank 1 calls barrier"):
        coordinator.post(1, "w/5", "barrier uint8", [])


def test_messages_are_read_in_any_pieces() -> None:
    lengths, content = joined([b"ab", b"", b"c"])
    sent = encode({"kind": "post", "lengths": lengths}, content) + encode({"kind": "done"})
    buffer = Buffer()
    messages = [message for byte in sent for message in buffer.add(bytes([byte]))]
    assert messages == [({"kind": "post", "lengths": [2, 0, 1]}, b"abc"), ({"kind": "done"}, b"")]
    assert split(lengths, content) == [b"ab", b"", b"c"]
