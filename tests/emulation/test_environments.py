"""Hostile environments: each is one line with what is wrong and a remedy, and status 2 or 3; harmless ones work.

The environments are real: resource limits, locales, closed and full streams, and mounts in a mount namespace.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.emulation.programs import ROOT, RUN_EXPERIMENT, USER

MOUNT = ("unshare", "--mount", "sh", "-c")
NO_TUN = 'mount -n -t tmpfs -o dev tmpfs /dev/net && {} && exec "$@"'
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def run(
    command: Sequence[str], wrapped: Sequence[str] = (), folder: Path = ROOT, variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command line in an environment: a program before it, and variables."""
    argv = [*wrapped, *RUN_EXPERIMENT, *command]
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        errors="replace", timeout=300,
    )  # fmt: skip


def assert_one_line(done: "subprocess.CompletedProcess[str]", status: int, text: str) -> None:
    """Assert on the exit status, and that one line on stderr has the text."""
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert text in done.stderr


@pytest.mark.parametrize(
    ("wrapped", "text"),
    [
        (("prlimit", "--nofile=32"), "32 open files, 256 needed); raise the limit: ulimit -n"),
        (("prlimit", "--as=600000000"), "600,000,000 bytes of address space, 700,000,000 needed"),
        (("prlimit", "--fsize=20000"), "20,000 bytes in a file, 50,000,000 needed); raise the limit: ulimit -f"),
        ((*MOUNT, NO_TUN.format("true"), "sh"), "/dev/net/tun (No such file or directory); sudo modprobe tun"),
        ((*MOUNT, NO_TUN.format("touch /dev/net/tun"), "sh"), "/dev/net/tun (is no tun device); sudo rm"),
        ((*MOUNT, NO_TUN.format("mknod /dev/net/tun c 1 3"), "sh"), "/dev/net/tun (is no tun device)"),
        ((*USER, "fakeroot"), "without fakeroot"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_lack_of_the_machine_is_named_by_the_doctor(wrapped: Sequence[str], text: str) -> None:
    done = run(["doctor"], wrapped)
    assert done.returncode == 3
    assert text in " ".join(done.stdout.split())


@pytest.mark.parametrize("output", ["/dev/full", "&-"])
@pytest.mark.parametrize("command", ["list", "--help", "describe quickstart"])
def test_a_stdout_that_fails_is_one_line(command: str, output: str) -> None:
    assert_one_line(run(command.split(), ("sh", "-c", f'exec "$@" >{output}', "sh")), 3, "stdout: can't be written")


@pytest.mark.parametrize(
    "variables",
    [ASCII, {"PYTHONIOENCODING": "latin-1"}, {"TERM": "dumb", "COLUMNS": "10"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=" ".join,
)
@pytest.mark.parametrize("command", ["list", "predict slowdown", "describe quickstart"])
def test_text_is_shown_in_any_locale_and_terminal(command: str, variables: Mapping[str, str], folder: Path) -> None:
    done = run(command.split(), folder=folder, variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_closed_streams_leave_the_status_of_bad_input(closed: str) -> None:
    assert run(["describe", "nowhere"], ("sh", "-c", f'exec "$@" {closed}', "sh")).returncode == 2
