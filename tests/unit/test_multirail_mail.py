"""Messages arrive once and in order, and what the other end has isn't kept."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.allreduce.transport.reliable_channel import Mailbox


@given(order=st.permutations(list(range(1, 7))), twice=st.lists(st.integers(1, 6), max_size=6))
def test_messages_arrive_once_and_in_order_whatever_ways_they_took(order: list[int], twice: list[int]) -> None:
    sender, receiver = Mailbox(), Mailbox()
    texts = dict(sender.write({"is": "table", "op": number}) for number in range(1, 7))
    came = [message["op"] for number in [*order, *twice] for message in receiver.heard(number, texts[number])]
    assert came == [1, 2, 3, 4, 5, 6]
    assert receiver.latest_heard == 6


def test_what_the_peer_has_does_not_go_out_again_on_a_rail_that_joins() -> None:
    sender, receiver = Mailbox(), Mailbox()
    first, second, third = (sender.write({"is": "times", "op": op}) for op in range(3))
    list(receiver.heard(*first))
    list(receiver.heard(*third))  # the second is missing, so this isn't told yet
    sender.forget_up_to(receiver.latest_heard)
    assert sender.kept() == (second, third)
    list(receiver.heard(*second))
    sender.forget_up_to(receiver.latest_heard)
    assert sender.kept() == ()
    sender.forget_up_to(1)  # a beat that was late


def test_a_beat_has_no_number_and_is_not_kept() -> None:
    mailbox = Mailbox()
    assert list(mailbox.heard(0, b'{"is": "beat"}')) == [{"is": "beat"}]
    assert (mailbox.latest_heard, mailbox.kept()) == (0, ())
