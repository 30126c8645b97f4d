"""Programs at the GPUs and switches of a fabric, started and used as by subprocess."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select
from typing import IO, Any, Final, Protocol, Self

from railyard.core.errors import BadInput, RailyardError
from railyard.experiments.api import messages as m
from railyard.experiments.api.connection import END_S

# The default port of torch.distributed.
PORT: Final = 29500
# It is a method of the fabric, so the fabric stays alive while one of its programs is in use.
Ask = Callable[..., Any]


class Processes:
    """Starter of programs in the network of a GPU or switch."""

    def __init__(self, ask: Ask, node: str, started: "list[Process]") -> None:
        self._ask = ask
        self._node = node
        self._started = started

    def popen(
        self,
        args: str | Sequence[str],
        *,
        stdin: "int | IO[Any] | None" = subprocess.DEVNULL,
        stdout: "int | IO[Any] | None" = None,
        stderr: "int | IO[Any] | None" = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        text: bool = True,
    ) -> "Process":
        """Start a program as subprocess.Popen does; text is split as by a shell. `python` is this Python.

        Its environment and working folder are those of the script; its host name is the node's.
        """
        argv = arguments_of(args)
        if not isinstance(env, Mapping | None):
            raise BadInput("env", env, "must be a mapping of names to text")
        streams = (stdin, stdout, stderr)
        folder = m.path_text("cwd", cwd or Path.cwd())
        process = Process(self._ask, self._node, argv, streams, env, folder, text)
        self._started.append(process)
        return process


def arguments_of(args: object) -> list[str]:
    """Return a program with its arguments; `python` is this Python.

    BadInput for what is neither text nor a list of text, or names nothing.
    """
    try:
        if isinstance(args, str):
            arguments = shlex.split(args)
        else:
            arguments = [os.fspath(arg) for arg in args]  # type: ignore[attr-defined]
    except ValueError:
        raise BadInput("args", args, "has a quotation mark without its end") from None
    except TypeError:
        raise BadInput("args", args, "must be text, or a list of text") from None
    if not arguments:
        raise BadInput("args", args, "must name a program")
    if arguments[0] in ("python", "python3"):
        arguments[0] = sys.executable
    return arguments


def _pipe(is_input: bool, text: bool) -> tuple[int, IO[Any]]:
    """Return the program's end of a new pipe, and the caller's as a file. `is_input`: the program reads from it."""
    read, write = os.pipe()
    theirs = write
    ours = read
    mode = "r"
    if is_input:
        theirs = read
        ours = write
        mode = "w"
    if text:
        return theirs, os.fdopen(ours, mode, encoding="utf-8", errors="replace")
    return theirs, os.fdopen(ours, f"{mode}b")


def _fd_of(number: int, stream: "int | IO[Any] | None") -> int:
    """Return the descriptor of a standard stream. `number`: of the caller's own one, which None stands for."""
    if stream is None:
        return number
    if isinstance(stream, int):
        return stream
    return stream.fileno()


class Process:
    """A program in a fabric, used like subprocess.Popen. `pid` is its process id in the sandbox.

    `stdin`, `stdout` and `stderr` are files if they were given as PIPE. It ends with the fabric.
    """

    def __init__(
        self,
        ask: Ask,
        node: str,
        args: list[str],
        streams: "tuple[int | IO[Any] | None, ...]",
        env: Mapping[str, str] | None,
        cwd: str,
        text: bool,
    ) -> None:
        self._ask = ask
        self.node = node
        self.args = args
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        with ExitStack() as given_files, ExitStack() as kept:
            fds: list[int] = []
            for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
                if stream == subprocess.PIPE:
                    theirs, file = _pipe(is_input=number == 0, text=text)
                    setattr(self, name, kept.enter_context(file))
                elif stream == subprocess.STDOUT and number == 2:
                    theirs = os.dup(fds[1])
                elif stream == subprocess.DEVNULL:
                    theirs = os.open(os.devnull, os.O_RDWR)
                else:
                    try:
                        theirs = os.dup(_fd_of(number, stream))
                    except (AttributeError, OSError, ValueError):
                        raise BadInput(name, stream, "must be PIPE, DEVNULL, STDOUT or an open file") from None
                fds.append(theirs)
                given_files.callback(os.close, theirs)
            self._status_fd, their_end = os.pipe()
            given_files.callback(os.close, their_end)
            kept.callback(os.close, self._status_fd)
            environment = dict(os.environ if env is None else env)
            arguments = {"node": node, "argv": tuple(args), "environment": environment, "cwd": cwd}
            self.pid: int = ask(m.StartProcess, [*fds, their_end], **arguments)
            # the sandbox has started, so its files stay open
            kept.pop_all()

    def poll(self) -> int | None:
        """Return the exit status if the program has ended, negative for a signal; else None."""
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when the program has ended. subprocess.TimeoutExpired after `timeout` s."""
        status = self._await(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _await(self, timeout: float | None) -> int | None:
        timeout_s = timeout
        # select refuses a negative time
        if timeout is not None:
            timeout_s = max(0.0, timeout)
        with self._lock:
            if self.returncode is None and select([self._status_fd], [], [], timeout_s)[0]:
                written = os.read(self._status_fd, 16)
                os.close(self._status_fd)
                # the sandbox writes its exit status when it ends
                self.returncode = int(written) if written else -signal.SIGKILL
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002 - as in Popen
        """Send `input`, read to the end, and return what was written to stdout and stderr; None for what is no pipe."""
        read: dict[str, Any] = {}

        def collect(name: str, stream: IO[Any]) -> None:
            read[name] = stream.read()

        # a thread each: a program that fills one pipe while the other is read would wait for ever
        readers: list[threading.Thread] = []
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            if stream is not None:
                readers.append(threading.Thread(target=collect, args=(name, stream), daemon=True))
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin as stdin:
                stdin.write(input or ("" if hasattr(stdin, "encoding") else b""))
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return read.get("stdout"), read.get("stderr")

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it still runs."""
        if self.poll() is None:
            self._ask(m.SignalProcess, pid=self.pid, signal=int(number))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill the program and the processes that it started, and close its pipes."""
        with suppress(RailyardError):
            self._ask(m.SignalProcess, pid=self.pid, signal=int(signal.SIGKILL), group=True)
        self.wait(END_S)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Process {self.pid} at {self.node}: {shlex.join(self.args)}>"


class MakeRanks(Protocol):
    """`Fabric.ranks`, or the fixture `ranks`."""

    def __call__(
        self,
        args: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        **options: Any,
    ) -> list[Process]: ...
