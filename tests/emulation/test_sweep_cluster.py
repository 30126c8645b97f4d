"""Sweeps over Dask workers, on machines that are network namespaces joined by a bridge.

    m0 ──┐
    m1 ──┼── bridge ── the scheduler and the sweep, in this namespace
    m2 ──┘

The runs sleep and copy a recorded run, so the tests are of who does what and when. Runs on packets: test_sweep.py.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from shutil import which
from typing import Any

import psutil
import pytest
import yaml

import railyard
from railyard.core.errors import MissingRequirement
from railyard.core.host import SEARCH_PATH
from railyard.results import run_folder
from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually
from tests.emulation.programs import RUN_EXPERIMENT, Program, command_line
from tests.unit.experiments.sweep.test_spec import TINY
from tests.unit.sample_runs import sample_run

pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
from distributed.comm import CommClosedError

from railyard.experiments.sweep import keys
from railyard.experiments.sweep.cluster import Cluster as DaskCluster

ROOT = Path(__file__).parents[2]
HOST = "198.18.0.1"
ADDRESS = f"tls://{HOST}:8786"
GONE = f"error: --on: the Dask scheduler at {ADDRESS} no longer answers; "
KEYS = "sweep.pem"  # in the documentation's commands
RUN_S = 1.0
STARTED_S = 60.0
PRELOAD = """
from railyard.experiments.sweep import machine
SCRIPT = 'echo "$PPID $3" >>{log}; sleep {seconds}; cp -r {sample} "$3"'
machine.program_command = lambda *words: ["sh", "-c", SCRIPT, *words]
"""
OTHER_VERSION = "import railyard; railyard.__version__ = '9.9'"
KEY_START = b"MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg"  # of every private key of its kind (P-256) in PEM
DOCS = (ROOT / "docs" / "sweeps.md").read_text()
DASK_COMMANDS = [
    [f"{sys.executable.rpartition('/')[0]}/dask", *line.replace("SCHEDULER", HOST).split()]
    for line in re.findall(r"^dask (.*)$", DOCS, re.MULTILINE)
]
MACHINE = "mount -n -t tmpfs tmpfs /run && mkdir /run/sshd && echo ready && exec sleep infinity"
SSHD = """
Port 22
HostKey {folder}/.ssh/host
AuthorizedKeysFile {folder}/.ssh/own.pub
StrictModes no
PidFile none
"""
JOB = """
    import os, signal, subprocess
    from railyard.experiments.sweep.cluster import Cluster
    print(cluster.job_script(), flush=True)
    job = subprocess.Popen(["sh", "-c", cluster.job_script()], start_new_session=True)
    found = Cluster(cluster.scheduler_address, keys.load(Path("sweep.pem")))
    print("machines:", len(found.names()))
    found.close()
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
"""
MOMENTS = 10  # at which something is killed


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Cluster:
    """A scheduler, and machines with workers. Whatever was killed is started again by `heal`."""

    def __init__(self, stack: ExitStack, folder: Path, sample: Path) -> None:
        self._stack, self.folder = stack, folder
        self._started_s = scaled(STARTED_S)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.machines: dict[str, list[str]] = {}  # name -> a command line that enters it
        self.preload = folder / "preload.py"
        self.log = folder / "log"  # of the runs: a line with the worker's process id and the run's folder
        self.preload.write_text(PRELOAD.format(seconds=RUN_S, sample=sample, log=self.log))
        (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
        with suppress(MissingRequirement):  # it says that the file was made
            keys.load(folder / KEYS)
        ip("link", "add", "br0", "type", "bridge")
        stack.callback(ip, "link", "del", "br0")
        ip("addr", "add", f"{HOST}/24", "dev", "br0")
        for name in ("lo", "br0"):
            ip("link", "set", name, "up")
        for number in range(3):
            self._add_machine(f"m{number}", address(number))

    def _add_machine(self, name: str, own: str) -> None:
        argv = ["unshare", "--net", "--mount", "sh", "-c", MACHINE]
        holder = self._stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE))
        self._stack.callback(holder.kill)
        assert holder.stdout
        assert holder.stdout.readline() == b"ready\n"
        enter = ["nsenter", "-t", str(holder.pid), "-n", "-m"]
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        ip("link", "set", name, "master", "br0", "up")
        for words in (f"addr add {own}/24 dev eth0", "link set eth0 up", "link set lo up"):
            subprocess.run([*enter, "ip", *words.split()], check=True)
        self.machines[name] = enter

    def heal(self, workers: dict[str, str]) -> None:
        """Start the scheduler, and these workers (name -> machine), unless they live."""
        scheduler, worker = [
            [word.replace(KEYS, str(self.folder / KEYS)) for word in command] for command in DASK_COMMANDS
        ]
        if self.start("scheduler", [], *scheduler, "--host", HOST, "--no-dashboard"):
            for name in workers:  # those of the scheduler before end by themselves, but not at once
                if name in self.processes:
                    self.kill(name)
            self.await_log("scheduler", "Scheduler at:")
        words = [*worker, "--preload", str(self.preload), "--no-dashboard"]
        started = [name for name, machine in workers.items() if self.start(name, self.machines[machine], *words)]
        for name in started:
            self.await_log(name, "Registered to:")

    def start(self, name: str, enter: list[str], *argv: str) -> bool:
        """Start a program; return False if one of this name lives. Its temporary files go with the test's folder."""
        if name in self.processes and self.processes[name].poll() is None:
            return False
        with self.log_of(name).open("wb") as log:
            process = subprocess.Popen(
                [*enter, *argv], cwd=ROOT, env=os.environ | {"TMPDIR": str(self.folder)}, stdout=log, stderr=log
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.processes[name] = process
        return True

    def log_of(self, name: str) -> Path:
        """Return the file with a program's output."""
        return self.folder / f"{name}.log"

    def await_log(self, name: str, text: str) -> None:
        """Wait until a program has written this. To load Dask takes more than 10 s beside other programs."""
        eventually(lambda: text in self.log_of(name).read_text(), self._started_s)

    def done(self) -> list[tuple[int, str]]:
        """Return the worker's process id and the folder's name of each run so far, sentinels included."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(int(pid), Path(folder).name) for pid, folder in lines]

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()


def address(number: int) -> str:
    return f"198.18.0.{10 + number}"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the run that every run of these sweeps copies."""
    path = tmp_path_factory.mktemp("sample") / "run"
    run_folder.save(sample_run(2, 2, 1), path)
    return path


@pytest.fixture
def cluster(tmp_path: Path, sample: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path, sample)


def sweep(cluster: Cluster, out: Path, runs: int, on: str = ADDRESS, retry: str = "") -> Program:
    spec = str(cluster.folder / "tiny.yaml")
    argv = [*RUN_EXPERIMENT, "sweep", spec, "--seeds", f"1..{runs}", "--on", on, "--out", str(out)]
    argv += ["--retry", retry] if retry else []
    argv += ["--keys", str(cluster.folder / KEYS)] if on == ADDRESS else []
    return Program(argv, home=cluster.folder, is_new=on.startswith("ssh:"))  # Dask has read its variables in this one


def records(out: Path, runs: int) -> list[dict[str, Any]]:
    """Return sweep.json of every run, which must be there once and undamaged, in the order of their starts."""
    listed = yaml.safe_load((out / "sweep.yaml").read_text())["runs"]
    assert sorted(run["folder"] for run in listed) == sorted(path.name for path in (out / "runs").iterdir())
    assert len(listed) == runs
    for run in listed:
        assert run_folder.load(out / "runs" / run["folder"]).damaged == []
    found = [json.loads((out / "runs" / run["folder"] / "sweep.json").read_text()) for run in listed]
    return sorted(found, key=lambda record: int(record["start_ns"]))


def took_s(found: list[dict[str, Any]]) -> float:
    return float(max(record["end_ns"] for record in found) - found[0]["start_ns"]) / 1e9


def assert_one_at_a_time(found: list[dict[str, Any]]) -> None:
    for machine in {record["machine"] for record in found}:
        own = [record for record in found if record["machine"] == machine]
        assert all(earlier["end_ns"] <= later["start_ns"] for earlier, later in pairwise(own)), machine


@pytest.mark.alone
def test_three_machines_do_twelve_runs_faster_than_one(cluster: Cluster, tmp_path: Path) -> None:
    """Three workers of one machine, then one worker on each of three; then the workers are idle."""
    cluster.heal({f"a{n}": "m0" for n in range(3)})
    with sweep(cluster, tmp_path / "one", 12) as program:
        assert program.end(120) in (0, 1), program.output
    one = records(tmp_path / "one", 12)
    for n in range(3):
        cluster.kill(f"a{n}")
    cluster.heal({f"w{n}": f"m{n}" for n in range(3)})
    with sweep(cluster, tmp_path / "three", 12) as program:
        assert program.end(120) in (0, 1), program.output
    three = records(tmp_path / "three", 12)
    assert len({record["machine"] for record in one}) == 1
    assert len({record["machine"] for record in three}) == 3
    for found in (one, three):
        assert_one_at_a_time(found)
    print(f"one machine {took_s(one):.2f} s, three {took_s(three):.2f} s: {took_s(one) / took_s(three):.2f}x")
    assert took_s(one) / took_s(three) >= 2.7
    assert idle_share(cluster.processes["w0"].pid) < 0.01


def idle_share(pid: int) -> float:
    """Return the share of a core that a process takes."""
    process, before = psutil.Process(pid), time.monotonic()
    used_s = sum(process.cpu_times()[:2])
    time.sleep(4)
    return (sum(process.cpu_times()[:2]) - used_s) / (time.monotonic() - before)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "moments"), [(0, 3), (1, MOMENTS), (2, MOMENTS), (3, MOMENTS)])
def test_every_run_is_there_once_whatever_is_killed(cluster: Cluster, tmp_path: Path, seed: int, moments: int) -> None:
    """At each random moment a worker, the scheduler or the sweep is killed; then all is started again."""
    dice, workers, runs = random.Random(seed), {f"w{n}": f"m{n}" for n in range(3)}, 12
    kinds: list[Callable[[Program], str]] = [lambda _: dice.choice(list(workers)), lambda _: "scheduler", lambda _: ""]
    out, round_number = tmp_path / "out", 0
    for moment in range(moments):
        cluster.heal(workers)
        with sweep(cluster, out / str(round_number), runs) as program:
            time.sleep(scaled(dice.uniform(2, 10)))
            name = kinds[moment % 3](program)
            if name:
                cluster.kill(name)
                status = program.end(120)
                assert status in ((3, 0, 1) if name == "scheduler" else (0, 1)), program.output
                assert "Traceback" not in program.output
            else:
                program.process.kill()
                program.process.wait()
                status = None
        if status in (0, 1):  # it went to its end: the next moments are of another sweep
            assert_one_at_a_time(records(out / str(round_number), runs))
            round_number += 1
    cluster.heal(workers)
    with sweep(cluster, out / str(round_number), runs) as program:
        assert program.end(120) in (0, 1), program.output
    assert_one_at_a_time(records(out / str(round_number), runs))


def test_scheduler_killed_during_a_result_is_named() -> None:
    found = DaskCluster.__new__(DaskCluster)
    found._where = ADDRESS
    with pytest.raises(MissingRequirement, match=f"the Dask scheduler at {ADDRESS} "):
        found.lost(CommClosedError("in <tcp (closed) connectionpool.gather>: stream is closed"))
    assert not found.stop()


def test_a_kept_run_is_done_again_only_by_retry(cluster: Cluster, tmp_path: Path) -> None:
    """Two workers share a machine; that of the first run, which is over, is killed. Then that run is degraded."""
    cluster.heal({"a0": "m0", "a1": "m0"})
    with sweep(cluster, tmp_path / "out", 4) as program:
        program.await_text("[1/4]", 60)
        _, (pid, first), *_ = cluster.done()
        os.kill(pid, signal.SIGKILL)
        assert program.end(60) in (0, 1), program.output
    records(tmp_path / "out", 4)
    done = [name for _, name in cluster.done()]
    assert done.count(first) == 1, done
    summary = tmp_path / "out" / "runs" / first / "summary.json"
    whole = summary.read_text()
    summary.write_text(json.dumps(json.loads(whole) | {"verdict": "degraded"}))
    for retry, again in (("failed,invalid", []), ("degraded", [first]), ("degraded", [])):
        before = len(cluster.done())
        with sweep(cluster, tmp_path / "out", 4, retry=retry) as program:
            assert program.end(60) in (0, 1), program.output
        assert [name for _, name in cluster.done()[before:]] == again
    assert summary.read_text() == whole


def assert_ends_without_scheduler(cluster: Cluster, out: Path, number: signal.Signals) -> None:
    """Stop or kill the scheduler of a sweep: it ends in one line, and keeps its table."""
    with sweep(cluster, out, 4) as program:
        program.await_text("[1/4]", 60)
        cluster.processes["scheduler"].send_signal(number)
        assert program.end(120) == 3
    assert GONE in program.output
    assert "Traceback" not in program.output
    assert (out / "sweep.parquet").exists()


def test_ctrl_c_leaves_another_sweep_on_the_same_worker(cluster: Cluster, tmp_path: Path) -> None:
    """Then the scheduler is killed under a third one."""
    cluster.heal({"w0": "m0"})
    with sweep(cluster, tmp_path / "one", 12) as one, sweep(cluster, tmp_path / "two", 4) as two:
        one.await_text("[ 2/12]", 120)
        one.process.send_signal(signal.SIGINT)
        assert one.end(60) == 130, one.output
        assert two.end(120) in (0, 1), two.output
    assert "Traceback" not in one.output + two.output
    assert "stopped" not in two.output
    records(tmp_path / "two", 4)
    kept = list((tmp_path / "one" / "runs").iterdir())
    assert 2 <= len(kept) < 12
    assert all(not run_folder.load(folder).damaged for folder in kept)
    assert_ends_without_scheduler(cluster, tmp_path / "three", signal.SIGKILL)


def test_a_sweep_with_a_silent_scheduler_ends_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """A variant: above, the scheduler is killed."""
    cluster.heal({"w0": "m0"})
    assert_ends_without_scheduler(cluster, tmp_path / "out", signal.SIGSTOP)


def test_a_scheduler_without_fitting_workers_gives_one_line(cluster: Cluster, tmp_path: Path) -> None:
    cluster.heal({})
    with sweep(cluster, tmp_path / "out", 2) as program:
        assert program.end(60) == 3
    assert program.output.startswith(f"error: --on: {ADDRESS} has no worker")
    assert program.output.count("\n") == 1
    cluster.preload.write_text(OTHER_VERSION)
    cluster.heal({"w0": "m0"})
    with sweep(cluster, tmp_path / "out", 2) as program:
        assert program.end(60) == 3
    line = rf"error: --on: the worker tls://{address(0)}:\d+ has Railyard 9.9, .* {railyard.__version__}; .*\n"
    assert re.fullmatch(line, program.output)


@pytest.fixture
def sshds(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return `ssh:HOST,HOST`, of two machines with an ssh server; one's own home folder has a key that they take."""
    if not (sshd := which("sshd", path=SEARCH_PATH)):
        pytest.skip("needs sshd: script/bootstrap sshd")
    own = cluster.folder / ".ssh"
    own.mkdir(mode=0o700)
    for name in ("own", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / name)], check=True)
    key = " ".join((own / "host.pub").read_text().split()[:2])
    (own / "known_hosts").write_text(f"{address(0)},{address(1)} {key}\n")
    (own / "config").write_text(f"User root\nIdentityFile {own / 'own'}\n")
    (own / "sshd").write_text(SSHD.format(folder=cluster.folder))
    for machine in ("m0", "m1"):
        cluster.start(f"sshd-{machine}", cluster.machines[machine], sshd, "-D", "-f", str(own / "sshd"))
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", json.dumps([str(cluster.preload)]))
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(cluster.folder))
    return f"ssh:{address(0)},{address(1)}"


def test_workers_are_started_by_ssh_and_end_with_the_sweep(cluster: Cluster, sshds: str, tmp_path: Path) -> None:
    with sweep(cluster, tmp_path / "out", 4, sshds) as program:
        program.await_text("[1/4]", 120)
        assert dask_processes()
        assert not shows_a_key(Path("/proc").glob("[0-9]*/cmdline"))
        assert not shows_a_key(Path("/proc").glob("[0-9]*/environ"))
        assert not shows_a_key(path for path in cluster.folder.rglob("*") if path.name != KEYS)
        assert program.end(120) in (0, 1), program.output
    assert KEY_START not in program.output.encode()
    assert not shows_a_key((tmp_path / "out").rglob("*"))
    found = records(tmp_path / "out", 4)
    assert len({record["machine"] for record in found}) == 2
    assert_one_at_a_time(found)
    eventually(lambda: not dask_processes(), 20)


def test_a_host_that_refuses_a_login_gives_one_line(cluster: Cluster, sshds: str, tmp_path: Path) -> None:
    (cluster.folder / ".ssh" / "own").unlink()
    with sweep(cluster, tmp_path / "out", 2, sshds) as program:
        assert program.end(60) == 3
    assert f" {address(0)}: " in program.output
    assert program.output.count("\n") == 1


def test_processes_of_ssh_end_after_a_killed_sweep(cluster: Cluster, sshds: str, tmp_path: Path) -> None:
    with sweep(cluster, tmp_path / "out", 12, sshds) as program:
        program.await_text("[ 2/12]", 60)
        assert dask_processes()
        program.process.kill()
    eventually(lambda: not dask_processes(), 20)


def shows_a_key(paths: Iterable[Path]) -> list[Path]:
    """Return the files that have a private key of a sweep in them."""
    shown = []
    for path in paths:
        with suppress(OSError):  # folders, and files of processes that have ended
            if KEY_START in path.read_bytes():
                shown.append(path)
    return shown


def dask_processes() -> list[psutil.Process]:
    return [
        process for process in psutil.process_iter() if "railyard.experiments.sweep.remote" in command_line(process)
    ]


def test_the_script_of_a_slurm_job_starts_a_worker(tmp_path: Path) -> None:
    """The documentation's cluster, with what Slurm would be given to run on a node. There is no Slurm here."""
    pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue: script/bootstrap cluster")
    (block,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    script = block.partition("    cluster.scale")[0] + JOB
    with suppress(MissingRequirement):  # it says that the file was made
        keys.load(tmp_path / KEYS)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\n#SBATCH --exclusive\n" in done.stdout
    assert done.stdout.endswith("machines: 1\n")
