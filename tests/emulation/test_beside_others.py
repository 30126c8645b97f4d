"""The suite beside other programs: it passes in the background of a script and under nohup, where SIGHUP, SIGINT and
SIGQUIT are ignored, and while another program makes and removes files in /tmp, processes and interfaces.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.emulation import deadlines
from tests.emulation.programs import ROOT

PART: Final = ("test_sandbox.py", "test_live_access.py", "test_folder_lost.py", "test_forked.py")
CHURN: Final = """
n=0
trap 'rm -f /tmp/churn-$$-*' EXIT
trap exit TERM
while :; do
    n=$((n + 1))
    touch /tmp/churn-$$-$n
    rm -f /tmp/churn-$$-$((n - 20))
    ip link add churn$((n % 20)) type dummy || ip link del churn$((n % 20))
    sleep 0.2 &
    sleep 0.02
done 2>/dev/null
"""
SESSION_S: Final = 900.0  # five minutes were seen beside twenty other programs
IGNORING: Final = ("env", "--ignore-signal=HUP", "--ignore-signal=INT", "--ignore-signal=QUIT")


@contextmanager
def churn() -> Iterator[None]:
    """Run a program that makes and removes files, processes, and interfaces in a network namespace of its own."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", CHURN]) as program:
        try:
            yield
            assert program.poll() is None, "it ended by itself"
        finally:
            program.terminate()


def test_part_of_the_suite_passes_in_the_background(tmp_path: Path) -> None:
    files = [str(Path(__file__).with_name(name)) for name in PART]
    options = ["-q", f"--slow={deadlines.factor}", f"--basetemp={tmp_path / 'base'}"]
    session = [sys.executable, "-m", "pytest", *options, *files]
    with churn():
        done = subprocess.run(
            [*IGNORING, *session], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=deadlines.scaled(SESSION_S),
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
