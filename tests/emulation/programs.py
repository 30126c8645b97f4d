"""Programs as child processes: start, watch, kill, and check that nothing of them is left."""

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil
import pytest

from railyard.core.host import SEARCH_PATH, USER_NAMESPACE_OPTIONS
from tests.emulation import preloaded
from tests.emulation.deadlines import scaled

ROOT: Final = Path(__file__).parents[2]
RUN_EXPERIMENT: Final = (sys.executable, str(ROOT / "run_experiment.py"))
SANDBOXED: Final = (sys.executable, "-m", "tests.emulation.sandboxed")
# a /dev/net/tun that everybody may open, in a mount namespace that ends with the command (-n: else /run/mount stays)
USER: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_AS_USER: Final = """mount -n -t tmpfs -o dev tmpfs /dev/net && mknod /dev/net/tun c 10 200 && chmod 666 /dev/net/tun &&
exec "$@\""""


def as_root(argv: Sequence[str]) -> Sequence[str]:
    """The command as it is."""
    return argv


def as_user(argv: Sequence[str]) -> Sequence[str]:
    """The same by an ordinary user, on a machine that lets users open /dev/net/tun. Skips where they can't be root of
    a namespace, which nothing here could change.
    """
    if not _users_may():
        pytest.skip("this machine refuses user namespaces to ordinary users")
    return ["unshare", "--mount", "sh", "-c", _AS_USER, "sh", *USER, *argv]


@cache
def _users_may() -> bool:
    return (
        subprocess.run(
            [*USER, "unshare", *USER_NAMESPACE_OPTIONS, "--net", "true"], capture_output=True, check=False
        ).returncode
        == 0
    )


class Program:
    """A program with a pipe to its input; `output` holds what it has written to both streams.

    Our command line is forked from this process (preloaded.py), unless a new Python is asked for (`is_new`).
    """

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path = ROOT,
        home: Path | None = None,
        is_new: bool = False,
        network_of: int | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`network_of`: the number of a process in whose network namespace it starts."""
        environment = {**os.environ, "PATH": SEARCH_PATH, "PYTHONUNBUFFERED": "1", **variables}
        environment |= {"HOME": str(home)} if home else {}
        if tuple(argv[: len(RUN_EXPERIMENT)]) == RUN_EXPERIMENT and not is_new:
            self.process = preloaded.start(argv, cwd, environment, network_of=network_of)
        else:
            argv = argv if network_of is None else ["nsenter", f"--net=/proc/{network_of}/ns/net", *argv]
            self.process = subprocess.Popen(
                argv, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.output = ""

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def await_text(self, text: str, within_s: float) -> None:
        """Read until new output contains this text."""
        seen = len(self.output)
        deadline = time.monotonic() + scaled(within_s)
        while text not in self.output[seen:]:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} never came; its output:\n{self.output}")

    def await_match(self, pattern: str, within_s: float) -> None:
        """Read until a line of its output has this pattern."""
        deadline = time.monotonic() + scaled(within_s)
        while not re.search(pattern, self.output):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{pattern!r} not within {within_s:g} s; its output:\n{self.output}")

    def end(self, within_s: float) -> int:
        """Its exit status, once it has ended by itself."""
        deadline = time.monotonic() + scaled(within_s)
        while self._read(deadline - time.monotonic()):
            pass
        try:
            return self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {within_s} s; its output:\n{self.output}") from None

    def _read(self, timeout_s: float) -> bool:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(0.0, timeout_s))[0]:
            return False
        part = os.read(self.process.stdout.fileno(), 65536)
        self.output += part.decode(errors="replace")
        return bool(part)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """However the test ended, it goes; that its sandbox goes with it is what is tested."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


def finished(argv: Sequence[str], within_s: float, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, without input; our command line is forked, as by `Program`."""
    environment = {**os.environ, "PATH": SEARCH_PATH}
    if tuple(argv[: len(RUN_EXPERIMENT)]) == RUN_EXPERIMENT:
        process = preloaded.start(argv, cwd, environment, stderr=subprocess.PIPE)
    else:
        process = subprocess.Popen(
            argv, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    with process:
        try:
            output, errors = process.communicate(timeout=scaled(within_s))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, output.decode(), errors.decode())


def read_until(fd: int, text: str, within_s: float) -> str:
    """Read from a terminal until its output contains this text; return the output."""
    output = ""
    deadline = time.monotonic() + scaled(within_s)
    while text not in output:
        assert select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0], f"no {text!r} in {output!r}"
        output += os.read(fd, 4096).decode()
    return output


def read_to_end(fd: int, within_s: float) -> str:
    """Read from a terminal until its program has ended, for so long at most; return the output."""
    output, deadline = "", time.monotonic() + within_s
    with suppress(OSError):  # EIO: no process has it open any more
        while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            output += os.read(fd, 65536).decode(errors="replace")
    return output


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none if it has just ended, or is dead and not buried. Those of a forked program come as one."""
    try:
        return " ".join(process.cmdline()).split()
    except psutil.Error:
        return []


def machine_state() -> dict[str, set[str]]:
    """Return what a run must leave as it was: mounts, temporary files, and its processes with their namespaces.

    Every process of a sandbox has its marker among its variables.
    """
    ours = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if b"RAILYARD_SANDBOX=1" in (folder / "environ").read_bytes():
                    network = (folder / "ns" / "net").readlink()
                    ours.add(f"{(folder / 'comm').read_text().strip()} (pid {folder.name}, {network})")
            except OSError:
                continue  # it has just ended
    mounts = set(Path("/proc/self/mountinfo").read_text().splitlines())
    return {"process": ours, "mount": mounts, "file": {path.name for path in Path(tempfile.gettempdir()).iterdir()}}


def assert_as_before(before: dict[str, set[str]], within_s: float = 10.0) -> None:
    """AssertionError, with names, if something is left when the time is over."""
    deadline = time.monotonic() + within_s
    while left := {kind: names - before[kind] for kind, names in machine_state().items() if names - before[kind]}:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)
