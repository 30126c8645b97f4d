"""Hostile environments: each is one line with what is wrong and a remedy, and status 2 or 3; harmless ones work.

The environments are real: resource limits, locales, closed and full streams, and mounts in a mount namespace.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.emulation.programs import ROOT, RUN_EXPERIMENT, USER

SMALL = {
    "name": "small",
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "20Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "300ms"}],
}
MOUNT = ("unshare", "--mount", "sh", "-c")
NO_TUN = 'mount -n -t tmpfs -o dev tmpfs /dev/net && {} && exec "$@"'
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        (Path(name) / "small.yaml").write_text(yaml.safe_dump(SMALL))
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
        (("prlimit", "--nofile=255"), "255 open files, 256 needed); raise the limit: ulimit -n"),
        (("prlimit", "--as=300000000"), "300,000,000 bytes of address space, 700,000,000 needed"),
        (("prlimit", "--as=690000000"), "690,000,000 bytes of address space, 700,000,000 needed"),
        (("prlimit", "--fsize=20000"), "20,000 bytes in a file, 50,000,000 needed); raise the limit: ulimit -f"),
        ((*MOUNT, NO_TUN.format("true"), "sh"), "/dev/net/tun (No such file or directory); sudo modprobe tun"),
        ((*MOUNT, NO_TUN.format("touch /dev/net/tun"), "sh"), "/dev/net/tun (is no tun device); sudo rm"),
        ((*MOUNT, NO_TUN.format("mknod /dev/net/tun c 1 3"), "sh"), "/dev/net/tun (is no tun device)"),
        ((*MOUNT, NO_TUN.format("mknod /dev/net/tun c 10 251"), "sh"), "/dev/net/tun (No such device"),
        ((*USER, "fakeroot"), "without fakeroot"),
        ((*USER, "prlimit", "--nproc=1"), "raise the limit of processes: ulimit -u"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_lack_is_named_by_run_and_doctor(wrapped: Sequence[str], text: str, folder: Path) -> None:
    assert_one_line(run(["run", "small.yaml", "--out", "out"], wrapped, folder), 3, text)
    assert not (folder / "out").exists()
    done = run(["doctor"], wrapped)
    assert done.returncode == 3
    assert text in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("limit", ["--as=250000000", "--nofile=16"])
@pytest.mark.parametrize("command", ["list", "--help"])
def test_looking_around_works_under_low_limits(command: str, limit: str) -> None:
    done = run([command], ("prlimit", limit))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("memory", "command"), [(250, "describe quickstart"), (450, "predict table2")])
def test_too_little_memory_for_libraries_is_one_line(memory: int, command: str, folder: Path) -> None:
    done = run(command.split(), ("prlimit", f"--as={memory}000000"), folder)
    assert_one_line(done, 3, f"not enough memory: {memory},000,000 bytes of address space")


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


@pytest.mark.parametrize("home", [[], ["HOME=/nowhere"], ["HOME=/proc/self"]], ids=str)
def test_a_user_without_a_home_folder_can_predict(home: list[str], folder: Path) -> None:
    done = run(["predict", "table2"], (*USER, "env", "-i", *home), folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "table2.png").exists()


@pytest.mark.parametrize(
    ("disk", "status", "text"),
    [
        ("size=8k tmpfs disk && head -c 8192 /dev/zero >disk/x", 3, "the disk is full: "),
        ("size=40m tmpfs disk", 3, "disk, 50MB needed; free some, or choose a folder on another disk"),
        ("nr_inodes=1 tmpfs disk", 3, "the disk is full: "),
        ("ro tmpfs disk", 2, "/disk is on a read-only file system, so choose another"),
    ],
)
def test_a_disk_that_is_full_or_read_only_is_named(disk: str, status: int, text: str, folder: Path) -> None:
    mounts = f'mkdir disk; mount -n -t tmpfs -o {disk}; exec "$@"'
    done = run(["run", "small.yaml", "--out", "disk/out"], (*MOUNT, mounts, "sh"), folder)
    assert_one_line(done, status, text)


@pytest.mark.parametrize(("place", "covered"), [("/run", "/run"), ("/dev/shm", "/dev")])
def test_a_model_where_a_run_has_its_own_folder_is_named(place: str, covered: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place) as hidden:
        model = Path(hidden, "gpt.yaml")
        model.write_text((ROOT / "workloads" / "models" / "gpt-1.7b.yaml").read_text())
        workload = {"kind": "gpt", "model": str(model)}
        (folder / "own.yaml").write_text(yaml.safe_dump({**SMALL, "workloads": [workload]}))
        done = run(["run", "own.yaml", "--out", "out"], folder=folder)
    assert_one_line(done, 2, f"workloads.0.model: '{model}' must not be under {covered}")
