"""One run of a sweep on the machine that this process is on: in a child process, and never two at once.

It waits in the queue of the machine's runs until no other has a turn. The child process holds the turn too, so that the
next run waits for its end, and not only for that of a worker that was killed. A run dies with the process that started
it.
"""

import io
import os
import platform
import re
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import railyard
from railyard.core import scratch
from railyard.core.config import dump_yaml
from railyard.core.host import usable_cores
from railyard.core.installation import program_command
from railyard.core.plugins import ENVIRONMENT
from railyard.core.safe_files import MOST_BYTES
from railyard.core.sandbox import run_queue
from railyard.core.sandbox.launcher import die_with_parent
from railyard.experiments.sweep.answers import MOST_LINE, Facts, Outcome

_running: Final[dict["subprocess.Popen[bytes]", str]] = {}  # the sweep of each run
_stopped: Final = defaultdict[str, threading.Event](threading.Event)  # set for each sweep that was stopped


@dataclass(frozen=True)
class Task:
    """A run to do: its folder's name, the resolved experiment, and the sources of its plugins by path.

    `sweep` is what another sweep on the same workers doesn't have. `no_queue`: start beside other runs.
    """

    name: str
    spec: dict[str, Any]
    plugins: dict[str, bytes] = field(default_factory=dict)
    sweep: str = ""
    no_queue: bool = False


def identify() -> Facts:
    """Return the facts of this machine: its name, kernel, cores, and the version of Railyard on it.

    A network namespace counts as a machine, since it has a queue of its own. Its name changes when it is started again.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    host = re.sub("[^A-Za-z0-9.-]", "-", socket.gethostname())[:64].lstrip(".-") or "host"
    return {
        "machine": f"{host}-{sha256(namespace.encode()).hexdigest()[:6]}",
        "kernel": platform.release(),
        "cores": usable_cores(),
        "version": railyard.__version__,
    }


def execute(task: Task) -> Outcome:
    """Wait for a turn, run the task, and return what became of it; exit status 130 if it was stopped before."""
    machine = identify()
    stopped = _stopped[task.sweep]
    at_once = 0 if task.no_queue else 1
    label = f"{task.spec['name']} of a sweep"
    with suppress(run_queue.Stopped), run_queue.turn(label, at_once, stop=stopped, tell=_tell) as held:
        if not stopped.is_set():
            return _alone(task, held, machine)
    return Outcome(130, "stopped", 0, 0, machine, None)


def _tell(line: str) -> None:
    run_queue.show(f"{line} (--no-queue starts at once)")


def _alone(task: Task, held: Sequence[int], machine: Facts) -> Outcome:
    prefix = f"railyard-sweep-{os.geteuid()}-{machine['machine']}-"
    try:
        with scratch.folder(prefix) as work:
            return _run(task, work, held, machine)
    except OSError as error:  # such as a full disk
        return Outcome(3, f"{machine['machine']}: {error.strerror or error}", 0, 0, machine, None)


def _run(task: Task, work: Path, held: Sequence[int], machine: Facts) -> Outcome:
    for name, source in task.plugins.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(source)
    spec = work / "spec.yaml"
    out = work / task.name
    spec.write_text(dump_yaml(task.spec, allow_unicode=True), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    start_ns = time.monotonic_ns()
    process = start(program_command("run", str(spec), "--out", str(out), "--quiet", "--no-queue"), environment, held)
    _running[process] = task.sweep
    try:
        _, stderr = process.communicate()
    finally:
        del _running[process]
    end_ns = time.monotonic_ns()
    lines = stderr.decode(errors="replace").strip().splitlines() or [""]
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    folder = _packed(out)
    if folder and len(folder) > MOST_BYTES:
        line = f"its folder has {len(folder):,} bytes, more than {MOST_BYTES:,}"
        return Outcome(1, line, start_ns, end_ns, machine, None)
    return Outcome(status, lines[-1].removeprefix("error: ")[:MOST_LINE], start_ns, end_ns, machine, folder)


def start(argv: Sequence[str], environment: Mapping[str, str], held: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Start a run, which dies with this process. `held`: the open files of its turn."""
    return subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        pass_fds=held,
        start_new_session=True,  # Ctrl-C is for the sweep, which stops the run itself
        preexec_fn=partial(die_with_parent, os.getpid()),
    )  # fmt: skip


def stop(sweep: str = "") -> None:
    """End the run of a sweep in this process in order, as Ctrl-C would, and what waits for a turn, for good."""
    _stopped[sweep].set()
    for process, runs in tuple(_running.items()):
        if runs == sweep:
            process.send_signal(signal.SIGINT)


def _packed(folder: Path) -> bytes | None:
    """Return a run's folder as a tar archive; None if it has no records."""
    if not (folder / "run.json").exists():
        return None
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(folder, arcname=".")
    return data.getvalue()
