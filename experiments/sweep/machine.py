"""One run of a sweep on the machine that this process is on: in a child process, and never two at once.

The lock of a machine is an abstract Unix socket, so it belongs to the network namespace: all workers and sweeps of a
machine share it, whatever user they are of. The child process that runs has it, and the kernel releases it when that
process has ended, however it ends. A run dies with the process that started it.
"""

import io
import os
import platform
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml

import railyard
from railyard.core.host import usable_cores
from railyard.core.installation import program_command
from railyard.core.plugins import ENVIRONMENT
from railyard.core.sandbox.launcher import die_with_parent

_LOCK: Final = "\0railyard-machine"
_RETRY_S: Final = 0.2
_MAX_LINE: Final = 300
_running: Final[set["subprocess.Popen[bytes]"]] = set()
_stop: Final = threading.Event()
"""Set for a moment to end the waits for the lock."""


@dataclass(frozen=True)
class Task:
    """A run to do: its folder's name, the resolved experiment, and the sources of its plugins by path."""

    name: str
    spec: dict[str, Any]
    plugins: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A run that has ended: its exit status, last line on stderr, CLOCK_MONOTONIC times, machine, and tarred folder."""

    status: int
    line: str
    start_ns: int
    end_ns: int
    machine: dict[str, Any]
    folder: bytes | None


def identify() -> dict[str, Any]:
    """Return the facts of this machine: its name, kernel, cores, and the version of Railyard on it.

    A network namespace counts as a machine, since it has a lock of its own. Its name changes when it is started again.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own = f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    return {
        "machine": f"{socket.gethostname()}-{sha256(own.encode()).hexdigest()[:6]}",
        "kernel": platform.release(),
        "cores": usable_cores(),
        "version": railyard.__version__,
    }


def execute(task: Task) -> Outcome:
    """Wait for the machine, run the task, and return what became of it; exit status 130 if it was stopped before."""
    machine = identify()
    lock = _locked()
    if lock is None:
        return Outcome(130, "stopped", 0, 0, machine, None)
    with lock:
        prefix = f"railyard-sweep-{os.geteuid()}-{machine['machine']}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):  # of a worker that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as work:
                return _run(task, Path(work), lock, machine)
        except OSError as error:  # such as a full disk
            return Outcome(3, f"{machine['machine']}: {error.strerror or error}", 0, 0, machine, None)


def _run(task: Task, work: Path, lock: socket.socket, machine: dict[str, Any]) -> Outcome:
    for name, source in task.plugins.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(source)
    spec, out = work / "spec.yaml", work / task.name
    spec.write_text(yaml.safe_dump(task.spec, sort_keys=False, allow_unicode=True), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    start_ns = time.monotonic_ns()
    process = subprocess.Popen(
        program_command("run", str(spec), "--out", str(out), "--quiet"),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[lock.fileno()],
        start_new_session=True,  # Ctrl-C is for the sweep, which stops the run itself
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    _running.add(process)
    try:
        _, stderr = process.communicate()
    finally:
        _running.discard(process)
    end_ns = time.monotonic_ns()
    lines = stderr.decode(errors="replace").strip().splitlines() or [""]
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Outcome(status, lines[-1][:_MAX_LINE], start_ns, end_ns, machine, _packed(out))


def stop() -> None:
    """End the run of this process in order, as Ctrl-C would, and what waits for the machine."""
    _stop.set()
    threading.Timer(2 * _RETRY_S, _stop.clear).start()
    for process in tuple(_running):
        process.send_signal(signal.SIGINT)


def _locked() -> socket.socket | None:
    """Return the machine's lock, once no other process has it; None if this process is to stop."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    while True:
        with suppress(OSError):
            lock.bind(_LOCK)
            return lock
        if _stop.wait(_RETRY_S):
            lock.close()
            return None


def _packed(folder: Path) -> bytes | None:
    """Return a run's folder as a tar archive; None if it has no records."""
    if not (folder / "run.json").exists():
        return None
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(folder, arcname=".")
    return data.getvalue()
