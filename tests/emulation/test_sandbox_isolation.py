"""Isolation of a GPU's process from the machine: its name, IPC, sockets, settings, devices, clock and processes.

Two runs, of root and of a user, stand beside services of the machine, some of which were there before them. A program
that waits in a GPU of each starts the programs of the tests there.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.emulation.programs import (
    ROOT,
    RUN_EXPERIMENT,
    SANDBOXED,
    USER,
    Program,
    as_root,
    as_user,
    assert_as_before,
    machine_state,
)
from tests.emulation.test_cli import Wrap, command

WITHIN_S = 30.0
IN_SANDBOX = (SANDBOXED[0], "-m", "railyard.core.sandbox")
USUAL = ("/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm")  # /var/run leads to /run
WHO: dict[str, Wrap] = {"root": as_root, "user": as_user}
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace('@', chr(0)))"
STARTER = """
import json, subprocess, sys
for line in sys.stdin:
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "close_fds": False}
    done = subprocess.run(json.loads(line), **options)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""
Gpu = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass
class Machine:
    """What was there before the runs: sockets by the kind of their place, a message queue of each kind."""

    sockets: Mapping[str, Sequence[str]]
    folder: str
    system_v_queue: str
    posix_queue: str


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    unique = uuid4().hex  # process IDs are alike in namespaces of their own
    with ExitStack() as services:
        other = services.enter_context(tempfile.TemporaryDirectory(dir="/opt"))
        Path(other).chmod(0o755)
        Path(other, "file").write_text("seen")
        sockets = {
            "usual": [f"{folder}/railyard-test-before{n}-{unique}.sock" for n, folder in enumerate(USUAL)],
            "elsewhere": [f"{ROOT}/railyard-test-{unique}.sock", f"{other}/service.sock"],
            "abstract": [f"@railyard-test-{unique}"],
        }
        for paths in sockets.values():
            for path in paths:
                services.enter_context(listening(path))
        queue = services.enter_context(system_v_queue())
        yield Machine(sockets, other, queue, services.enter_context(posix_queue()))


@pytest.fixture(scope="module", params=WHO)
def gpu(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Gpu]:
    """Run a command in a GPU of a run of theirs."""
    before = machine_state()
    with Program(WHO[request.param]([*SANDBOXED, "stand"])) as program:
        program.await_text("waiting", WITHIN_S)
        inside = [*RUN_EXPERIMENT, "exec", f"stand-{program.process.pid}", "d0g1", sys.executable, "-c", STARTER]
        with subprocess.Popen(inside, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:

            def run(*words: str) -> "subprocess.CompletedProcess[str]":
                assert starter.stdin
                assert starter.stdout
                starter.stdin.write(json.dumps(words) + "\n")
                starter.stdin.flush()
                status, stdout, stderr = json.loads(starter.stdout.readline())
                return subprocess.CompletedProcess(words, status, stdout, stderr)

            assert run("true").returncode == 0  # its processes are there now, before a test looks at what it leaves
            yield run
    assert_as_before(before)


@contextmanager
def listening(path: str) -> Iterator[None]:
    """A service of the machine's, which all users may reach."""
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path.replace("@", "\0"))
        service.listen()
        try:
            if not path.startswith("@"):
                Path(path).chmod(0o777)
            yield
        finally:
            if not path.startswith("@"):
                Path(path).unlink()


@contextmanager
def system_v_queue() -> Iterator[str]:
    """A message queue of System V that all users may use: its number."""
    made = subprocess.run(["ipcmk", "-Q", "-p", "0666"], capture_output=True, text=True, check=True).stdout.split()[-1]
    try:
        yield made
    finally:
        subprocess.run(["ipcrm", "-q", made], check=True)


@contextmanager
def posix_queue() -> Iterator[str]:
    """A POSIX message queue that all users may use: its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    name = f"/railyard-test-{uuid4().hex}"
    old = os.umask(0)
    queue = libc.mq_open(name.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    os.umask(old)
    assert queue >= 0
    try:
        yield name
    finally:
        libc.mq_unlink(name.encode())
        libc.mq_close(queue)


def reaches(run: Callable[..., "subprocess.CompletedProcess[str]"], path: str) -> bool:
    done = run(sys.executable, "-c", CONNECT, path)
    assert done.returncode == 0 or "FileNotFoundError" in done.stderr or "ConnectionRefusedError" in done.stderr, done
    return done.returncode == 0


def outside(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*USER, *words], capture_output=True, text=True, check=False)


def test_a_hostname_that_a_gpu_sets_is_the_runs_alone(gpu: Gpu) -> None:
    before = socket.gethostname()
    try:
        assert gpu("sh", "-c", "hostname railyard-test && hostname").stdout == "railyard-test\n"
        assert socket.gethostname() == before
        assert gpu("hostname").stdout == "railyard-test\n"
    finally:
        socket.sethostname(before)


def test_system_v_ipc_of_the_machine_is_out_of_reach(gpu: Gpu, machine: Machine) -> None:
    made = machine.system_v_queue
    assert gpu("ipcs", "-q", "-i", made).stdout.strip() == ""
    assert gpu("ipcrm", "-q", made).returncode != 0
    assert gpu("ipcmk", "-Q").returncode == 0
    listed = subprocess.run(["ipcs", "-q"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in listed.splitlines() if line.startswith("0x")] == [made]


def test_posix_queues_of_the_machine_are_out_of_reach(gpu: Gpu, machine: Machine) -> None:
    """Opened by name, which needs no mount of them."""
    code = f"import ctypes; raise SystemExit(ctypes.CDLL(None).mq_open({machine.posix_queue!r}.encode(), 0) < 0)"
    assert outside(sys.executable, "-c", code).returncode == 0
    assert gpu(sys.executable, "-c", code).returncode == 1


def test_sockets_in_usual_places_are_out_of_reach(gpu: Gpu, machine: Machine) -> None:
    """Also those that a service makes while the run is going on."""
    during = [f"{folder}/railyard-test-during{n}-{uuid4().hex}.sock" for n, folder in enumerate(USUAL)]
    with ExitStack() as services:
        for path in during:
            services.enter_context(listening(path))
        paths = [*machine.sockets["usual"], *during]
        assert [path for path in paths if not reaches(outside, path)] == []
        assert [path for path in paths if reaches(gpu, path)] == []


def test_existing_socket_elsewhere_is_hidden(gpu: Gpu, machine: Machine) -> None:
    """In the working folder and in a folder that is no usual place; files beside it stay visible."""
    for path in machine.sockets["elsewhere"]:
        assert reaches(outside, path)
        assert not reaches(gpu, path)
    assert gpu("cat", f"{machine.folder}/file").stdout == "seen"


def test_abstract_sockets_of_the_machine_are_out_of_reach(gpu: Gpu, machine: Machine) -> None:
    (path,) = machine.sockets["abstract"]
    assert reaches(outside, path)
    assert not reaches(gpu, path)


def test_settings_of_the_machine_cannot_be_written(gpu: Gpu) -> None:
    for setting in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/sys/class/net/lo/ifalias"):
        before = Path(setting).read_text()
        done = gpu("sh", "-c", f"cat {setting} >/tmp/value; cat /tmp/value >{setting}")
        assert done.returncode != 0, setting
        assert "Read-only" in done.stderr or "denied" in done.stderr, setting
        assert Path(setting).read_text() == before


def test_a_network_setting_of_a_gpu_is_its_own(gpu: Gpu) -> None:
    setting = Path("/proc/sys/net/ipv4/ip_default_ttl")
    before = setting.read_text()
    assert gpu("sh", "-c", f"echo 33 >{setting} && cat {setting}").stdout == "33\n"
    assert setting.read_text() == before


def test_cgroups_of_the_machine_cannot_be_changed(gpu: Gpu) -> None:
    made = gpu("sh", "-c", "find /sys/fs/cgroup -maxdepth 1 -type d -exec mkdir {}/railyard-test ';'")
    left = [*Path("/sys/fs/cgroup").glob("railyard-test"), *Path("/sys/fs/cgroup").glob("*/railyard-test")]
    for folder in left:
        folder.rmdir()
    assert not left
    assert "Read-only" in made.stderr or not Path("/sys/fs/cgroup").is_dir()


def test_only_stateless_devices_exist(gpu: Gpu) -> None:
    """No disk, no kernel memory, no log, and no terminal of another program; none can be made."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "net", "pts", "shm", "mqueue"}
    assert set(gpu("ls", "/dev").stdout.split()) == harmless | {"fd", "stdin", "stdout", "stderr"}
    assert gpu("ls", "/dev/pts", "/dev/shm", "/dev/mqueue").stdout.split() == [
        "/dev/mqueue:", "/dev/pts:", "ptmx", "/dev/shm:"
    ]  # fmt: skip
    assert "not permitted" in gpu("mknod", "/tmp/disk", "b", "7", "0").stderr
    assert gpu(sys.executable, "-c", "import os; print(os.ttyname(os.openpty()[1]))").stdout == "/dev/pts/0\n"


def test_the_clock_of_the_machine_cannot_be_set(gpu: Gpu) -> None:
    assert "not permitted" in gpu("sh", "-c", "date -s @$(date +%s)").stderr


@pytest.mark.parametrize("who", WHO)
def test_processes_of_the_machine_are_out_of_reach(who: str) -> None:
    """A program sees none of them, so it can't trace one, and a signal to all processes ends those of the run alone."""
    with subprocess.Popen([*USER, "sleep", "98765"]) as service:
        try:
            with Program(WHO[who]([*SANDBOXED, "stand"])) as program:
                program.await_text("waiting", WITHIN_S)
                run = ("exec", f"stand-{program.process.pid}", "d0g1", "sh", "-c")
                processes = command(*run, "cat /proc/[0-9]*/cmdline; kill -9 -1").stdout.split("\0")
            assert "98765" not in processes
            assert "1000" in processes, "the run's own"
            assert service.poll() is None
        finally:
            service.kill()


def test_a_program_in_a_gpu_has_no_open_file_of_the_run(gpu: Gpu) -> None:
    assert gpu("ls", "/proc/self/fd").stdout.split() == ["0", "1", "2", "3"], "3 is the folder that ls reads"


def test_files_of_a_run_in_tmp_end_with_the_run(gpu: Gpu) -> None:
    """While it goes on, every GPU of it sees the same /tmp."""
    assert gpu("sh", "-c", "echo mine >/tmp/railyard-test-file").returncode == 0
    assert gpu("cat", "/tmp/railyard-test-file").stdout == "mine\n"
    assert not Path("/tmp/railyard-test-file").exists()


def test_relative_path_in_tmp_leads_to_no_hidden_socket() -> None:
    """From /tmp, a relative path would else lead past what covers it."""
    path = f"/tmp/railyard-test-{uuid4().hex}.sock"
    line = [*IN_SANDBOX, "sh", "-c", f"pwd; ls {Path(path).name}"]
    with listening(path):
        done = subprocess.run(
            line, cwd="/tmp", env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
        )
    assert done.stdout == "/tmp\n"
    assert "No such file" in done.stderr


@pytest.mark.parametrize("who", WHO.values(), ids=WHO)
def test_a_folder_in_tmp_that_is_needed_is_there(who: Wrap) -> None:
    """The working folder with all that is below it, and none beside it."""
    with tempfile.TemporaryDirectory() as needed, tempfile.TemporaryDirectory() as beside:
        for name in (needed, beside):
            Path(name).chmod(0o777)
        Path(needed, "deep").mkdir()
        Path(needed, "deep", "file").write_text("seen")
        line = [*IN_SANDBOX, "sh", "-c", f"cat deep/file; touch new; ls -d {beside}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(who(line), cwd=needed, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "seen"
        assert "No such file" in done.stderr
        assert Path(needed, "new").exists()
