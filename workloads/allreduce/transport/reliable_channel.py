"""Numbered messages between two nodes, which arrive once and in order whichever rails carry them: pure."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Message = dict[str, Any]
_MAX_UNACKNOWLEDGED: Final = 64


@dataclass
class ReliableChannel:
    """One peer's. Number 0 is a beat's: it counts at once, and isn't kept."""

    _sent: int = 0
    _unacknowledged: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=_MAX_UNACKNOWLEDGED))
    _last_received: int = 0
    _out_of_order: dict[int, Message] = field(default_factory=dict)

    def write(self, message: Message) -> tuple[int, bytes]:
        """Its number and text, which are kept for rails that join later."""
        self._sent += 1
        self._unacknowledged.append((self._sent, json.dumps(message).encode()))
        return self._unacknowledged[-1]

    @property
    def last_received(self) -> int:
        """The number up to which all of the peer's messages came."""
        return self._last_received

    def acknowledge(self, number: int) -> None:
        """The peer has these: no rail needs them any more."""
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._unacknowledged.popleft()

    def unacknowledged(self) -> tuple[tuple[int, bytes], ...]:
        return tuple(self._unacknowledged)

    def received(self, number: int, text: bytes) -> Iterator[Message]:
        """What can be listened to now: nothing for a copy of what was, or while an earlier one is missing."""
        if number == 0:
            yield json.loads(text)
        elif number > self._last_received:
            self._out_of_order[number] = json.loads(text)
            while self._last_received + 1 in self._out_of_order:
                self._last_received += 1
                yield self._out_of_order.pop(self._last_received)
