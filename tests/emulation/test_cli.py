"""The commands on real fabrics, as a user types them: a shell, a look into it from elsewhere, and its end any way."""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually
from tests.emulation.programs import (
    ROOT,
    RUN_EXPERIMENT,
    USER,
    Program,
    as_root,
    as_user,
    assert_as_before,
    command_line,
    finished,
    machine_state,
)
from tests.emulation.runs import FILES, Stored, overrides, run_command

SMALL = ("-o", "domains=2", "-o", "rails=2", "-o", "rail_rate=10Mbit")
SHELL = (*RUN_EXPERIMENT, "shell", "moe-slowdown", *SMALL)
PROMPT = "mininet>"
NO_RUN = "no run is alive\n"
FULL = "error: the disk is full: "
SLEEPS = ["sleep", "1000"]
BUILT_S = 60.0
SOON_S = 30.0
Wrap = Callable[[Sequence[str]], Sequence[str]]
WHO: dict[str, Wrap] = {"root": as_root, "user": as_user}


@pytest.fixture(params=WHO)
def who(request: pytest.FixtureRequest) -> Wrap:
    return WHO[request.param]


MININET_COMMANDS = (
    ("dpctl dump-flows", "dl_dst="),
    ("dpctl no-such-command", "unknown command 'no-such-command'"),
    ("link d0g0 rail0 down", PROMPT),
    ("links", "d0g0-rail0<->rail0-d0g0  (no carrier, down)"),
    ("link d0g0 rail0 up", PROMPT),
    ("switch rail1 stop", PROMPT),
    ("switch hb0 stop", "hb0 is a Linux bridge, which can't be stopped"),
    ("switch rail1 start", PROMPT),
    ("iperf d0g0 nowhere", "node 'nowhere' not in network"),
    ("py net.iperf(seconds=1)", "*** Results: ['"),
    ("py net.iperf(l4Type='UDP', udpBw='2M', seconds=1)", "*** Results: ['2M', '"),
    ("x nowhere", "x: KeyError: 'nowhere'"),
)
"""Commands of Mininet's CLI, and what each must print."""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that an ordinary user may write: pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def command(*words: str, who: Wrap = as_root, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """A command of run_experiment.py, to its end."""
    return finished(who([*RUN_EXPERIMENT, *words]), 180.0, cwd=cwd)


def test_fabric_of_a_shell_is_seen_from_another_terminal(who: Wrap, everybodys: Path) -> None:
    with Program(who(SHELL), home=everybodys) as shell:
        shell.await_text(PROMPT, BUILT_S)
        shell.type("d0g0 ping -c 1 -W 10 d1g1")
        shell.await_text(" 0% packet loss", SOON_S)
        assert "shell-moe-slowdown" in command("ps").stdout
        looked = command("exec", "moe-slowdown", "d1g1", "ip", "-o", "-4", "addr", "show", "lo")
        assert "198.18.2.1/32" in looked.stdout
        assert command("exec", "shell-moe-slowdown", "rail1", "sh", "-c", "exit 7").returncode == 7
        nowhere = command("exec", "moe-slowdown", "d9g9", "true")
        assert nowhere.returncode == 2
        assert nowhere.stderr.startswith("error: GPU: 'd9g9' ")
        for line, printed in MININET_COMMANDS:
            shell.type(line)
            shell.await_text(printed, SOON_S)
        shell.type("exit")
        assert shell.end(SOON_S) == 0
    assert "Traceback" not in shell.output
    assert not list(everybodys.iterdir()), "something was left in the home folder"
    assert command("ps").stdout == NO_RUN


def test_a_user_looks_into_a_run_of_their_own() -> None:
    with Program(as_user(SHELL)) as shell:
        shell.await_text(PROMPT, BUILT_S)
        looked = command("exec", "moe-slowdown", "d1g1", "cat", "/proc/1/comm", who=lambda argv: [*USER, *argv])
        assert looked.stderr == ""
        assert looked.stdout.startswith("python")


def test_two_shells_of_a_user_are_told_apart_by_name() -> None:
    """As two students' with sudo: both are root's, and another user sees neither."""
    with Program([*SHELL, "--name", "lab1-ada"]) as ada, Program([*SHELL, "--name", "lab1-bob"]) as bob:
        for name, shell in (("lab1-ada", ada), ("lab1-bob", bob)):
            shell.await_text(PROMPT, BUILT_S)
            assert command("exec", name, "d1g1", "touch", f"/tmp/{name}").returncode == 0
        assert command("exec", "lab1-bob", "d1g1", "ls", "/tmp/lab1-ada").returncode != 0
        assert command("exec", "lab1-ada", "d1g1", "ls", "/tmp/lab1-ada").returncode == 0
        assert "may be several: " in command("exec", "moe-slowdown", "d1g1", "true").stderr
        assert command("ps", who=lambda argv: [*USER, *argv]).stdout == NO_RUN


def test_shell_passes_ctrl_c_on_and_ends_at_sigterm() -> None:
    with Program(SHELL) as shell:
        shell.await_text(PROMPT, BUILT_S)
        shell.type(f"d0g0 {' '.join(SLEEPS)}")
        outer = psutil.Process(shell.process.pid)
        eventually(lambda: SLEEPS in map(command_line, outer.children(recursive=True)), SOON_S)
        os.killpg(shell.process.pid, signal.SIGINT)
        shell.await_text(PROMPT, SOON_S)
        shell.process.send_signal(signal.SIGTERM)
        assert shell.end(SOON_S) == 143


def test_kill_9_at_any_moment_leaves_nothing_of_a_fabric(who: Wrap) -> None:
    """While it starts, while the fabric is built, while it runs."""
    before, seed = machine_state(), random.randrange(1_000_000)
    dice = random.Random(seed)
    for _ in range(5):
        delay_s = dice.uniform(0.0, scaled(2.0))
        with Program(who(SHELL)) as shell:
            time.sleep(delay_s)
            shell.process.kill()
            shell.process.wait()
            try:
                assert_as_before(before)
            except AssertionError as left:
                raise AssertionError(f"killed after {delay_s:.3f} s (seed {seed}): {left}") from left


def test_stopped_run_keeps_its_records(tmp_path: Path) -> None:
    changes = overrides("domains=2", "rails=3", "rail_rate=5Mbit", "repeats=100", "attempts=1")
    with Program(run_command("collectives", tmp_path, *changes)) as run:
        eventually(lambda: "6 GPUs" in command("ps").stdout, 40)
        outer = psutil.Process(run.process.pid)
        eventually(lambda: has_begun_to_measure(outer), BUILT_S)
        time.sleep(0.5)
        run.process.send_signal(signal.SIGTERM)
        assert run.end(60) == 143
    assert "Traceback" not in run.output
    stored = Stored(tmp_path / "out")
    assert stored.summary["interrupted"] is True
    assert {path.name for path in stored.folder.iterdir()} >= FILES


def has_begun_to_measure(run: psutil.Process) -> bool:
    return any("railyard.workloads.replay.worker" in command_line(process) for process in run.children(recursive=True))


def test_a_full_disk_is_status_3_before_anything_is_built(tmp_path: Path) -> None:
    script = f'mount -n -t tmpfs -o size=1m tmpfs {tmp_path} && exec "$@"'
    done = command(
        "run", "quickstart", "--out", str(tmp_path / "o"), who=lambda a: ["unshare", "-m", "sh", "-c", script, "sh", *a]
    )
    assert done.returncode == 3
    assert done.stderr.startswith(FULL)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_user_who_may_not_write_or_open_tun_gets_one_line(tmp_path: Path, everybodys: Path) -> None:
    roots = tmp_path / "x"
    done = command("run", "quickstart", "--out", str(roots), who=as_user)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --out: '{roots}' can't be ")
    script = 'mount -n -t tmpfs tmpfs /dev/net && exec "$@"'
    no_tun = ["unshare", "-m", "sh", "-c", script, "sh", *USER]
    done = command("run", "quickstart", "--out", str(everybodys / "o"), who=lambda a: [*no_tun, *a])
    assert done.returncode == 3
    assert done.stderr.startswith("error: this machine lacks /dev/net/tun")
    assert not (everybodys / "o").exists()
