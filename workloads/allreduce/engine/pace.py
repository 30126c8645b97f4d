"""When a rail's sender may hand bytes on: the set-up of each message, and what each byte costs. Pure; seconds, bytes.

Source: Nezha Eq. 2 and section 2.3. A rail's set-up and its processor's cost aren't in this machine, so they are kept
by a clock: `free_at` is when processor and link are through with all that they were given (at Rail.pace, that of the
slower of the two). A message's set-up begins then. Its bytes are handed on as the processor is through with them; where
the link is the slower one it keeps the pace itself, and gets them earlier, lest it idles when a sender is late.
"""

from dataclasses import dataclass
from typing import Final

CATCH_UP_S: Final = 0.005
"""How far a sender that the machine ran late may catch up: a processor of the rail's own would not have been late."""
LEAD_S: Final = 0.03
"""How far ahead of a link that binds: what its TCP window holds (topologies/multirail/commands.py)."""


@dataclass
class Pacer:
    """Of one connection's sending end. `cpu_s_per_byte` of the processor, `link_s_per_byte` of the link.

    `next_send_at`: when the next bytes may be handed on.
    """

    setup_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    link_s_per_byte: float = 0.0
    free_at: float = 0.0
    _setup_ends_at: float = 0.0

    @property
    def next_send_at(self) -> float:
        lead_s = LEAD_S if self.link_s_per_byte >= self.cpu_s_per_byte else 0.0
        return max(self._setup_ends_at, self.free_at - lead_s)

    def note_idle(self, now: float) -> None:
        """Nothing waited until now."""
        self.free_at = max(self.free_at, now)

    def start_message(self, ready_at: float) -> None:
        """A message's turn has come, that could be sent from `ready_at` on: not before what is ahead of it is through,
        and its set-up has passed."""
        self._setup_ends_at = self.free_at = max(self.free_at, ready_at) + self.setup_s

    def note_sent(self, size: int, now: float) -> None:
        """Bytes were handed on."""
        self.free_at = max(self.free_at, now - CATCH_UP_S) + size * max(self.cpu_s_per_byte, self.link_s_per_byte)
