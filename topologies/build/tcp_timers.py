"""TCP as patient as a lossless fabric deserves.

On links of a few Mbit/s a frame takes milliseconds, and a queue that grows in a moment looks to TCP like a loss: it
sends again what was never lost, and slows down. (64 GPUs, 10 Mbit/s, direct all-to-all: 9,800 segments sent twice and
1.47 of the predicted time; with patience 11, and 1.06.) RDMA, which the real fabrics carry, has no such timer. While
something is broken on purpose nobody is to be patient: faults are measured with the kernel's own settings.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from railyard.topologies.build import namespaces

TCP_SETTINGS: Final = {
    "net/ipv4/tcp_early_retrans": 0,  # no probe of a transfer's end after a pause
    "net/ipv4/tcp_rto_min_us": 1_000_000,  # Linux 6.11 and later; without it, only the first helps
}


@contextmanager
def relaxed_tcp_timers(gpus: Iterable[str]) -> Iterator[None]:
    """While entered, the GPUs' namespaces wait longer before they call something lost."""
    nodes = list(gpus)
    before = namespaces.in_threads(lambda node: _set(node, TCP_SETTINGS), nodes)
    try:
        yield
    finally:
        namespaces.in_threads(lambda pair: _set(*pair), list(zip(nodes, before, strict=True)))


def _set(node: str, settings: dict[str, int]) -> dict[str, int]:
    """Change what this kernel has of the settings; what they were."""
    before = {}
    with namespaces.inside(node):
        for key, value in settings.items():
            if Path("/proc/sys", key).exists():
                before[key] = int(Path("/proc/sys", key).read_text())
                namespaces.set_sysctl(key, value)
    return before
