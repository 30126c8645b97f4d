"""Which frame of a flow is due when. Frame k is due when its wave has been on for (k + phase) intervals."""

import math
from typing import Final

from railyard.workloads.background.wave import Wave

MAX_LATENESS_S: Final = 0.05
"""What could not be sent for so long is given up: a link that was blocked gets no flood afterwards."""


class Pacer:
    """Times in seconds. `phase`, in (0, 1), keeps flows from sending all at once. `sent`: frames so far."""

    def __init__(self, wave: Wave, interval_s: float, phase: float) -> None:
        self._wave, self._interval, self._phase = wave, interval_s, phase
        self._handled = self.sent = 0

    def next_due_s(self) -> float:
        """When the next frame is due; infinite if no more will be."""
        return self._wave.time_for_on_s((self._handled + self._phase) * self._interval)

    def frames_due_by(self, at_s: float) -> int:
        """Frames that were due until then."""
        return math.floor(self._wave.on_s(at_s) / self._interval - self._phase) + 1

    def frames_to_send(self, now_s: float) -> int:
        """Frames to send now: those that are due and not yet given up. To be asked when `next_due_s` has come."""
        # the frame that is due by `next_due_s` may not be so by `frames_due_by`, to the last digit
        frames_due_by = max(self.frames_due_by(now_s), self._handled + 1)
        self._handled = max(self._handled, self.frames_due_by(now_s - MAX_LATENESS_S))
        return frames_due_by - self._handled

    def mark_sent(self, frames: int) -> None:
        """So many have been sent."""
        self._handled += frames
        self.sent += frames
