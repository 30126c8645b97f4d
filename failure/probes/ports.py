"""Ports of probes: all ranges in one place, since probes of several origins may run at the same GPUs at once.

Replayed workloads use the ports from 7000 on (workloads/replay).
"""

import threading
from itertools import count
from typing import Final

FIRST_PORT: Final = 7100
"""Streams and probes of failure scripts, and probes of the faults of a session, which never run beside a script."""
PAGE_PORT: Final = 7600
"""Probes of the live page. They run beside those of scripts and sessions, whose free ports the page can't know."""
REPLACEMENT_PORT: Final = 7900
"""Probes of replacement GPUs. They run beside the page's probes of the same fault."""


class ProbePorts:
    """Ports of the probes of faults that are active at the same time: each has a range that no other has.

    A range is free again when it is released, so a long session doesn't run out of ports.
    """

    def __init__(self, first: int = FIRST_PORT, size: int = 16) -> None:
        """`first`: the lowest port. `size`: ports of each range."""
        self._first = first
        self._size = size
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return the first port of the lowest range that is free."""
        with self._lock:
            number = next(number for number in count() if number not in self._taken)
            self._taken.add(number)
            return self._first + self._size * number

    def release(self, port: int) -> None:
        """Make the range of a port that `take` returned free."""
        with self._lock:
            self._taken.discard((port - self._first) // self._size)
