"""A process of the project's own that is told things and tells things: a line of JSON in, a line of JSON out."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from railyard.core.errors import RailyardError
from railyard.core.project import PROJECT

LOGS: Final = Path("/run")
ANSWER_S: Final = 30.0
READER_NICENESS: Final = -15
"""Niceness of the thread that hears it, as of who tells: news doesn't queue behind the traffic."""

OnEvent = Callable[[int, str, dict[str, Any]], None]


class JsonProcess:
    """`python -m module`, which ends when its input does. What it tells is {"ns": monotonic, "what", "detail"}.

    `replies`: what `next_reply` gives; anything else, and all but `unreported`, goes to `on_event(ns, what, detail)`,
    which is called from a thread.
    """

    def __init__(
        self,
        module: str,
        replies: Sequence[str],
        on_event: OnEvent | None = None,
        unreported: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._replies, self._unreported, self._on_event = frozenset(replies), frozenset(unreported), on_event
        self._module = module
        self._answers: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._log = LOGS / f"railyard-{module.rpartition('.')[2]}.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                pass_fds=pass_fds,
            )
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, command: dict[str, Any]) -> None:
        """Tell it something. RailyardError if it has ended."""
        if self._ended:  # its end of the pipe may live a moment longer than its words
            raise RailyardError(self._last_log_line("ended"))
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise RailyardError(self._last_log_line("ended")) from None

    def await_all(self, expected: set[str]) -> dict[str, dict[str, Any]]:
        """Return when it has told all of these; the details of each."""
        deadline, found = time.monotonic() + ANSWER_S, dict[str, dict[str, Any]]()
        while expected - found.keys():
            what, detail = self.next_reply(deadline)
            found[what] = detail
        return found

    def next_reply(self, deadline: float) -> tuple[str, dict[str, Any]]:
        """The next of what is awaited. RailyardError, with its last words, if none comes until the deadline."""
        try:
            what, detail = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise RailyardError(self._last_log_line(f"did not answer in {ANSWER_S:g} s")) from None
        if what == "ended":
            self._answers.put((what, detail))  # for whoever asks again
            raise RailyardError(self._last_log_line("ended"))
        return what, detail

    def stop(self) -> None:
        """End the process. Killed, not asked: it holds nothing that needs to be put away."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was said to one that had ended is still to be written
                if pipe:
                    pipe.close()

    def _last_log_line(self, what: str) -> str:
        log_tail = self._log.read_text().strip().splitlines()[-1:]
        return f"{self._module} {what}: {' '.join(log_tail)}".rstrip(": ")

    def _read(self) -> None:
        with suppress(PermissionError):  # an ordinary user may not
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READER_NICENESS)
        for line in self._process.stdout or ():
            event = json.loads(line)
            if event["what"] in self._replies:
                self._answers.put((event["what"], event["detail"]))
            if self._on_event and event["what"] not in self._unreported:
                self._on_event(event["ns"], event["what"], event["detail"])
        self._ended = True
        self._answers.put(("ended", {}))
