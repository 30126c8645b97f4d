"""Child processes of the project: start one, exchange typed messages with it, and end it.

A message is a frozen pydantic model; what either side accepts is a union, discriminated by the classes' names. The
process that starts a child holds a `Worker`, the child a `Parent`, with a socket pair between them:

    class Double(Message):                            worker = Worker("railyard.mine", "the doubler", Doubled)
        number: int                                   worker.ask(Double(number=2), Doubled, timeout_s=5).number

                                                      parent = Parent(Double)          # in railyard/mine.py
                                                      for command in parent:
                                                          parent.send(Doubled(number=2 * command.number))

Errors of a Worker are RailyardErrors that start with its name; that of a dead process has the last line of its output.
A child ends when the process that started it does, whatever it is doing.

On the socket: the length in bytes, then an event as JSON, or the fields of any other message as a pickle, of which the
receiving end makes a message of the union; `python -m benchmarks.worker_messages` has the costs. Both ends close the
socket on exec, and a pickle makes objects of classes that hold data and calls no function: see SECURITY.md.
"""

import io
import os
import pickle
import pkgutil
import queue
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import reduce
from operator import or_
from pathlib import PurePath
from typing import IO, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from railyard.core import crash, watch
from railyard.core.errors import RailyardError
from railyard.core.installation import PROJECT, module_command

END_S: Final = 1.0  # from the end of a connection to that of its process
# event of a child: a process that it started died or was stopped
INTERRUPTED: Final = "process-interrupted"
ANSWER_S: Final = 30.0  # default deadline of an answer
# the thread that receives events must not wait behind emulated traffic
READER_NICENESS: Final = -15
# the parent reads why a child ends before it sees that it has ended
_READ_S: Final = 1.0
_TAIL_BYTES: Final = 4096
_LENGTH: Final = struct.Struct("!Q")
_READ_AHEAD_BYTES: Final = 1 << 16
_BRACE: Final = ord("{")  # the first byte of an event; a pickle begins with another

OnEvent = Callable[[int, str, dict[str, Any]], None]  # on_event(monotonic ns, what, detail), called from a thread


class Message(BaseModel):
    """Base of the messages between processes. Each has a field `kind`, the name of its class."""

    # built when a process sends or receives the first one of a class: most need a few of the many classes
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__annotations__["kind"] = Literal.__getitem__(cls.__name__)
        cls.kind = cls.__name__  # type: ignore[attr-defined]


class Event(Message):
    """Something that happened in a child, for the event log."""

    what: str
    detail: dict[str, Any]
    ns: int


class Failed(Message):
    """A command that could not be carried out, in place of its answer.

    `traceback`: set for unexpected exceptions.
    """

    why: str
    traceback: str = ""
    exit_status: int = RailyardError.exit_status


class Ready(Message):
    """The child has done what it was started or asked for, and takes the next command."""


R = TypeVar("R", bound=Message)


class _DataUnpickler(pickle.Unpickler):
    """Unpickler that accepts classes that hold data, and nothing that could be called to do something."""

    _bases: Final = (BaseModel, Enum, tuple, set, frozenset, dict, PurePath, Fraction)
    _accepted: Final[dict[tuple[str, str], Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a class by its name. UnpicklingError for anything else."""
        if (module, name) not in self._accepted:
            is_known = module in sys.modules or module.startswith("railyard.")
            # Not with super's method, which a process of `--on` refuses to everyone.
            definition = pkgutil.resolve_name(f"{module}:{name}") if is_known else None
            if not (isinstance(definition, type) and (is_dataclass(definition) or issubclass(definition, self._bases))):
                raise pickle.UnpicklingError(f"{module}.{name} is no class that holds data")
            self._accepted[module, name] = definition
        return self._accepted[module, name]


class Pipe:
    """Messages over a stream socket.

    `reads_ahead`: not for a process that waits for several sockets at once.

    `deadline_s`: the time in which the other end must take a message, s; None: for ever.
    """

    def __init__(
        self,
        sock: socket.socket,
        accepted: Collection[type[Message]],
        reads_ahead: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        self.socket = sock
        self._reads_ahead = reads_ahead
        self._deadline_s = deadline_s
        union: Any = reduce(or_, accepted)
        if len(accepted) > 1:
            union = Annotated[union, Field(discriminator="kind")]
        self._accepted: TypeAdapter[Any] = TypeAdapter(union)
        self._lock, self._data = threading.Lock(), bytearray()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def send(self, message: Message | dict[str, Any]) -> None:
        """Send, from any thread. OSError if the other end is closed, TimeoutError if it doesn't read.

        An Event is given as a dict and sent as JSON: a model of it would take as long as all the rest.
        """
        as_json = isinstance(message, dict)
        data = to_json(message) if as_json else pickle.dumps(message.__dict__, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            if self._deadline_s is None:
                self.socket.sendall(_LENGTH.pack(len(data)) + data)
                return
            unsent = memoryview(_LENGTH.pack(len(data)) + data)
            deadline = time.monotonic() + self._deadline_s
            while unsent:
                try:
                    unsent = unsent[self.socket.send(unsent, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    _await(self._writable, deadline)

    def receive(self, deadline: float | None = None) -> Any:
        """Return the next message.

        TimeoutError at the deadline, EOFError at the end, ValidationError or UnpicklingError for another message. With
        a deadline, also ProcessMissing if a process died or is stopped.
        """
        data = self._data
        end = _LENGTH.size
        while len(data) < _LENGTH.size or len(data) < (end := _LENGTH.size + _LENGTH.unpack_from(data)[0]):
            self._read(end - len(data), deadline)
        message = data[_LENGTH.size : end]
        del data[:end]
        if message[0] == _BRACE:
            return Event.__pydantic_validator__.validate_json(message)
        return self._accepted.validate_python(_DataUnpickler(io.BytesIO(message)).load())

    def _read(self, count: int, deadline: float | None) -> None:
        """Read some of the next `count` bytes, or more."""
        most = max(count, _READ_AHEAD_BYTES) if self._reads_ahead else count
        flags = 0
        if deadline is not None:
            # of events the next has mostly come, and a recv takes less time than a poll
            flags = socket.MSG_DONTWAIT
        chunk = None
        while chunk is None:
            try:
                chunk = self.socket.recv(most, flags)
            except BlockingIOError:
                assert deadline is not None
                _await(self._readable, deadline)
            except ConnectionResetError:
                chunk = b""
        if not chunk:
            raise EOFError
        self._data += chunk


def _await(poller: select.poll, deadline: float) -> None:
    """Wait for a socket. TimeoutError at the deadline, ProcessMissing if a process died or is stopped."""
    while not poller.poll(max(0.0, min(watch.STEP_S, deadline - time.monotonic())) * 1000):
        watch.check()
        if time.monotonic() >= deadline:
            raise TimeoutError


def start(argv: Sequence[str], output: IO[bytes], inherited: Collection[int]) -> "subprocess.Popen[bytes]":
    """Start a program without input, whose output goes to a file."""
    return subprocess.Popen(
        argv, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=inherited
    )


class Worker:
    """A child process `python -m module`, called `name` in messages.

    `replies`: the messages that it may send.

    With `on_event`, a thread receives: events go to it, and replies wait to be read, as do events in `awaited`, which
    are also given to `on_event`. Without it, events are dropped.
    """

    def __init__(
        self,
        module: str,
        name: str,
        *replies: type[Message],
        on_event: OnEvent | None = None,
        awaited: Collection[str] = (),
        pass_fds: Collection[int] = (),
    ) -> None:
        self.name, self._on_event, self._awaited = name, on_event, frozenset(awaited)
        ours, theirs = socket.socketpair()
        self._pipe = Pipe(ours, [*replies, Event, Failed], reads_ahead=on_event is not None, deadline_s=ANSWER_S)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            argv = module_command(module, str(theirs.fileno()))
            self._process = start(argv, self._output, [theirs.fileno(), *pass_fds])
        self.watched = watch.add(name, self._process.pid)
        # None: there will be no more
        self._answers: queue.Queue[Message | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"reads {name}", daemon=True) if on_event else None
        if self._reader:
            self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def fileno(self) -> int:
        """The file descriptor that is readable when a message has come, to wait for several processes at once."""
        return self._pipe.socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def open(self, message: Message, timeout_s: float = ANSWER_S) -> None:
        """Send the first message, whose answer is Ready; end the process if that doesn't come."""
        try:
            self.ask(message, Ready, timeout_s)
        except BaseException:
            self.end()
            raise

    def send(self, message: Message) -> None:
        """Send a message, from any thread. RailyardError if the process has died or doesn't read."""
        try:
            self._pipe.send(message)
        except TimeoutError:
            raise self._error(f"took no message in {ANSWER_S:g} s") from None
        except OSError:
            # also of a connection that `end` has closed
            self.watched.await_end(END_S)
            raise self._error("died") from None

    def ask(self, message: Message, reply: type[R], timeout_s: float = ANSWER_S) -> R:
        """Send a message and return the answer. RailyardError as `send` and `receive`."""
        self.send(message)
        return self.receive(reply, timeout_s)

    def receive(self, reply: type[R], timeout_s: float = ANSWER_S) -> R:
        """Return the next message, which must be a `reply`.

        RailyardError if the process has died, sends Failed or another message, or nothing in time: then it is of no
        more use, since a late answer would be taken for that to a later question. ProcessMissing if this or another
        process died or is stopped.
        """
        message = self.receive_any(timeout_s)
        if not isinstance(message, reply):
            raise RailyardError(f"{self.name} sent {message!r:.200}, and not {reply.__name__}")
        return message

    def receive_any(self, timeout_s: float = ANSWER_S) -> Message:
        """Return the next reply or awaited event; RailyardError as `receive`."""
        deadline = time.monotonic() + timeout_s
        try:
            if self._reader:
                message = self._next_answer(deadline)
            else:
                while isinstance(message := self._receive(deadline), Event):
                    pass
        except TimeoutError:
            raise self._error(f"didn't answer in {timeout_s:g} s") from None
        if message is None:
            self._answers.put(None)  # for later calls
            self.watched.await_end(END_S)
            raise self._error("died")
        if isinstance(message, Failed) and message.traceback:
            raise crash.WorkerCrashed(f"{self.name} died: {message.why}", message.traceback)
        if isinstance(message, Failed):
            error = RailyardError(f"{self.name}: {message.why}")
            error.exit_status = message.exit_status
            raise error
        return message

    def await_events(self, expected: Collection[str], timeout_s: float = ANSWER_S) -> dict[str, dict[str, Any]]:
        """Return the details of these awaited events once all have come; RailyardError as `receive`."""
        deadline = time.monotonic() + timeout_s
        details = dict[str, dict[str, Any]]()
        while not details.keys() >= set(expected):
            message = self.receive_any(max(0.0, deadline - time.monotonic()))
            if isinstance(message, Event):
                details[message.what] = message.detail
        return details

    def kill(self) -> None:
        """Kill the process. What it has sent can still be received."""
        self.watched.release()
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End the process, whatever it is doing: it holds nothing that needs to be saved."""
        self.kill()
        if self._reader:
            # it ends with the process
            self._reader.join()
        self._pipe.socket.close()
        self._output.close()

    def _next_answer(self, deadline: float) -> Message | None:
        """Return what the thread has received next, None at the end. TimeoutError and ProcessMissing as `_await`."""
        while True:
            with suppress(queue.Empty):
                return self._answers.get(timeout=max(0.0, min(watch.STEP_S, deadline - time.monotonic())))
            if self.watched.is_over():
                # the thread is late: what the process said last tells more than that it died
                with suppress(queue.Empty):
                    return self._answers.get(timeout=END_S)
            watch.check()
            if time.monotonic() >= deadline:
                raise TimeoutError

    def _receive(self, deadline: float | None) -> Message | None:
        """Return the next message of any kind, None at the end. TimeoutError without a whole one by the deadline."""
        try:
            return self._pipe.receive(deadline)  # type: ignore[no-any-return]
        except EOFError:
            return None
        except (ValidationError, pickle.UnpicklingError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise RailyardError(f"{self.name} sent an unknown message: {why}") from error

    def _read(self) -> None:
        """In a thread: pass events on, and queue answers."""
        # an ordinary user may not
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READER_NICENESS)
        while message := self._receive(None):
            if not isinstance(message, Event) or message.what in self._awaited:
                self._answers.put(message)
            if isinstance(message, Event) and message.what == INTERRUPTED:
                watch.note(watch.Interruption(**message.detail))
            elif isinstance(message, Event) and self._on_event:
                self._on_event(message.ns, message.what, message.detail)
        self._answers.put(None)

    def _error(self, failure: str) -> watch.ProcessMissing:
        """An error of this process, with the last line of its output."""
        with suppress(OSError, ValueError):
            size = os.fstat(self._output.fileno()).st_size
            # pread, since the child shares the position in the file
            tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
            if lines := tail.strip().splitlines():
                return watch.ProcessMissing(f"{self.name} {failure}: {lines[-1]}")
        return watch.ProcessMissing(f"{self.name} {failure}")


class Parent:
    """A child's end of the connection: `sock`, or the file descriptor that is the first argument of its program.

    `commands`: the messages that it accepts. Iterate over it to receive them until the parent ends.
    """

    def __init__(self, *commands: type[Message], sock: socket.socket | None = None) -> None:
        if sock is None:
            if len(sys.argv) < 2:
                raise SystemExit(f"{sys.argv[0]}: started by other processes of Railyard, not by hand")
            fd = int(sys.argv[1])
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
        self._pipe = Pipe(sock, commands)
        sys.excepthook = self._end_with_traceback
        threading.excepthook = self._end_if_it_lacks
        threading.Thread(target=self._end_with_parent, name="ends with its parent", daemon=True).start()

    def fileno(self) -> int:
        """The file descriptor that is readable when a command has come."""
        return self._pipe.socket.fileno()

    def receive(self) -> Any:
        """Return the next command. SystemExit if the parent has ended."""
        try:
            return self._pipe.receive()
        except EOFError:
            raise SystemExit(0) from None

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.receive()

    def send(self, message: Message) -> None:
        """Send a message, from any thread."""
        self._pipe.send(message)

    def emit(self, what: str, detail: dict[str, Any]) -> None:
        """Send an event of now, from any thread."""
        self._pipe.send({"kind": "Event", "what": what, "detail": detail, "ns": time.monotonic_ns()})

    def forward_interruptions(self) -> None:
        """Let the parent know of interruptions of the processes that this one starts."""
        watch.announce(lambda interruption: self.emit(INTERRUPTED, asdict(interruption)))

    def _end_with_parent(self) -> None:
        """Wait until the other end of the connection is closed."""
        poller = select.poll()
        # of a TCP connection, the other end's close alone is no hang-up
        poller.register(self.fileno(), select.POLLRDHUP)
        poller.poll()
        os._exit(0)

    def _end_if_it_lacks(self, failed: Any) -> None:
        """End the process if one of its threads died for lack of memory, files or threads; else print the traceback."""
        if crash.from_system(failed.exc_value):
            self._end_with_traceback(failed.exc_type, failed.exc_value, failed.exc_traceback)
        threading.__excepthook__(failed)

    def _end_with_traceback(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Report an uncaught exception and end the process, although threads that aren't daemons may still run."""
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
        cause = crash.known_error(error)
        with suppress(OSError):
            if cause:
                self.send(Failed(why=str(cause), exit_status=cause.exit_status))
            else:
                self.send(Failed(why=crash.describe(error), traceback=crash.crash_text(error)))
        time.sleep(_READ_S)
        os._exit(1)
