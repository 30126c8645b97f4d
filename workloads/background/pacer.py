"""Which frame of a flow is due when. Frame k is due when its wave has been on for (k + phase) intervals."""

import math
from typing import Final

from railyard.workloads.background.wave import Wave

LATE_S: Final = 0.05
"""What could not be sent for so long is given up: a link that was blocked gets no flood afterwards."""


class Pacer:
    """Times in seconds. `phase`, in (0, 1), keeps flows from sending all at once. `sent`: frames so far."""

    def __init__(self, wave: Wave, interval_s: float, phase: float) -> None:
        self._wave, self._interval, self._phase = wave, interval_s, phase
        self._passed = self.sent = 0

    def due_s(self) -> float:
        """When the next frame is due; infinite if no more will be."""
        return self._wave.moment((self._passed + self._phase) * self._interval)

    def asked(self, at_s: float) -> int:
        """Frames that were due until then."""
        return math.floor(self._wave.on_s(at_s) / self._interval - self._phase) + 1

    def owed(self, now_s: float) -> int:
        """Frames to send now: those that are due and not yet given up. To be asked when `due_s` has come."""
        # the frame that is due by `due_s` may not be so by `asked`, to the last digit
        asked = max(self.asked(now_s), self._passed + 1)
        self._passed = max(self._passed, self.asked(now_s - LATE_S))
        return asked - self._passed

    def took(self, frames: int) -> None:
        """So many have been sent."""
        self._passed += frames
        self.sent += frames
