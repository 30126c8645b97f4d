"""What all nodes learn of an operation's times: a window goes to rank 0, and its table of medians comes back to all."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from railyard.workloads.allreduce.balancing.policy import Planner
from railyard.workloads.allreduce.balancing.timer import Timer, Window
from railyard.workloads.allreduce.transport.reliable_channel import Message


def _rounded_to_us(window: Window) -> Window:
    """The same without digits that say nothing: control messages have little room."""
    ends = tuple(tuple(round(end, 6) for end in row) for row in window.ends)
    return Window(window.size, tuple(round(start, 6) for start in window.starts), ends)


class Learning:
    """`send_control` sends to rank 0. While not `up_to_date`, no operation may be planned: others know more."""

    def __init__(self, policy: Planner, send_control: Callable[[Message], None]) -> None:
        self._policy, self._send_control = policy, send_control
        self._timer = Timer()
        self._table: Message | None = None
        self._awaited_op: int | None = None

    def ended(self, op: int, size: int, start: float, ends: Sequence[float]) -> None:
        """An operation of `size` bytes, when it began here and when each rail was through."""
        window = self._timer.add(size, start, ends, self._policy.window)
        if window is not None:
            self._awaited_op, self._table = op, None
            self._send_control({"type": "times", "op": op, **asdict(_rounded_to_us(window))})

    def received(self, table: Message) -> None:
        """A table of medians: of the window that is awaited, or of another policy's."""
        if table["op"] == self._awaited_op:
            self._table = table

    def up_to_date(self) -> bool:
        """What all nodes measured in the last window is known, and learnt; or nothing is awaited."""
        if self._table is not None:
            table, self._table, self._awaited_op = self._table, None, None
            self._policy.learn(table["size"], table["seconds"])
        return self._awaited_op is None

    def rails_changed(self) -> None:
        """What was measured until now is of other rails, also what is on its way (to a policy that is out of turn)."""
        self._timer.clear()
        self._awaited_op = self._table = None
