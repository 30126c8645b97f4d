"""The rig itself: what a test's sandbox shows, hides and ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulation import forked
from tests.emulation.fabrics import eventually


def run(body: Callable[[], None], within_s: float = 60.0) -> None:
    forked.run(body, lambda error: f"worded: {error}", within_s)


def test_the_body_sees_nothing_of_the_machine() -> None:
    def body() -> None:
        assert os.getpid() == 1
        assert [path.name for path in Path("/proc").iterdir() if path.name.isdigit()] == ["1"]
        assert list(Path("/run").iterdir()) == []
        assert "state UP" not in subprocess.check_output(["ip", "link"], text=True)

    run(body)


def raising(error: Exception) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "outcome", "message"),
    [
        (raising(ValueError("wrong answer")), forked.Failed, "worded: wrong answer"),
        (raising(forked.Skipped("no module")), forked.Skipped, "no module"),
        (lambda: os._exit(3), forked.Failed, "ended before"),
    ],
)
def test_end_of_a_body_is_reported(body: Callable[[], None], outcome: type[Exception], message: str) -> None:
    with pytest.raises(outcome, match=message):
        run(body)


def test_hanging_body_is_ended_with_its_processes() -> None:
    name = f"sleep 4{os.getpid()}"

    def body() -> None:
        subprocess.Popen(name.split())
        time.sleep(60)

    with pytest.raises(forked.Failed, match="not done within 0 s"):
        run(body, within_s=0.3)
    eventually(lambda: not running(name))


def test_processes_of_a_body_end_with_the_body() -> None:
    name = f"sleep 5{os.getpid()}"

    def body() -> None:
        subprocess.Popen(name.split())

    run(body)
    assert not running(name)


def test_forked_process_ends_with_its_parent() -> None:
    name = f"sleep 6{os.getpid()}"
    code = (
        "import subprocess; from tests.emulation import forked\n"
        f"forked.run(lambda: subprocess.run({name.split()!r}) and None, str, 60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    eventually(lambda: running(name))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    eventually(lambda: not running(name))


def running(command: str) -> bool:
    """Return whether a process with this command line is there."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cmdline").read_bytes() == wanted:
                    return True
            except OSError:
                continue  # it has just ended
    return False
