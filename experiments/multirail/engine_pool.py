"""The processes of several engines on one fabric, of which one at a time is at work: policies are measured in turn.

What a machine does in one second it may not do in the next (its host has other guests, too), so what is to be compared
has to be measured within the same second. All policies of Railyard's engine share its processes and connections.
"""

from contextlib import ExitStack
from typing import Final, Self

from railyard.experiments.multirail.parts import is_ours
from railyard.experiments.multirail.rail_check import Attended
from railyard.experiments.multirail.session import Site

_OURS: Final = "nezha"
"""What the shared processes plan by until they are told."""


class Crews:
    """A crew is begun when it is first asked for, and paused while another is at work."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._begun: dict[str, tuple[ExitStack, Attended]] = {}
        self._at_work: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:  # one that can't be ended keeps no other
            for name in reversed(self._begun):
                ends.callback(self._end, name)

    def of(self, policy: str) -> Attended:
        """Who plays it, awake while all others sleep. What its engine raises where it can't begin."""
        name = _crew(policy)
        if self._at_work != name:
            self._send_home()
            if name in self._begun:
                self._begun[name][1].resume()
            else:
                stack = ExitStack()
                self._begun[name] = stack, Attended(stack.enter_context(self._site.engine(name)))
            self._at_work = name
        return self._begun[name][1]

    @staticmethod
    def are_one(policy: str, other: str) -> bool:
        """Whether the same crew plays both."""
        return _crew(policy) == _crew(other)

    def drop(self, policy: str) -> None:
        """It broke down: who plays another of its policies next are new processes."""
        if _crew(policy) in self._begun:
            self._end(_crew(policy))

    def _send_home(self) -> None:
        at_work, self._at_work = self._at_work, None
        if at_work is not None:
            self._begun[at_work][1].pause()

    def _end(self, name: str) -> None:
        stack, _ = self._begun.pop(name)
        self._at_work = None if self._at_work == name else self._at_work
        stack.close()


def _crew(policy: str) -> str:
    return _OURS if is_ours(policy) else policy
