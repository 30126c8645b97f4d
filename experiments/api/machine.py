"""Turns to measure and the capacity of the machine, which fabrics of a script share with other programs."""

import fcntl
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

from railyard.core.host import usable_cores
from railyard.core.sandbox import run_queue

_NAME: Final = "a script's fabric"


def tell(line: str) -> None:
    """Print a line on the place in the queue to stderr."""
    print(f"{line} (no_queue=True starts at once)", file=sys.stderr, flush=True)


class Turn:
    """Context that holds this process's place in the machine's queue of runs; it may be entered again meanwhile."""

    def __init__(self) -> None:
        # a fabric may be collected, and so end, in any line
        self._lock = threading.RLock()
        self._depth = 0
        self._place = ExitStack()

    @property
    def is_held(self) -> bool:
        """True while this process has its turn."""
        return self._depth > 0

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                at_once = run_queue.runs_at_once(usable_cores(), psutil.virtual_memory().total)
                self._place.enter_context(run_queue.turn(_NAME, at_once, tell=tell))
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._place.close()


class SharedCapacity:
    """Capacity of this machine, as topologies.capacity.Capacity has it; None until it was measured.

    `file`: where the processes of a test session share it.
    """

    def __init__(self) -> None:
        self.measured: tuple[float, ...] | None = None
        self.file: Path | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Context that may measure it: it is known here if another process has measured it, and others wait for it."""
        if self.file is None:
            yield
            return
        with self.file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if known := file.read():
                self.measured = tuple(json.loads(known))
            yield
            if not known and self.measured:
                file.write(json.dumps(self.measured))


TURN: Final = Turn()
CAPACITY: Final = SharedCapacity()
