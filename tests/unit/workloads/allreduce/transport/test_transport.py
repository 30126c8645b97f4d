"""Messages arrive once and in order, and what the other end has isn't kept."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.allreduce.transport.transport import ReliableChannel


@given(order=st.permutations(list(range(1, 7))), twice=st.lists(st.integers(1, 6), max_size=6))
def test_messages_arrive_once_and_in_order(order: list[int], twice: list[int]) -> None:
    sender, receiver = ReliableChannel(), ReliableChannel()
    texts = dict(sender.write({"type": "table", "op": number}) for number in range(1, 7))
    came = [message["op"] for number in [*order, *twice] for message in receiver.received(number, texts[number])]
    assert came == [1, 2, 3, 4, 5, 6]
    assert receiver.last_received == 6


def test_acknowledged_messages_are_not_sent_again() -> None:
    sender, receiver = ReliableChannel(), ReliableChannel()
    first, second, third = (sender.write({"type": "times", "op": op}) for op in range(3))
    list(receiver.received(*first))
    list(receiver.received(*third))  # the second is missing, so this isn't delivered yet
    sender.acknowledge(receiver.last_received)
    assert list(sender.unacknowledged) == [second, third]
    list(receiver.received(*second))
    sender.acknowledge(receiver.last_received)
    assert not sender.unacknowledged
    sender.acknowledge(1)  # a beat that was late


def test_heartbeat_has_no_number_and_is_not_kept() -> None:
    channel = ReliableChannel()
    assert list(channel.received(0, b'{"type": "beat"}')) == [{"type": "beat"}]
    assert (channel.last_received, len(channel.unacknowledged)) == (0, 0)
