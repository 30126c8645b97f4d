"""The processes of several engines on one fabric, of which one at a time is at work: policies are measured in turn.

What a machine does in one second it may not do in the next (its host has other guests, too), so what is to be compared
has to be measured within the same second. All policies of Railyard's engine share its processes and connections.
"""

from contextlib import ExitStack
from typing import Final, Self

from railyard.experiments.multirail.rail_check import MonitoredEngine
from railyard.experiments.multirail.session import MultirailSession
from railyard.workloads.allreduce.engine_kind import is_own

_SHARED_ENGINE: Final = "nezha"
"""What the shared processes plan by until they are told."""


class EnginePool:
    """A crew is begun when it is first asked for, and paused while another is at work."""

    def __init__(self, session: MultirailSession) -> None:
        self._session = session
        self._started: dict[str, tuple[ExitStack, MonitoredEngine]] = {}
        self._active: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:  # one that can't be ended keeps no other
            for name in reversed(self._started):
                ends.callback(self._end, name)

    def engine_for(self, policy: str) -> MonitoredEngine:
        """Who plays it, awake while all others sleep. What its engine raises where it can't begin."""
        name = _engine_name(policy)
        if self._active != name:
            self._pause_active()
            if name in self._started:
                self._started[name][1].resume()
            else:
                stack = ExitStack()
                self._started[name] = stack, MonitoredEngine(stack.enter_context(self._session.engine(name)))
            self._active = name
        return self._started[name][1]

    @staticmethod
    def share_engine(policy: str, other: str) -> bool:
        """Whether the same crew plays both."""
        return _engine_name(policy) == _engine_name(other)

    def drop(self, policy: str) -> None:
        """It broke down: who plays another of its policies next are new processes."""
        if _engine_name(policy) in self._started:
            self._end(_engine_name(policy))

    def _pause_active(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            self._started[active][1].pause()

    def _end(self, name: str) -> None:
        stack, _ = self._started.pop(name)
        self._active = None if self._active == name else self._active
        stack.close()


def _engine_name(policy: str) -> str:
    return _SHARED_ENGINE if is_own(policy) else policy
