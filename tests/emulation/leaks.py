"""State of the machine that a test could have changed: compare two snapshots and name the differences."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

FOLDERS: Final = ("/run", "/run/netns", "/run/openvswitch", "/dev/shm")
SYSCTLS: Final = ("net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter", "net.core.rmem_max", "net.core.rmem_default")
PROGRAMS: Final = ("ovsdb-server", "ovs-vswitchd", "iperf3", "ryu-manager", "etcd")

Snapshot = Mapping[str, frozenset[str]]


def snapshot() -> Snapshot:
    """Interfaces, files, sysctls, and processes of the programs that we start."""
    files = (str(path) for folder in FOLDERS if Path(folder).is_dir() for path in Path(folder).iterdir())
    return {
        "interface": frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        "file": frozenset(files),
        "sysctl": frozenset(f"{key}={_sysctl(key)}" for key in SYSCTLS),
        "process": frozenset(_processes()),
    }


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """A line for each thing that came or went."""
    came = [f"{kind} left behind: {name}" for kind in before for name in sorted(after[kind] - before[kind])]
    return came + [f"{kind} gone: {name}" for kind in before for name in sorted(before[kind] - after[kind])]


def _sysctl(key: str) -> str:
    path = Path("/proc/sys", key.replace(".", "/"))
    return path.read_text().strip() if path.exists() else "absent"


def _processes() -> Iterator[str]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue  # it has just ended
            if name in PROGRAMS:
                yield f"{name} (pid {folder.name})"
