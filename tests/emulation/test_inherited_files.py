"""Open files of Railyard's processes in a run, of which the programs that they start must get none."""

import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.emulation.programs import Program
from tests.emulation.runs import run_command, small_spec
from tests.emulation.test_cli import BUILT_S, PROMPT, SHELL, SOON_S

FAULTS = (("link-gray", "d0g1"), ("link-slow", "d0g0"), ("rail-switch-reboot", "rail1"))
SPEC = small_spec(
    faults=[{"kind": kind, "target": target, "at": "500ms", "repair": "700ms"} for kind, target in FAULTS],
    reroute=["on"],
)
FIRST = 3  # after standard input, output and error


def files_of(process: psutil.Process) -> set[str]:
    """Return the sockets and pipes of a process, as the kernel names them, from `FIRST` on."""
    links = [path for path in Path(f"/proc/{process.pid}/fd").iterdir() if int(path.name) >= FIRST]
    return {name for path in links if (name := str(path.readlink())).startswith(("socket:", "pipe:"))}


def shared_files(processes: list[psutil.Process]) -> list[str]:
    """Return the sockets and pipes that a program shares with a Python process of the same run."""
    ours, others = set[str](), []
    for process in processes:
        with suppress(OSError, psutil.Error):  # it has just ended
            name, files = process.name(), files_of(process)
            if name.startswith("python"):
                ours |= files
            elif name != "unshare":  # it hands the launcher's socket to the first process of the sandbox
                others += [(name, file) for file in files]
    return [f"{name}: {file}" for name, file in others if file in ours]


@pytest.mark.long
def test_programs_of_a_run_inherit_no_open_file(tmp_path: Path) -> None:
    """Looked at all the time, since helper programs of faults and measurements are there for milliseconds only."""
    found, known = set[str](), set[tuple[int, str]]()
    with Program(run_command(SPEC, tmp_path, "--quiet")) as program:
        process = psutil.Process(program.process.pid)
        while program.process.poll() is None:
            children, running = process.children(recursive=True), set[tuple[int, str]]()
            for child in children:
                with suppress(psutil.Error):  # it has just ended
                    running.add((child.pid, child.name()))
            if running - known:  # what a program inherits, it has from its start
                found.update(shared_files(children))
                known |= running
            time.sleep(0.015)
        assert program.end(SOON_S) in (0, 1), program.output
    assert {"ovs-vswitchd", "iperf3"} <= {name for _, name in known}
    assert found == set()


def test_a_command_of_the_shell_has_no_open_file_of_the_run() -> None:
    with Program(SHELL, is_new=True) as program:  # a forked one has more files open
        program.await_text(PROMPT, BUILT_S)
        program.type("d0g1 ls /proc/self/fd")
        program.await_text(PROMPT, SOON_S)
        assert program.output.split(PROMPT)[-2].split()[-4:] == ["0", "1", "2", "3"]
