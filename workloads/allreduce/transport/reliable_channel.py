"""Numbered messages between two nodes, which arrive once and in order whichever rails carry them: pure."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Message = dict[str, Any]
_KEPT: Final = 64


@dataclass
class Mailbox:
    """One peer's. Number 0 is a beat's: it counts at once, and isn't kept."""

    _sent: int = 0
    _kept: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _heard: int = 0
    _early: dict[int, Message] = field(default_factory=dict)

    def write(self, message: Message) -> tuple[int, bytes]:
        """Its number and text, which are kept for rails that join later."""
        self._sent += 1
        self._kept.append((self._sent, json.dumps(message).encode()))
        return self._kept[-1]

    @property
    def latest_heard(self) -> int:
        """The number up to which all of the peer's messages came."""
        return self._heard

    def forget_up_to(self, number: int) -> None:
        """The peer has these: no rail needs them any more."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def kept(self) -> tuple[tuple[int, bytes], ...]:
        return tuple(self._kept)

    def heard(self, number: int, text: bytes) -> Iterator[Message]:
        """What can be listened to now: nothing for a copy of what was, or while an earlier one is missing."""
        if number == 0:
            yield json.loads(text)
        elif number > self._heard:
            self._early[number] = json.loads(text)
            while self._heard + 1 in self._early:
                self._heard += 1
                yield self._early.pop(self._heard)
