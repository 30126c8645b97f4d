"""Entry into a live run: its namespaces are opened, then checked, and only what was checked is entered.

A process that looks like a run proves nothing, since any user can make one that does. So

- root enters a run directly only if root's own process started it, in this user namespace and with all capabilities of
this process, and if every namespace belongs to this user namespace: no ordinary user can make such a run;

- any other run is entered through its user namespace, which must be its owner's, and with its owner's credentials: a
command in there can do no more than its owner could do without root.

The namespaces are open files, so none can be swapped between check and entry. A pidfd shows after each reading of /proc
that the process was still the same one.
"""

import ctypes
import fcntl
import json
import os
import re
import resource
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import psutil

from railyard.core.errors import RailyardError
from railyard.core.host import CLONE_NEWNET, NETNS_DIR, SEARCH_PATH
from railyard.core.safe_files import Account, account_of, clean_environment, drop_to
from railyard.core.sandbox import hidden
from railyard.core.sandbox.run_socket import Announcement

# in the order of entry: the user namespace gives the right to the rest, and after `mnt` /proc is another
_CLONE: Final = {"user": 0x10000000, "pid": 0x20000000, "uts": 0x04000000, "ipc": 0x08000000}
_CLONE.update(net=CLONE_NEWNET, mnt=0x00020000)
_OF_A_RUN: Final = ("pid", "net", "mnt")  # what no run shares with the machine
_NS_GET_USERNS: Final = 0xB701
_NS_GET_PARENT: Final = 0xB702
_NS_GET_OWNER_UID: Final = 0xB704
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LOOK_S: Final = 2.0
_END_S: Final = 1.0
_LONGEST_LIST: Final = 2**20
_LAST_OUTPUT_S: Final = 0.1
_READS_AFTER_END: Final = 256
_PASSED_ON: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Refused(RailyardError):
    """Refusal to enter a run. The message begins with a verb."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A run that was checked.

    `pid`: process 1 of its sandbox, seen from here.
    `namespaces`: open, those to enter.
    """

    pid: int
    pidfd: int
    account: Account
    namespaces: Mapping[str, int] = field(repr=False)

    def close(self) -> None:
        """Close the files."""
        for fd in (self.pidfd, *self.namespaces.values()):
            os.close(fd)


def entry_of(announcement: Announcement) -> Entry | None:
    """The entry to the run that a process announces; None if it has not begun yet, or has ended. Refused else."""
    pid = _first_process(announcement)
    if pid is None:
        return None
    with ExitStack() as on_error:
        try:
            pidfd = os.pidfd_open(pid)
            on_error.callback(os.close, pidfd)
            opened = _open_namespaces(pid, on_error)
            _check_process(announcement, pid)
            kept = _check_namespaces(opened, announcement.uid)
            entry = Entry(
                pid, pidfd, account_of(announcement.uid, announcement.gid), {kind: opened[kind] for kind in kept}
            )
            if not (_is_alive(pidfd) and _is_alive(announcement.pidfd)):
                raise ProcessLookupError
        except (ProcessLookupError, FileNotFoundError):
            return None
        except OSError as error:
            raise Refused(f"can't be entered: {error.strerror or error}") from error
        on_error.pop_all()
    for kind in opened.keys() - kept:
        os.close(opened[kind])
    return entry


def _open_namespaces(pid: int | str, closing: ExitStack) -> dict[str, int]:
    """Open the namespaces of a process; return them by kind. `closing` closes them."""
    opened = {}
    for kind in _CLONE:
        opened[kind] = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        closing.callback(os.close, opened[kind])
    return opened


def _first_process(announcement: Announcement) -> int | None:
    """Process 1 of a PID namespace below ours: a child of `unshare`, which is the listening process's child."""
    with suppress(psutil.Error, OSError):
        for process in psutil.Process(announcement.pid).children(recursive=True):
            numbers = _status(process.pid).get("NSpid", [])
            if len(numbers) > 1 and numbers[-1] == "1" and _parent(_parent(process.pid)) == announcement.pid:
                return process.pid
    return None


def _check_process(announcement: Announcement, pid: int) -> None:
    """Refused unless both processes have its user's credentials, and for root's own run all capabilities of ours."""
    if _parent(_parent(pid)) != announcement.pid:
        raise ProcessLookupError
    ours = int(_status(os.getpid())["CapPrm"][0], 16)
    for number in (announcement.pid, pid):
        status = _status(number)
        if {int(uid) for uid in status["Uid"]} != {announcement.uid}:
            raise Refused(f"is refused: process {number} is another user's")
        if announcement.uid == os.geteuid() == 0 and ours & ~int(status["CapPrm"][0], 16):
            raise Refused(f"is refused: process {number} has fewer privileges than this one")


def _check_namespaces(opened: Mapping[str, int], uid: int) -> list[str]:
    """Which of the opened namespaces to enter. Refused if one isn't a run's, or isn't its user's."""
    with ExitStack() as closing:
        here = _open_namespaces("self", closing)
        for kind in _OF_A_RUN:
            if _same(opened[kind], here[kind]):
                raise Refused(f"is refused: its {kind} namespace is the machine's")
        direct = uid == os.geteuid() == 0
        user = opened["user"]
        if direct and not _same(user, here["user"]):
            raise Refused("is refused: it is in another user namespace")
        if not direct:
            # its user must have made its user namespace, and in ours
            owner = bytearray(4)
            fcntl.ioctl(user, _NS_GET_OWNER_UID, owner)
            if _same(user, here["user"]):
                raise Refused("is refused: it has no user namespace of its own")
            if not _is_owned(user, here["user"], _NS_GET_PARENT) or int.from_bytes(owner, sys.byteorder) != uid:
                raise Refused("is refused: its user namespace is another user's")
        kept = [k for k in _CLONE if not _same(opened[k], here[k])]
        for kind in kept:
            if kind != "user" and not _is_owned(opened[kind], user):
                raise Refused(f"is refused: its {kind} namespace is of another user namespace")
        return kept


def _is_owned(fd: int, user_namespace: int, question: int = _NS_GET_USERNS) -> bool:
    try:
        owner = fcntl.ioctl(fd, question)
    except PermissionError:
        # it is out of sight from here
        return False
    try:
        return _same(owner, user_namespace)
    finally:
        os.close(owner)


def _same(fd: int, another: int) -> bool:
    return os.path.samestat(os.fstat(fd), os.fstat(another))


def _status(pid: int) -> dict[str, list[str]]:
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines())
    return {key: value.split() for key, _, value in lines}


def _parent(pid: int) -> int:
    return int(_status(pid)["PPid"][0])


def _is_alive(pidfd: int) -> bool:
    """True while the process is running; until it ends, no other process has its number."""
    return not select.select([pidfd], [], [], 0)[0]


def _enter(entry: Entry, node: str | None) -> None:
    """Put this process, a fresh child with one thread, into the run, with its user's credentials if they aren't ours.

    Its next child will be in the PID namespace.
    """
    if not entry.account.is_ours:
        drop_to(entry.account)
    for kind, fd in entry.namespaces.items():
        _setns(fd, kind)
    if node is not None:
        fd = os.open(NETNS_DIR / node, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        _setns(fd, "net")
    if not _is_alive(entry.pidfd):
        raise Refused("has ended")


def _setns(fd: int, kind: str) -> None:
    if _libc.setns(fd, _CLONE[kind]) != 0:
        number = ctypes.get_errno()
        raise Refused(f"is refused: its {kind} namespace can't be entered ({os.strerror(number).lower()})")


def nodes(entry: Entry) -> list[str]:
    """The names of the namespaces of the fabric that is up. Looked for from inside, and not for longer than 2 s."""
    reading, writing = os.pipe2(os.O_CLOEXEC)

    def report() -> int:
        with suppress(OSError, RailyardError):
            _enter(entry, None)
            names = os.listdir(NETNS_DIR)  # noqa: PTH208 (a name that is no path)
            os.write(writing, json.dumps(names).encode())
        return 0

    child = os.fork()
    if child == 0:
        _in_child(report)
    os.close(writing)
    received = b""
    deadline = time.monotonic() + _LOOK_S
    try:
        while len(received) < _LONGEST_LIST:
            ready = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready or not (part := os.read(reading, 65536)):
                break
            received += part
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _await_end(child)
    try:
        return sorted(name for name in json.loads(received) if isinstance(name, str) and _NODE.fullmatch(name))
    except (ValueError, TypeError):
        return []


def _await_end(child: int) -> None:
    """Wait a while for a child that was killed."""
    # one that is in a call to a user's FUSE file system may end much later, or never
    pidfd = os.pidfd_open(child)
    select.select([pidfd], [], [], _END_S)
    os.close(pidfd)
    os.waitpid(child, os.WNOHANG)


class _Terminal:
    """A pseudo-terminal for a command of another user's, in place of those of our streams that are a terminal."""

    def __init__(self) -> None:
        # with our own terminal, a process that the command leaves behind could read what is typed there afterwards
        self._streams = [fd for fd in range(3) if os.isatty(fd)]
        self._ours, self._theirs = os.openpty()
        # a command that reads nothing must not stop its own output
        os.set_blocking(self._ours, False)
        self._resize()

    def _resize(self, *_: object) -> None:
        """Give it the size of our terminal. The kernel sends SIGWINCH to the command if that is new."""
        with suppress(OSError):
            size = fcntl.ioctl(self._streams[0], termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def attach(self) -> None:
        """Make it the terminal of this process, which has begun a session."""
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)
        for fd in self._streams:
            os.dup2(self._theirs, fd)

    def relay(self, keeper: int) -> None:
        """Copy what is typed and written, until the process ends."""
        os.close(self._theirs)
        pidfd = os.pidfd_open(keeper)
        has_input = 0 in self._streams
        watched = [self._ours, pidfd]
        before: list[Any] = []
        if has_input:
            watched.append(0)
            before = termios.tcgetattr(0)
        resized = signal.signal(signal.SIGWINCH, self._resize)
        # for a signal before this one was handled
        self._resize()
        try:
            if self._streams[:2] == [0, 1]:
                tty.setraw(0, termios.TCSADRAIN)
            self._copy(watched, pidfd)
        finally:
            if has_input:
                termios.tcsetattr(0, termios.TCSADRAIN, before)
            signal.signal(signal.SIGWINCH, resized)
            os.close(pidfd)
            os.close(self._ours)

    def _copy(self, watched: list[int], pidfd: int) -> None:
        timeout_s = None
        reads_left = _READS_AFTER_END
        while reads_left and (ready := select.select(watched, [], [], timeout_s)[0]):
            if pidfd in ready:
                watched.remove(pidfd)
                timeout_s = _LAST_OUTPUT_S
            if timeout_s is not None:
                # what it leaves behind could write for ever
                reads_left -= 1
            if self._ours in ready and not self._copy_output():
                watched.remove(self._ours)
            if 0 in ready and not self._copy_input():
                watched.remove(0)

    def _copy_output(self) -> bool:
        """Copy what the command has written. Return False at its end."""
        written = b""
        # EIO: all have closed it
        with suppress(OSError):
            written = os.read(self._ours, 65536)
        output = next((fd for fd in self._streams if fd), None)
        if written and output is not None:
            os.write(output, written)
        return bool(written)

    def _copy_input(self) -> bool:
        """Copy what was typed. Return False at its end, which the command gets as Ctrl-D."""
        typed = os.read(0, 4096)
        with suppress(OSError):
            os.write(self._ours, typed or b"\x04")
        return bool(typed)


def run(
    entry: Entry,
    name: str,
    command: Sequence[str],
    node: str | None,
    variables: Mapping[str, str],
    most: int | None = None,
) -> int:
    """Run a command in the network of a node, or (None) of process 1, and return its exit status.

    If the run can't be entered, one line with its name says so, and the status is 2. As another user's, the command
    gets a clean environment and a terminal of its own; signals are passed on to it. `variables` come on top.
    `most`: bytes of a file that it writes, our own that it inherits included.
    """
    is_ours = entry.account.is_ours
    environment = {**os.environ, "PATH": SEARCH_PATH} if is_ours else clean_environment(entry.account)
    terminal = None
    if not is_ours and any(map(os.isatty, range(3))):
        terminal = _Terminal()
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = 0

    def pass_on(number: int, frame: FrameType | None) -> None:
        if keeper and not is_ours:
            # a command of our own has the same signal from the terminal
            with suppress(ProcessLookupError):
                os.killpg(keeper, number)

    passed_on = _PASSED_ON[:2] if is_ours else _PASSED_ON
    old = {number: signal.signal(number, pass_on) for number in passed_on}
    keeper = os.fork()
    if keeper == 0:
        ignored = [number for number, handler in old.items() if handler == signal.SIG_IGN]
        defaults: dict[int, Any] = {n: signal.SIG_IGN if n in ignored else signal.SIG_DFL for n in old}
        started = partial(_keep, entry, command, node, {**environment, **variables}, defaults, terminal, most)
        _in_child(started, f"RUN: {name!r}")
    try:
        if terminal:
            terminal.relay(keeper)
        status = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _keep(
    entry: Entry,
    command: Sequence[str],
    node: str | None,
    environment: Mapping[str, str],
    defaults: Mapping[int, Any],
    terminal: _Terminal | None,
    most: int | None,
) -> int:
    """Enter, start the command as a child, since only children are in the PID namespace, and wait for it."""
    is_ours = entry.account.is_ours
    if not is_ours:
        # or the command could push characters into the terminal's input (TIOCSTI)
        os.setsid()
        if terminal:
            terminal.attach()
    if most is not None:
        # of root: its user can't raise it again
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    _enter(entry, node)
    hidden.drop_capabilities()

    def execute() -> NoReturn:
        for number, action in defaults.items():
            signal.signal(number, action)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if not is_ours:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        try:
            os.execvpe(command[0], list(command), dict(environment))
        except OSError as error:
            print(f"error: {command[0]}: {(error.strerror or str(error)).lower()}", file=sys.stderr, flush=True)
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    child = os.fork()
    if child == 0:
        _in_child(execute)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _in_child(work: Callable[[], int], description: str = "") -> NoReturn:
    """Do it, and end this process, whatever happens: it must never go on as the command line that forked it."""
    status = 1
    try:
        status = work()
    except RailyardError as error:
        print(f"error: {description} {error}", file=sys.stderr)
        status = error.exit_status
    except OSError as error:
        print(f"error: {description} can't be entered: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        status = 2
    finally:
        sys.stderr.flush()
        os._exit(status)
