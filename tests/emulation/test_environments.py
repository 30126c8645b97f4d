"""Hostile environments: each is one line with what is wrong and a remedy, and status 2 or 3; harmless ones work.

The environments are real: resource limits, locales, closed and full streams, and mounts in a mount namespace.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from railyard.results import run_folder
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, USER, as_user
from tests.emulation.runs import small_spec

MOUNT = ("unshare", "--mount", "sh", "-c")
NO_TUN = 'mount -n -t tmpfs -o dev tmpfs /dev/net && {} && exec "$@"'
# another file system on /tmp, where the checkout may be; "$0" is the folder
TMP = f"""mkdir "$0/kept" && mount -n --rbind "{ROOT}" "$0/kept" && mount -n -t tmpfs -o size=1m tmpfs /tmp &&
mkdir -p "{ROOT}" && mount -n --rbind "$0/kept" "{ROOT}" && {{}}; cd "$0" && exec "$@\""""
FULL_TMP = TMP.format("head -c 2000000 /dev/zero 2>&- >/tmp/full")
READ_ONLY_TMP = TMP.format("mount -n -o remount,ro /tmp")
# a file system for a run's folder, changed as soon as the run has made the folder
DISK = """mkdir -p disk && mount -n -t tmpfs -o size=60m,mode=1777 tmpfs disk && {{ "$@" & }} &&
while [ ! -d disk/out ]; do sleep 0.05; done; {}; wait $!"""
ANOTHER = ("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups")  # the machine has no entry for this user
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}

LACKS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "32 files": (["prlimit", "--nofile=32"], ["32 open files", "ulimit -n"]),
    "255 files": (["prlimit", "--nofile=255"], ["255 open files", "ulimit -n"]),
    "300 MB": (["prlimit", "--as=300000000"], ["300,000,000 bytes", "700,000,000 needed"]),
    "690 MB": (["prlimit", "--as=690000000"], ["690,000,000 bytes", "700,000,000 needed"]),
    "small files": (["prlimit", "--fsize=20000"], ["20,000 bytes", "ulimit -f"]),
    "no tun": ([*MOUNT, NO_TUN.format("true"), "sh"], ["/dev/net/tun (No such file", "sudo modprobe tun"]),
    "tun is a file": ([*MOUNT, NO_TUN.format("touch /dev/net/tun"), "sh"], ["is no tun device", "sudo rm"]),
    "tun is null": ([*MOUNT, NO_TUN.format("mknod /dev/net/tun c 1 3"), "sh"], ["is no tun device"]),
    "tun has no driver": ([*MOUNT, NO_TUN.format("mknod /dev/net/tun c 10 251"), "sh"], ["No such device"]),
    "fakeroot": ([*USER, "fakeroot"], ["without fakeroot"]),
    "12 processes": ([*USER, "unshare", "--map-root-user", "prlimit", "--nproc=12"], ["12 processes"]),
    "59 processes": ([*USER, "prlimit", "--nproc=59"], ["59 processes", "ulimit -u"]),
}
"""What an environment lacks: the program that takes it away, and figures and remedies of the message."""
FULL_STDOUT = "stdout: can't be written (no space left on device)"
FULL_DISK = "the disk is full: "
DISKS = {
    "full": ("size=8k tmpfs disk && head -c 8192 /dev/zero >disk/x", 3, FULL_DISK),
    "small": ("size=40m tmpfs disk", 3, "50MB needed"),
    "no inodes": ("nr_inodes=1 tmpfs disk", 3, FULL_DISK),
    "read-only": ("ro tmpfs disk", 2, "read-only file system"),
}
"""File systems: how one is mounted, the exit status of a run into it, and words of the message."""
IN_THE_SANDBOX = """
import os

def crash(*_):
    raise ZeroDivisionError("in the sandbox")

if os.getpid() == 1:
    from railyard.experiments.run import measuring

    measuring.check_links = crash
"""
IN_A_WORKER = """
import sys

if "railyard.workloads.replay.worker" in sys.orig_argv:
    from railyard.topologies.build import namespaces

    def crash(name):
        raise ZeroDivisionError("in a worker")

    namespaces.inside = crash
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        (Path(name) / "small.yaml").write_text(yaml.safe_dump(small_spec()))
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


def assert_one_line(done: "subprocess.CompletedProcess[str]", status: int, *texts: str) -> None:
    """Assert on the exit status, and that one line on stderr has the texts."""
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert [text for text in texts if text not in done.stderr] == [], done.stderr


@pytest.mark.parametrize("lack", LACKS)
def test_a_lack_is_named_by_a_run(lack: str, folder: Path) -> None:
    wrapped, texts = LACKS[lack]
    assert_one_line(run(["run", "small.yaml", "--out", "out"], wrapped, folder), 3, *texts)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("lack", ["255 files", "tun is a file", "59 processes"])
def test_a_lack_is_named_by_doctor(lack: str) -> None:
    wrapped, texts = LACKS[lack]
    done = run(["doctor"], wrapped)
    assert done.returncode == 3
    report = " ".join((done.stdout + done.stderr).split())
    assert [text for text in texts if text not in report] == []


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("list", "--as=900000000"),  # it parses experiments, for which NumPy is loaded
        ("list", "--nofile=16"),
        ("--help", "--as=250000000"),
        ("--help", "--nofile=16"),
    ],
)
def test_looking_around_works_under_low_limits(command: str, limit: str) -> None:
    done = run([command], ("prlimit", limit))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("memory", "command"), [(250, "describe quickstart"), (450, "predict table2")])
def test_too_little_memory_for_libraries_is_one_line(memory: int, command: str, folder: Path) -> None:
    done = run(command.split(), ("prlimit", f"--as={memory}000000"), folder)
    assert_one_line(done, 3, f"{memory},000,000 bytes")


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


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_is_full_or_read_only_is_named(disk: str, folder: Path) -> None:
    options, status, text = DISKS[disk]
    mounts = f'mkdir disk; mount -n -t tmpfs -o {options}; exec "$@"'
    done = run(["run", "small.yaml", "--out", "disk/out"], (*MOUNT, mounts, "sh"), folder)
    assert_one_line(done, status, text)


@pytest.mark.parametrize(("place", "covered"), [("/run", "/run"), ("/dev/shm", "/dev")])
def test_a_model_where_a_run_has_its_own_folder_is_named(place: str, covered: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place) as hidden:
        model = Path(hidden, "gpt.yaml")
        model.write_text((ROOT / "workloads" / "models" / "gpt-1.7b.yaml").read_text())
        workload = {"kind": "gpt", "model": str(model)}
        (folder / "own.yaml").write_text(yaml.safe_dump(small_spec(workloads=[workload])))
        done = run(["run", "own.yaml", "--out", "out"], folder=folder)
    assert_one_line(done, 2, f"workloads.0.model: '{model}'", f"under {covered}")


@pytest.mark.long
@pytest.mark.parametrize("mounts", [FULL_TMP, READ_ONLY_TMP], ids=["full", "read-only"])
def test_a_run_with_an_unusable_tmp_and_a_full_stdout_is_kept(mounts: str, folder: Path) -> None:
    """Variants: other tests have a full disk, and a full stdout."""
    without_output = f"""{mounts.replace('exec "$@"', 'exec "$@" >/dev/full')}"""
    done = run(["run", "small.yaml", "--out", "out"], (*MOUNT, without_output, str(folder)), folder)
    assert_one_line(done, 1, FULL_STDOUT)
    assert (folder / "out" / "report.html").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("head -c 100M /dev/zero >disk/x 2>&-", "(spec.yaml: No space left"),
        ("mount -n -o remount,ro disk", "(spec.yaml: Read-only"),
    ],
)
def test_records_are_kept_elsewhere_when_the_disk_fails(change: str, why: str, folder: Path) -> None:
    """Variants: the next test has a full disk, test_folder_lost.py reads what is kept in the state folder."""
    command = ["run", "small.yaml", "--out", "disk/out", "--quiet"]
    variables = {"XDG_STATE_HOME": str(folder / "state")}
    done = run(command, (*MOUNT, DISK.format(change), "sh"), folder, variables)
    assert_one_line(done, 1, "disk/out", why, f"{folder}/state/railyard/out-")
    assert "fidelity" in done.stdout
    (kept,) = (folder / "state" / "railyard").iterdir()
    assert not run_folder.load(kept).damaged
    assert run_folder.load(kept).flows


@pytest.mark.long
def test_a_user_without_home_and_entry_loses_no_records(folder: Path) -> None:
    user = (*as_user([])[: -len(USER)], *ANOTHER, "env", "-u", "HOME")
    full = DISK.format("head -c 100M /dev/zero >disk/x 2>&-")
    done = run(["run", "small.yaml", "--out", "disk/out"], (*MOUNT, full, "sh", *user), folder)
    assert_one_line(done, 1, " /var/tmp/out-")
    shutil.rmtree(done.stderr.rpartition(" ")[2].strip())


@pytest.mark.long
def test_a_sandbox_with_one_user_id_is_enough(folder: Path) -> None:
    """And an ASCII locale."""
    wrapped = as_user(["unshare", "--user", "--map-root-user"])
    done = run(["run", "small.yaml", "--out", "out"], wrapped, folder, ASCII)
    assert done.returncode in (0, 1), done.stderr
    assert "fidelity" in done.stdout
    assert (done.stdout + done.stderr).isascii()
    assert (folder / "out" / "report.html").exists()


def test_a_shell_with_a_full_stdout_is_one_line(folder: Path) -> None:
    done = run(["shell", "small.yaml"], ("sh", "-c", 'exec "$@" >/dev/full', "sh"), folder)
    assert done.stderr.startswith("Mininet's CLI.")
    assert done.stderr.splitlines()[-1].startswith(f"error: {FULL_STDOUT}")
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("code", "where"),
    [(IN_THE_SANDBOX, "in the sandbox"), (IN_A_WORKER, "in a worker")],
)
def test_a_crash_has_a_report_and_keeps_records(code: str, where: str, folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(code)
    command = ["run", "small.yaml", "--out", "out", "--quiet"]
    variables = {"TMPDIR": str(folder), "PYTHONPATH": str(folder), "SECRET": "hunter2"}
    done = run(command, folder=folder, variables=variables)
    assert_one_line(done, 70, f"ZeroDivisionError: {where} ", f"{folder}/railyard-crash-")
    (report,) = folder.glob("railyard-crash-*.txt")
    text = report.read_text()
    assert "in crash" in text
    assert "'rail_rate': '10Mbit'" in text
    assert "hunter2" not in text
    assert (folder / "out" / "run.json").exists()
