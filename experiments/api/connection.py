"""A process that serves a fabric or runs an experiment in a sandbox: requests, their answers, and its end."""

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import count
from typing import IO, Any, Final

from railyard.core.config import parse_model
from railyard.core.errors import RailyardError
from railyard.core.worker import Message, Pipe
from railyard.experiments.api import machine
from railyard.experiments.api import messages as m

# Time for a sandbox to end by itself before it is killed.
END_S: Final = 10.0
# Time for a request that was interrupted to end.
CANCEL_S: Final = 30.0


def start(argv: Sequence[str], output: IO[bytes], inherited: Collection[int]) -> "subprocess.Popen[bytes]":
    """Start a serving process with what it writes in a file. Ctrl-C is for the script, which decides what ends."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=inherited,
        start_new_session=True,
    )  # fmt: skip


class Connection:
    """A serving process and its answers, received by a thread. It ends with the script's process."""

    def __init__(self, order: Message) -> None:
        ours, theirs = socket.socketpair()
        self.files, their_files = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        self._pipe = Pipe(ours, [m.Answer, m.Refused, m.Queued], reads_ahead=True)
        self._owner, self._numbers = os.getpid(), count(1)
        self._lock, self._sending = threading.Lock(), threading.Lock()
        started: Future[Any] = Future()
        self._waiting: dict[int, Future[Any]] = {m.STARTED: started}
        with theirs, their_files:
            descriptors = (theirs.fileno(), their_files.fileno())
            self.process = start(m.start_command(*descriptors), self._output, descriptors)
        threading.Thread(target=self._receive, name="receives answers", daemon=True).start()
        self._pipe.send(order)
        self.started = started

    def ask(self, kind: type[m.Request], files: Sequence[int] = (), **fields: Any) -> Any:
        """Send a request, and files for it, and return its answer. Raises its error; KeyboardInterrupt cancels it."""
        if os.getpid() != self._owner:
            raise RailyardError("a fabric can be used by the process that built it alone, and not by a forked one")
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            request = parse_model(kind, {"number": number, **fields})
            self._waiting[number] = future
        try:
            with self._sending:
                self._send(request, files)
            return future.result()
        except KeyboardInterrupt:
            with suppress(RailyardError):
                self._send(m.Cancel(number=number))
            wait([future], CANCEL_S)
            raise

    def _send(self, message: m.Request | m.Cancel, files: Sequence[int] = ()) -> None:
        try:
            if files:
                socket.send_fds(self.files, [m.NUMBER.pack(message.number)], files)
            self._pipe.send(message)
        except OSError:
            raise self._ended() from None

    def _receive(self) -> None:
        """In a thread: hand out answers; at the end, requests without one fail."""
        with suppress(EOFError, OSError):
            while True:
                reply = self._pipe.receive()
                if isinstance(reply, m.Queued):
                    machine.tell(reply.line)
                    continue
                with self._lock:
                    future = self._waiting.pop(reply.number, None)
                if future is not None and isinstance(reply, m.Refused):
                    future.set_exception(reply.error)
                elif future is not None:
                    future.set_result(reply.value)
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for future in waiting:
            future.set_exception(self._ended())

    def _ended(self) -> RailyardError:
        """Return the error of a serving process that has ended, with the last line of its output."""
        last = self.last_line()
        return RailyardError(f"the fabric's sandbox has ended{f': {last}' if last else ''}")

    def last_line(self) -> str:
        """Return the last line that the serving process has written, once it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        with suppress(OSError, ValueError):
            self._output.seek(0)
            return (self._output.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        return ""

    def close(self) -> None:
        """End the sandbox, and return when it is gone. Nothing in a forked child, whose parent uses it."""
        if os.getpid() != self._owner:
            return
        with suppress(OSError):
            self._pipe.socket.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._pipe.socket.close()
        self.files.close()
        self._output.close()
