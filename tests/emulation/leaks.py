"""State that a test could have changed: compare two snapshots and name the differences.

A test has namespaces of its own (conftest.py), so that whatever is seen here is of its making.
"""

import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

FOLDERS: Final = ("/run", "/run/netns", "/run/openvswitch", "/dev/shm")
SYSCTLS: Final = ("net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter", "net.core.rmem_max", "net.core.rmem_default")
_SETTLED_S: Final = 0.3
_TRIES: Final = 30

Snapshot = Mapping[str, frozenset[str]]


def snapshot() -> Snapshot:
    """Return the interfaces, mounts, files, sysctls and processes of this process's namespaces."""
    folders = (*FOLDERS, tempfile.gettempdir())
    files = (str(path) for folder in folders if Path(folder).is_dir() for path in Path(folder).iterdir())
    return {
        "interface": frozenset(name for _, name in socket.if_nameindex()),
        "mount": frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        "file": frozenset(files),
        "sysctl": frozenset(f"{key}={_sysctl(key)}" for key in SYSCTLS),
        "process": frozenset(_processes()),
    }


def settled_snapshot() -> Snapshot:
    """Return a snapshot in which no fabric of earlier tests is being taken down: its processes may end later."""
    before = snapshot()
    for _ in range(_TRIES):
        if not any("ovsdb-server" in process for process in before["process"]):
            break
        time.sleep(_SETTLED_S)
        earlier, before = before, snapshot()
        if before == earlier:
            break
    return before


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """A line for each thing that came or went."""
    came = [f"{kind} left behind: {name}" for kind in before for name in sorted(after[kind] - before[kind])]
    return came + [f"{kind} gone: {name}" for kind in before for name in sorted(before[kind] - after[kind])]


def _sysctl(key: str) -> str:
    path = Path("/proc/sys", key.replace(".", "/"))
    return path.read_text().strip() if path.exists() else "absent"


def _processes() -> Iterator[str]:
    """Name the processes of this PID namespace, without those that have ended and wait for their parent."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _ = (folder / "stat").read_text().rpartition(") ")[2].split(maxsplit=1)
                if state not in "ZX":
                    yield f"{(folder / 'comm').read_text().strip()} (pid {folder.name})"
            except OSError:
                continue  # it has just ended
