"""The outermost handler of a program: every error becomes one line and an exit status, and no output is fatal.

`guarded` runs a program's main function. Errors of the user or the machine keep their exit status. Any other exception
is a defect of Railyard or of a plugin: its traceback goes to a file, with what is needed to reproduce it, and the exit
status is 70 (EX_SOFTWARE of sysexits.h). A process without a place for such a file sends the text elsewhere (`sink`).

While a command works, Ctrl-C raises KeyboardInterrupt, so that the command can clean up. Before and after that, while
Python imports modules, parses a command line or shuts down, that exception would be lost, or be printed with a
traceback: there Ctrl-C ends the process at once, with one line.
"""

import codecs
import errno
import io
import os
import platform
import signal
import sys
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

from railyard.core.errors import BadInput, MissingRequirement, RailyardError, print_error

STATUS: Final = 70
STOPPED: Final = "stopped by Ctrl-C"
STOPPED_STATUS: Final = 128 + signal.SIGINT
sink: Callable[[str], object] | None = None  # takes the text of a report, in place of a file
# the process that started this one prints to the same stdout, after it
parent_has_stdout = False
context: Final[dict[str, object]] = {}  # what a report has besides: the experiment's specification
_LONGEST: Final = 100_000
_ASCII: Final = {"→": "->", "×": "x", "µ": "u", "–": "-", "—": "-", "·": "*", "✓": "v", "✗": "x", "≤": "<=", "≥": ">="}
_ASCII.update({"≠": "!=", "±": "+-", "÷": "/", "…": "...", "─": "-", "│": "|"})
_LIMITS: Final[Mapping[int, tuple[str, str]]] = {
    errno.EMFILE: ("too many open files", "raise the limit: ulimit -n 65536"),
    errno.ENFILE: ("too many open files on this machine", "raise the limit: sudo sysctl fs.file-max=1000000"),
    errno.EAGAIN: ("no further process or thread can be started", "raise the limit of processes: ulimit -u 10000"),
    errno.ENOMEM: ("not enough memory", "free some, or raise the limit: ulimit -v unlimited"),
    errno.EFBIG: ("a file became larger than the limit", "raise it: ulimit -f unlimited"),
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EROFS: ("the file system is read-only", "use another folder, or set TMPDIR to one"),
}


class WorkerCrashed(RailyardError):
    """An unexpected exception in a child process. `report`: its traceback."""

    exit_status = STATUS

    def __init__(self, message: str, report: str) -> None:
        super().__init__(message)
        self.report = report


def end_at_ctrl_c() -> None:
    """Let Ctrl-C end this process with one line, unless its caller made it ignore Ctrl-C."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _end)


def raise_at_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, unless this process ignores it."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(STOPPED_STATUS)


def guarded(main: Callable[[], int], own_streams: bool = True) -> int:
    """Return the exit status of `main`; an exception or Ctrl-C (130) is one line on stderr.

    `own_streams`: with stdout and stderr that accept any text, and whose failure doesn't end the program.
    """
    stdout = _replace_streams() if own_streams else None
    status = _run(main, stdout)
    if stdout is None:
        return status
    end_at_ctrl_c()
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    if stdout.error is None:
        return status
    if parent_has_stdout or isinstance(stdout.error, BrokenPipeError):
        # then the parent prints the line
        return status or 1
    reason = (stdout.error.strerror or str(stdout.error)).lower()
    return print_error(f"stdout: can't be written ({reason}); write the output to another place", status or 3)


def _run(main: Callable[[], int], stdout: "_Descriptor | None") -> int:
    """Return the exit status of `main`, or of the exception that ended it.

    `stdout`: what replaced its stream.
    """
    try:
        return main()
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return STOPPED_STATUS
    except SystemExit as stop:
        if _from_plugin(stop):
            return report_error(stop)
        if not isinstance(stop.code, int):
            raise
        cause = stop.__context__
        # click turns every BrokenPipeError into an exit, also those of other files than stdout
        if isinstance(cause, BrokenPipeError) and stdout and stdout.error is None:
            return report_error(cause)
        return stop.code
    except BaseException as error:
        # a plugin may raise any kind
        if stdout and error is stdout.error:
            return 1
        return report_error(error)


def report_error(error: BaseException) -> int:
    """Print an exception as one line, with the path of a crash report if it is unexpected. Return the exit status."""
    cause = known_error(error)
    if isinstance(cause, WorkerCrashed):
        return print_report(str(cause), crash_text(error, cause.report))
    if cause:
        return print_error(str(cause), cause.exit_status)
    return print_report(describe(error), crash_text(error))


def print_report(summary: str, text: str) -> int:
    """Print one line about a crash, with the path of its report. Return its exit status."""
    if sink:
        sink(f"{summary}\n{text}")
        return STATUS
    details = write_report(text)
    plugin_names = ", ".join(path.name for path in _plugin_files())
    if plugin_names:
        details = f"loaded plugins: {plugin_names}; {details}"
    return print_error(f"{summary} (unexpected; {details})", STATUS)


def write_report(text: str) -> str:
    """Write a crash report to a new file; return where it is, in words."""
    import tempfile

    try:
        # new, and for its owner alone
        fd, path = tempfile.mkstemp(prefix="railyard-crash-", suffix=".txt")
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return f"the crash report is {path}"
    except OSError as error:
        return f"no crash report could be written ({error.strerror}): set TMPDIR to a folder with space"


def describe(error: BaseException) -> str:
    """Return an exception's type and text, on one line of at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def crash_text(error: BaseException, more: str = "") -> str:
    """Return a report: traceback, command line, versions and specification; no environment variables."""
    import shlex
    import traceback

    parts = ["".join(traceback.format_exception(error)), more, f"command: {shlex.join(sys.argv)}"]
    parts += [f"Python {platform.python_version()}, Linux {platform.release()}, uid {os.geteuid()}, pid {os.getpid()}"]
    modules = {name: _version(module) for name, module in sorted(sys.modules.items()) if "." not in name}
    parts += [" ".join(f"{name} {version}" for name, version in modules.items() if isinstance(version, str))]
    parts += [f"{name}: {value}" for name, value in context.items()]
    return "\n".join(filter(None, parts))[:_LONGEST] + "\n"


def _version(module: object) -> object:
    """Return a module's version; None if it has none."""
    # without its `__getattr__`, and without a lazy import, which may fail as the reported error did
    try:
        return object.__getattribute__(module, "__dict__").get("__version__")
    except AttributeError:
        return None


def known_error(error: BaseException) -> RailyardError | None:
    """Return the error with the line and the exit status for an exception; None if it is a defect of Railyard."""
    if isinstance(error, RailyardError):
        return error
    return from_system(error) or _from_plugin(error)


def _plugin_files() -> list[Path]:
    """Return the files of loaded plugins: what they return may also be the cause of an exception of ours."""
    # looked up, not imported: an import may fail as the reported error did
    plugins = sys.modules.get("railyard.core.plugins")
    if plugins is None:
        return []
    return [plugin.path for plugin in plugins.loaded()]


def _from_plugin(error: BaseException) -> BadInput | None:
    """Return the error that names the innermost line of a plugin file in the traceback; None if there is none."""
    files = set(map(str, _plugin_files()))
    trace = error.__traceback__
    where = ""
    while trace:
        file = trace.tb_frame.f_code.co_filename
        if file in files:
            where = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    if not where:
        return None
    return BadInput("plugin", where, f"raised {describe(error)}")


def from_system(error: BaseException) -> MissingRequirement | None:
    """Return the error for a limit of the machine that an exception stands for; None if it is another."""
    number = (error.errno or 0) if isinstance(error, OSError) else 0
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        number = errno.EAGAIN
    elif isinstance(error, ImportError) and os.strerror(errno.EMFILE) in str(error):
        number = errno.EMFILE
    elif number == errno.EAGAIN and "fork" not in _innermost_function(error):
        # such as a socket that would block
        number = 0
    if number not in _LIMITS:
        return None
    problem, remedy = _LIMITS[number]
    name = getattr(error, "filename", None)
    if isinstance(name, str | bytes):
        problem += f" ({os.fsdecode(name)})"
    return MissingRequirement(problem, remedy)


def _innermost_function(error: BaseException) -> str:
    """Return the name of the function that raised, and the line of source."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f"{frames[-1].name} {frames[-1].line}"


class _Descriptor(io.FileIO):
    """A standard stream that drops what follows a failed write. `error`: why it failed.

    A broken pipe is raised all the same, so that a command without end stops.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
                if isinstance(error, BrokenPipeError):
                    raise
        return len(data)


def _replace_streams() -> _Descriptor:
    """Make stdin, stdout and stderr usable, whatever they are. Return stdout's descriptor."""
    # A closed one is opened before another file takes its number. Stdout is opened for reading, so that writing to it
    # fails, as it would have.
    for fd, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            # the lowest free number
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr, _ = _stream(2, sys.stderr)
    sys.stdout, stdout = _stream(1, sys.stdout)
    return stdout


def _stream(fd: int, old: TextIO | None) -> tuple[TextIO, _Descriptor]:
    raw = _Descriptor(fd, "w", closefd=False)
    encoding = old.encoding if old else "utf-8"
    buffered = io.BufferedWriter(raw)
    by_line = fd == 2 or raw.isatty()
    return io.TextIOWrapper(buffered, encoding, "railyard", line_buffering=by_line, write_through=by_line), raw


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks: marks by ASCII ones, letters by those without accents."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(map(_plain_character, text)), error.end


def _plain_character(character: str) -> str:
    if character in _ASCII:
        return _ASCII[character]
    without_accents = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return without_accents or "?"


codecs.register_error("railyard", _replace_unencodable)
