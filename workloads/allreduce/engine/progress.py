"""A thread that serves a node's peers while its program computes: others may need its word to go on (recovery.py).

It does nothing until the program has been out of operations for `IDLE_S`, so operations that follow each other closely
don't meet it, and it lets go at once when the program is back.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

IDLE_S: Final = 0.01


class Progress:
    """`serve(seconds)` is called again and again by the thread, `wake` makes it return at once."""

    def __init__(self, serve: Callable[[float], None], wake: Callable[[], None]) -> None:
        self._serve, self._wake = serve, wake
        self._lock = threading.Lock()
        self._in_use, self._released_at = False, time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="multirail progress", daemon=True)
        self._thread.start()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The node is the caller's own."""
        self._in_use = True
        if not self._lock.acquire(blocking=False):
            self._wake()
            self._lock.acquire()
        try:
            yield
        finally:
            self._in_use, self._released_at = False, time.monotonic()
            self._lock.release()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self.exclusive():
            pass
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(IDLE_S):
            if not self._in_use and time.monotonic() - self._released_at >= IDLE_S:
                with self._lock:
                    while not self._in_use and not self._closed.is_set():
                        self._serve(IDLE_S)
