"""A process of the project's own that is told things and answers, in pickles over its pipes: the end that starts it."""

import os
import pickle
import subprocess
import sys
import time
from multiprocessing.connection import wait
from typing import Any, Final

from railyard.core.errors import RailyardError
from railyard.core.project import PROJECT

_PIPE_BYTES: Final = 1 << 16  # what a pipe holds: there's no more to read at once


class _PipeReader:
    """A pipe as pickle reads it: no byte further than asked, so that whoever waits for the pipe hears of each answer.

    TimeoutError after `deadline` (of time.monotonic), EOFError at the end.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.deadline: float | None = None

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if self.deadline is not None and not wait([self._pipe], max(0.0, self.deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(self._pipe, min(_PIPE_BYTES, count - len(data)))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def readline(self) -> bytes:
        raise NotImplementedError("pickles have lines in protocol 0 only")


class WorkerProcess:
    """`python -m module`, called `name` in messages."""

    def __init__(self, module: str, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._reader = _PipeReader(self.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Where its answers come from, for who waits for several processes at once."""
        assert self._process.stdout
        return self._process.stdout.fileno()

    def send(self, message: object) -> None:
        """RailyardError if it has died."""
        assert self._process.stdin
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RailyardError(f"{self._name} died") from None

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for its answer, the whole of it. RailyardError if it has died, answers with a RuntimeError, or takes
        longer than `timeout_s`: then it is of no more use, since what it answers later isn't to what it's asked
        then."""
        self._reader.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            reply = pickle.load(self._reader)
        except EOFError:
            raise RailyardError(f"{self._name} died") from None
        except TimeoutError:
            raise RailyardError(f"{self._name} didn't answer in {timeout_s:g} s") from None
        if isinstance(reply, RuntimeError):
            raise RailyardError(f"{self._name}: {reply}") from reply
        return reply

    def end(self) -> None:
        """End it, whatever it is doing; nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
