"""Fair queues: equal shares of a link for the pairs of GPUs that send over it, as NICs serve their queue pairs in turn.

In a shaper's single queue, traffic that a GPU forwards gets most of a link: the kernel lets a local TCP connection have
two packets in the queue, and a forwarded one has its whole window there (92% of the link were measured). HTB classes of
one parent borrow from it in turn, so that a class for each pair shares the link as max-min fairness says.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from railyard.topologies.addresses import Pair
from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import htb_class_command
from railyard.topologies.fabric_kinds import End
from railyard.topologies.plan import Plan

GUARANTEED_BPS: Final = 8_000
"""Rate of a class that it needn't borrow: far below its share."""
_FIRST_CLASS: Final = 0x100
_OTHERS_CLASS: Final = 0xFF
# after the filter of heartbeats, which is looked at first
_PAIRS_PRIORITY: Final = 5
_OTHERS_PRIORITY: Final = 6


def fair_queue_commands(interface: str, rate_bps: int, mtu: int, pairs: Sequence[Pair]) -> str:
    """Return lines for `tc -batch` that give each pair a class of its own below that of a shaped link."""
    lines = _class(interface, _OTHERS_CLASS, rate_bps, mtu)
    for number, (src, dst) in enumerate(pairs):
        class_number = _FIRST_CLASS + number
        lines += _class(interface, class_number, rate_bps, mtu)
        lines += (
            f"filter add dev {interface} parent 1: protocol ip prio {_PAIRS_PRIORITY} u32 match ip src {src.ip}/32"
            f" match ip dst {dst.ip}/32 flowid 1:{class_number:x}\n"
        )
    # a class with others below it has no queue for what no filter knows
    return lines + (
        f"filter add dev {interface} parent 1: protocol all prio {_OTHERS_PRIORITY} u32 match u32 0 0"
        f" flowid 1:{_OTHERS_CLASS:x}\n"
    )


def _class(interface: str, number: int, rate_bps: int, mtu: int) -> str:
    return htb_class_command(interface, f"{number:x}", GUARANTEED_BPS, rate_bps, mtu, "1:1")


def removal_commands(interface: str, pairs: int) -> str:
    """Return lines for `tc -batch` that undo it, for so many pairs."""
    lines = f"filter del dev {interface} parent 1: protocol ip prio {_PAIRS_PRIORITY}\n"
    lines += f"filter del dev {interface} parent 1: protocol all prio {_OTHERS_PRIORITY}\n"
    for number in (_OTHERS_CLASS, *range(_FIRST_CLASS, _FIRST_CLASS + pairs)):
        lines += f"class del dev {interface} classid 1:{number:x}\n"
    return lines


@contextmanager
def fair_queues(plan: Plan, pairs_at: Mapping[End, Sequence[Pair]]) -> Iterator[None]:
    """Serve the pairs that leave each end of a link in turn while entered, on a running fabric."""
    rates: dict[End, int] = {}
    for link in plan.links:
        rates |= dict.fromkeys((link.a, link.b), link.rate_bps)
    added: dict[str, str] = {}
    removed: dict[str, str] = {}
    for end, pairs in pairs_at.items():
        commands = fair_queue_commands(end.interface, rates[end], plan.spec.mtu, pairs)
        added[end.node] = added.get(end.node, "") + commands
        removed[end.node] = removed.get(end.node, "") + removal_commands(end.interface, len(pairs))
    _run(added)
    try:
        yield
    finally:
        _run(removed)


def _run(commands: Mapping[str, str]) -> None:
    """Run lines of `tc -batch` in the namespace of each node."""

    def work(node: str) -> None:
        with namespaces.inside(node):
            namespaces.run(["tc", "-batch", "-"], commands[node])

    namespaces.in_threads(work, list(commands))
