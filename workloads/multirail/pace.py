"""When a rail's sender may hand bytes on: the set-up of each message, and what each byte costs. Pure; seconds, bytes.

Source: Nezha Eq. 2 and section 2.3. A rail's set-up and its processor's cost aren't in this machine, so they are kept
by a clock: `free_at` is when the processor that a rail would have is through with all that it was given. A link that is
slower than that processor sets the pace itself (Rail.pace is the slower of the two).
"""

from dataclasses import dataclass
from typing import Final

CREDIT_S: Final = 0.005
"""How far a sender that the machine ran late may catch up: a processor of the rail's own would not have been late."""


@dataclass
class Pacer:
    """Of one connection's sending end."""

    setup_s: float = 0.0
    s_per_byte: float = 0.0
    free_at: float = 0.0

    def rested(self, now: float) -> None:
        """Nothing waited until now."""
        self.free_at = max(self.free_at, now)

    def opened(self, ready_at: float) -> None:
        """A message's turn has come, that could be sent from `ready_at` on: not before what is ahead of it is through,
        and its set-up has passed."""
        self.free_at = max(self.free_at, ready_at) + self.setup_s

    def spent(self, size: int, now: float) -> None:
        """Bytes were handed on."""
        self.free_at = max(self.free_at, now - CREDIT_S) + size * self.s_per_byte
