"""The sandbox from outside: nothing of the machine is touched, signals arrive, and whatever is killed, nothing is left.

outer ── unshare ── inner (process 1) ── sleep
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.emulation.programs import ROOT, SANDBOXED, Program, as_root, as_user, assert_as_before, machine_state

Wrap = Callable[[Sequence[str]], Sequence[str]]
WHO: dict[str, Wrap] = {"root": as_root, "user": as_user}
WITHIN_S = 30.0


@pytest.fixture(params=WHO)
def who(request: pytest.FixtureRequest) -> Wrap:
    return WHO[request.param]


def outer_of(program: Program) -> psutil.Process:
    """Our own outer process: `as_user` becomes it by exec, through unshare, sh and setpriv."""
    return psutil.Process(program.process.pid)


def waiting(who: Wrap = as_root) -> Program:
    program = Program(who([*SANDBOXED, "wait"]))
    program.await_text("waiting", WITHIN_S)
    return program


def test_sandbox_shows_its_own_only_and_returns_exit_status(who: Wrap) -> None:
    forward = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    with Program(who([*SANDBOXED, "look"])) as program:
        assert program.end(WITHIN_S) == 5
    seen = json.loads(program.output)
    assert seen["interfaces"] == ["lo", "veth-peer", "veth-test"]
    assert seen["run"] == ["railyard"]
    assert seen["scratch"].startswith("/run/railyard/tmp/")
    assert (seen["pid"], seen["uid"], seen["processes"]) == (1, 0, ["1"])
    assert seen["cwd"] == str(ROOT)
    assert seen["d1g2"] == "198.18.4.1"
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == forward


def test_machine_gets_no_mount_interface_or_file_during_a_run(who: Wrap) -> None:
    before = machine_state()
    with waiting(who):
        during = machine_state()
        assert not during["mount"] - before["mount"]
        assert not during["file"] - before["file"]
        assert len(during["process"]) > len(before["process"]), "or nothing would ever be found missing"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_reaches_the_inner_which_puts_things_away(who: Wrap, number: signal.Signals, status: int) -> None:
    with waiting(who) as program:
        program.process.send_signal(number)
        assert program.end(WITHIN_S) == status
    assert f"put away after {number.name}" in program.output


def test_ctrl_c_sent_to_all_processes_counts_once(who: Wrap) -> None:
    with waiting(who) as program:
        os.killpg(program.process.pid, signal.SIGINT)
        assert program.end(WITHIN_S) == 130
    assert program.output.count("put away") == 1
    assert "once more" not in program.output


def test_early_signal_is_not_lost(who: Wrap) -> None:
    """While Python starts, the default action of SIGTERM ends it: also 143, as a shell sees it."""
    for delay_ms in range(0, 400, 80):
        with Program(who([*SANDBOXED, "wait"])) as program:
            time.sleep(delay_ms / 1000)
            program.process.send_signal(signal.SIGTERM)
            assert program.end(WITHIN_S) in (143, -signal.SIGTERM), f"after {delay_ms} ms"


def test_kill_9_of_the_outer_leaves_nothing_at_any_moment(who: Wrap) -> None:
    before, dice = machine_state(), random.Random(1)
    for delay_s in (dice.uniform(0, 0.4) for _ in range(6)):
        with Program(who([*SANDBOXED, "wait"])) as program:
            time.sleep(delay_s)
            program.process.kill()
            program.process.wait()
            assert_as_before(before)


def test_kill_9_of_unshare_or_of_the_inner_ends_the_outer(who: Wrap) -> None:
    before = machine_state()
    for depth in (0, 1):
        with waiting(who) as program:
            [unshare] = outer_of(program).children()
            victim = [unshare, *unshare.children()][depth]
            victim.kill()
            assert program.end(WITHIN_S) == 137
            assert_as_before(before)


def test_a_stopped_unshare_or_inner_is_named_and_continued(who: Wrap) -> None:
    for depth in (0, 1):
        with waiting(who) as program:
            [unshare] = outer_of(program).children()
            [unshare, *unshare.children()][depth].suspend()
            program.await_text("process was stopped", WITHIN_S)
            program.process.send_signal(signal.SIGTERM)
            assert program.end(WITHIN_S) == 143


def test_kill_9_of_sudo_ends_all(tmp_path: Path) -> None:
    """A script of that name stands for sudo: a parent that waits."""
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    sudo.chmod(0o755)
    before = machine_state()
    with Program([str(sudo), *SANDBOXED, "wait"]) as program:
        program.await_text("waiting", WITHIN_S)
        program.process.kill()
        program.process.wait()
        assert_as_before(before)


def test_under_nohup_a_closed_terminal_stops_nothing(who: Wrap) -> None:
    with Program(["nohup", *who([*SANDBOXED, "wait"])]) as program:
        program.await_text("waiting", WITHIN_S)
        os.killpg(program.process.pid, signal.SIGHUP)
        time.sleep(0.3)
        assert program.process.poll() is None
        program.process.send_signal(signal.SIGTERM)
        assert program.end(WITHIN_S) == 143
    assert "put away after SIGTERM" in program.output


def test_a_variable_alone_makes_no_sandbox(tmp_path: Path) -> None:
    """Or `prepare` would cover the machine's own /run."""
    code = "from railyard.core.sandbox import init; print(init.inside())"
    variables = {"RAILYARD_SANDBOX": "1", "RAILYARD_HOST_NAMESPACES": "mnt:[1] net:[1]", "RAILYARD_SANDBOX_SOCKET": "0"}
    argv = ["env", *(f"{name}={value}" for name, value in variables.items()), SANDBOXED[0], "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"


def test_any_command_can_be_put_in_a_sandbox() -> None:
    argv = [SANDBOXED[0], "-m", "railyard.core.sandbox", "sh", "-c", "echo $TMPDIR; ls /run; exit 7"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (7, "/run/railyard/tmp\nrailyard\n")
