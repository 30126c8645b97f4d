"""The terminal of a command that root runs as another user: not the one that root types into."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.emulation.programs import read_until

COMMAND = """
import os
from railyard.core.safe_files import account_of
from railyard.core.sandbox.entry import Entry, run
entry = Entry(os.getpid(), os.pidfd_open(os.getpid()), account_of(65534), {})
raise SystemExit(run(entry, "it", ["sh"], None, {}))
"""
TYPED = b"readlink /proc/self/fd/[012]; id -u; (trap '' HUP; exec sleep 60) & echo pid=$! n=$((6 * 7)); exit 5\n"
WITHIN_S = 60.0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters the runs of others")
def test_remains_of_a_users_command_have_no_terminal_of_root() -> None:
    """Or it could read what root types after the command. The command can still be used like a shell."""
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdin=theirs, stdout=theirs, stderr=theirs, cwd=Path(__file__).parents[4]
    ) as process:
        os.write(ours, TYPED)
        status = process.wait(WITHIN_S)
    output = ""
    while select.select([ours], [], [], 0.1)[0]:
        output += os.read(ours, 65536).decode()
    left_behind = int(output.rpartition("pid=")[2].split()[0])
    try:
        files = [str(path.readlink()) for path in Path(f"/proc/{left_behind}/fd").iterdir()]
    finally:
        os.kill(left_behind, 9)
        os.close(ours)
        os.close(theirs)
    assert status == 5, output
    assert "65534" in output
    assert "n=42" in output
    assert name not in output.split()
    assert name not in files


def own_terminal() -> None:
    """Between fork and exec: stdin is the terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters the runs of others")
def test_a_users_command_sees_the_size_of_the_terminal() -> None:
    """Also a later one; and the terminal's settings are put back when the command ends by Ctrl-C, typed."""
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdin=theirs, stdout=theirs, stderr=theirs, cwd=Path(__file__).parents[4],
        start_new_session=True, preexec_fn=own_terminal,
    ) as process:  # fmt: skip
        try:
            os.write(ours, b"""exec sh -c "trap 'stty size' WINCH; echo $((6 * 7)); while sleep 0.05; do :; done"\n""")
            for awaited, (rows, columns) in {"42": (50, 132), "50 132": (7, 20)}.items():
                read_until(ours, awaited, WITHIN_S)
                fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            read_until(ours, "7 20", WITHIN_S)
            os.write(ours, b"\x03")
            assert process.wait(WITHIN_S) == 128 + 2
        finally:
            process.kill()
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
