"""When is a fabric gone, and when is it freed?

It is gone when nothing of it can be seen any more (`wait_until_gone`). The kernel frees network namespaces, and what is
in them, later and in the background; it is freed when that is over (`wait_for_kernel`). A build that began before would
be slowed.
"""

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import psutil

from railyard.core.host import NETNS_DIR
from railyard.topologies.build import namespaces

TIMEOUT_S: Final = 60.0
FENCE: Final = "fence"


def visible() -> frozenset[str]:
    """Every process but this one and the dead, every interface here, and every name that `ip netns list` would show."""
    found = {f"interface {name}" for _, name in socket.if_nameindex()}
    found |= {f"namespace {path.name}" for path in NETNS_DIR.glob("*")}
    for process in psutil.process_iter(["name", "status"]):
        if process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(f"process {process.pid} ({process.info['name']})")
    return frozenset(found)


def wait_until_gone(before: frozenset[str]) -> None:
    """Return when no more is seen than `before`.

    RuntimeError, with what is still there, if that takes longer than a minute.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while left := visible() - before:
        _pause(deadline, ", ".join(sorted(left)[:5]))


def wait_for_kernel() -> None:
    """Return when the kernel has freed every namespace that nothing held until now; RuntimeError after a minute.

    It frees them batch by batch, in their order. A fence may be in the same batch as others which take longer, so only
    a second one tells that all of them are done.
    """
    deadline = time.monotonic() + TIMEOUT_S
    for _ in range(2):
        _pass_fence(deadline)


def _pass_fence(deadline: float) -> None:
    """Leave a namespace behind all the others, with a cable from here into it, and wait until the cable is gone."""
    namespaces.create([FENCE])
    cable = ["link", "add", FENCE, "type", "veth", "peer", "name", "end", "netns", FENCE]
    subprocess.run(["ip", *cable], check=True)
    namespaces.remove([FENCE])
    while Path("/proc/sys/net/ipv4/conf", FENCE).exists():
        _pause(deadline, "namespaces that the kernel has not freed")


def _pause(deadline: float, left: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"still there after {TIMEOUT_S:.0f} s: {left}")
    time.sleep(0.002)
