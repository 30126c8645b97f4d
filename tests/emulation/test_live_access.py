"""Other users' processes that pass for runs: root's commands give them no rights, and refuse each in one line."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from railyard.core.host import NETNS_DIR
from railyard.core.sandbox import entry
from railyard.experiments.commands import ps
from tests.emulation.programs import (
    ROOT,
    SANDBOXED,
    USER,
    Program,
    as_root,
    as_user,
    read_until,
)
from tests.emulation.test_cli import NO_RUN, Wrap, command

UID = 65534
NOT_ALIVE = "RUN: {} is not alive: no run of yours is"
USERS_NAMESPACE = "is refused: its user namespace is another user's"
MACHINES_NETWORK = "is refused: its net namespace is the machine's"
ANOTHER = ("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups")
IMPOSTOR = (sys.executable, "-m", "tests.emulation.impostor")
WITHIN_S = 30.0
SECRET = "RAILYARD_TEST_SECRET"
# in a PID namespace whose numbers it chooses: an ended run's number goes to another process
REUSED_PID = """
import os, subprocess, sys
from railyard.core.sandbox import entry
from railyard.experiments.commands import ps
from tests.emulation.programs import SANDBOXED, Program

def reuse(pid):
    program.process.kill()
    program.process.wait()
    try:
        while os.wait():  # as process 1
            pass
    except ChildProcessError:
        pass
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    assert subprocess.Popen(["sleep", "60"]).pid == pid
    return pid

with Program([*SANDBOXED, "stand"]) as program:
    program.await_text("waiting", 30)
    (run,) = ps.find()
    if sys.argv[1] == "before the check":
        first_process = entry._first_process
        entry._first_process = lambda found: reuse(first_process(found))
        assert ps.find() == []
    else:
        reuse(run.pid)
        assert ps.find() == []
        assert entry.nodes(run.entry) == []
        sys.exit(entry.run(run.entry, run.name, ["true"], "d0g1", {}))
"""
SHOW_SIZE = "trap 'stty size' WINCH; stty size; while sleep 0.1; do :; done"


@contextmanager
def impostor(way: str, text: str = "quickstart /tmp/quickstart", wrapped: Wrap = as_root) -> Iterator[Program]:
    """A process of an ordinary user that passes for a run, while entered."""
    as_user([])  # skips where users may make no namespaces
    with Program([*USER, *wrapped([*IMPOSTOR, way, text])]) as program:
        program.await_text("ready", WITHIN_S)
        yield program


@contextmanager
def own_run(who: Wrap = as_root) -> Iterator[str]:
    """A run with a GPU d0g1; its name."""
    with Program(who([*SANDBOXED, "stand"])) as program:
        program.await_text("waiting", WITHIN_S)
        yield f"stand-{program.process.pid}"


def refusal(*words: str, command_name: str = "exec") -> str:
    """Return what a command says in its one line, when it starts nothing."""
    done = command(command_name, *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("error: ").rstrip()


@pytest.mark.parametrize("way", ["variables", "claims-root"])
def test_a_process_that_claims_to_be_roots_is_no_run(way: str) -> None:
    with impostor(way) as program:
        inner = live_child(program.process.pid)
        for run in ("quickstart", str(inner)):
            assert refusal(run, "d0g1", "ss", "-ti") == NOT_ALIVE.format(repr(run))
        assert command("ps").stdout == NO_RUN


def live_child(pid: int) -> int:
    """The last of a line of processes: process 1 of the impostor's namespaces."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if "1" in Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].partition("\n")[0].split()[1:]:
            break
        pid = int(children[0])
    return pid


@pytest.mark.parametrize(("way", "why"), [("nested", USERS_NAMESPACE), ("no-network", MACHINES_NETWORK)])
def test_namespaces_of_the_wrong_owner_are_refused(way: str, why: str) -> None:
    """By `exec`, `ps` and `trace`, which take the same way in."""
    with impostor(way):
        message = refusal("quickstart", "d0g1", "ss", "-ti")
        assert message.startswith(f"RUN: 'quickstart' {why} (process ")
        assert message.endswith(" of nobody)")
        assert refusal("quickstart", "d0g1", "d1g1", command_name="trace") == message
        listed = command("ps")
        assert listed.stdout.startswith("no other run ")
        assert why in listed.stderr


@pytest.mark.parametrize("who", [as_root, as_user])
def test_a_users_program_gets_no_more_than_its_users_rights(who: Wrap, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the place of `ss` has the user's credentials, no open file of root's, and none of its variables."""
    monkeypatch.setenv(SECRET, "1")
    with impostor("listens"):
        kept = os.open("/etc/shadow", os.O_RDONLY)
        os.set_inheritable(kept, True)
        argv = [sys.executable, "run_experiment.py", "exec", "quickstart", "d0g1", "ss", "-ti"]
        if who is as_user:
            argv = [*USER, *argv]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, pass_fds=[kept])
        os.close(kept)
    lines = done.stdout.splitlines()
    assert lines[0] == "0"
    assert lines[1].split() == ["0", str(UID), "1"], "it is in root's own user namespace"
    if who is as_root:
        assert f"/proc/self/fd/{kept}" not in lines
        assert not any(SECRET in line for line in lines)


def test_no_variable_of_roots_reaches_a_users_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "BASH_ENV")
    with own_run(as_user) as theirs, own_run() as own:
        for name in names:
            monkeypatch.setenv(name, str(tmp_path))
        variables = command("exec", theirs, "d0g1", "env").stdout
        assert f"{names[0]}={tmp_path}" in command("exec", own, "d0g1", "env").stdout
    assert str(tmp_path) not in variables
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in variables.splitlines()


def test_root_starts_no_program_of_a_user(tmp_path: Path) -> None:
    """Root's `exec` and `ps` start no program by the PATH, PYTHONPATH or home folder of the run's user."""
    tmp_path.chmod(0o755)
    for name in ("unshare", "nsenter", "ip", "sh", "python3"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started-$(id -u)\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(f"import os; open('{tmp_path}/started-%d' % os.getuid(), 'w')")

    def with_variables(argv: Sequence[str]) -> Sequence[str]:
        path = f"PATH={tmp_path}:{os.environ['PATH']}"
        return ["env", path, f"PYTHONPATH={tmp_path}", f"HOME={tmp_path}", f"RAILYARD_PLUGINS={tmp_path}/x.py", *argv]

    with impostor("listens", wrapped=with_variables):
        assert command("exec", "quickstart", "d0g1", "sh", "-c", "exit 7").returncode == 7
        assert "quickstart" in command("ps").stdout
    assert not (tmp_path / "started-0").exists()


def test_a_terminal_in_another_users_run_follows_its_size() -> None:
    """Root's terminal isn't given to another user's command, whose own one has its size, at first and later."""
    with own_run(as_user) as run:
        pid, terminal = pty.fork()
        if pid == 0:
            argv = [sys.executable, "run_experiment.py", "exec", run, "d0g1", "sh", "-c", SHOW_SIZE]
            os.execvpe("sh", ["sh", "-c", 'stty rows 24 cols 80; exec "$@"', "sh", *argv], dict(os.environ))
        try:
            for size, (rows, columns) in {"24 80": (50, 132), "50 132": (7, 20), "7 20": (24, 80)}.items():
                read_until(terminal, size, WITHIN_S)
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        finally:
            os.write(terminal, b"\x03")
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(terminal)
    assert status == 128 + 2


def test_roots_own_run_wins_over_anothers_of_its_name() -> None:
    with own_run() as name, impostor("listens", f"test /somewhere/{name}"):
        for wanted in (name, "test"):
            looked = command("exec", wanted, "d0g1", "cat", "/proc/self/uid_map")
            assert looked.stdout.split() == Path("/proc/self/uid_map").read_text().split(), looked.stderr


@pytest.mark.parametrize("way", ["host-network", "symlink", "pipe"])
def test_a_swapped_network_namespace_is_refused(way: str) -> None:
    with impostor(way):
        assert refusal("quickstart", "d0g1", "ip", "link").startswith("RUN: 'quickstart' ")


def test_a_users_link_shows_root_nothing_of_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the namespaces is looked at with the user's rights. Here it leads to one that is root's alone."""
    (tmp_path / "d7g7").touch()
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PLACE", str(tmp_path))
    with impostor("outside"):
        assert refusal("quickstart", "d0g1", "true") == f"RUN: 'quickstart' {ps.NO_FABRIC}"


def test_names_of_others_neither_end_ps_nor_reach_the_terminal() -> None:
    with impostor("strange-names", "[/bold] /tmp/[/red]\x1b]0;title\x07\u202e\n"):
        done = command("ps")
        assert done.returncode == 0
        assert not any(bad in done.stdout + done.stderr for bad in "\x1b\x07\u202e")
        assert "[/red]\\x1b]0;title\\x07" in done.stdout
        assert "1 GPUs" in done.stdout


def test_a_user_sees_and_enters_own_runs_only() -> None:
    def another(argv: Sequence[str]) -> Sequence[str]:
        return [*ANOTHER, *argv]

    with own_run(), own_run(as_user) as theirs:
        assert command("ps", who=another).stdout == NO_RUN
        done = command("exec", theirs, "d0g1", "true", who=another)
        assert done.stderr == f"error: {NOT_ALIVE.format(repr(theirs))}\n"
        listed = command("ps", who=lambda argv: [*USER, *argv]).stdout
        assert theirs in listed
        assert "root" not in listed


def test_ended_run_is_not_entered(capfd: pytest.CaptureFixture[str]) -> None:
    """Once the run has ended, its entry leads nowhere, whatever has its number then."""
    with impostor("listens"):
        (run,) = ps.find()
        assert run.entry is not None
        assert entry.run(run.entry, run.name, ["true"], "d0g1", {}) == 0
    assert select.select([run.entry.pidfd], [], [], WITHIN_S)[0]  # it dies a moment after the program that started it
    assert entry.run(run.entry, run.name, ["true"], "d0g1", {}) == 2
    assert entry.nodes(run.entry) == []
    message = capfd.readouterr().err
    assert message.startswith("error: RUN: 'quickstart' ")
    assert message.count("\n") == 1
    run.entry.close()


@pytest.mark.parametrize(("when", "status"), [("before the check", 0), ("before the entry", 2)])
def test_another_process_with_a_runs_number_is_not_entered(when: str, status: int) -> None:
    numbers = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
    argv = [*numbers, sys.executable, "-c", REUSED_PID, when]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert done.stderr.count("\n") == bool(status), done.stderr


def test_a_run_is_found_and_left_without_a_trace() -> None:
    """`exec` ends as its command does; after kill -9 no command finds anything, and no file was ever written."""
    with Program([*SANDBOXED, "stand"]) as program:
        program.await_text("waiting", WITHIN_S)
        name = f"stand-{program.process.pid}"
        assert command("exec", name, "d0g1", "sh", "-c", "exit 7").returncode == 7
        assert command("exec", name, "d0g1", "sh", "-c", "kill -9 $$").returncode == 137
        assert command("exec", name, "d0g1", "no-such-program").returncode == 127
        network = command("exec", name, "d0g1", "readlink", "/proc/self/ns/net").stdout.strip()
        assert network not in ("", str(Path("/proc/self/ns/net").readlink()))
        assert NETNS_DIR.name in command("exec", name, "d0g1", "ls", "/run").stdout
        program.process.kill()
        program.process.wait()
        assert name not in command("ps").stdout
