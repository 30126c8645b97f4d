"""How long a schedule takes if every port sends at its rate and nothing is ever late: a list scheduling of its tasks.

It serves to choose byte sizes for a wished-for duration, and to check a schedule's shape against the equations; it is
no prediction (those are in `results.predict`, and know nothing of tasks). Each port carries one transfer at a time,
in the order of the task list, which all workloads here emit in the order of time.
"""

from collections import defaultdict
from typing import Final, Literal

from topologies.spec import Policy
from workloads.schedule import Schedule, Transfer

ETHERNET_BYTES: Final = 14
HEADER_BYTES: Final = 52

Side = Literal["hb", "rail"]
Hop = tuple[int, int, Side]
"""(from GPU, to GPU, over which of their interfaces)."""


def payload_fraction(mtu: int) -> float:
    """TCP payload in a full packet over its bytes as HTB counts them.

    An IP packet of `mtu` bytes holds mtu - 52 of payload (IPv4 20, TCP 20, timestamps 12), and HTB sees 14 bytes of
    Ethernet header more. Acknowledgements that go the other way are left out: under 0.5% at MTU 9000.
    """
    return (mtu - HEADER_BYTES) / (mtu + ETHERNET_BYTES)


def hops(src: int, dst: int, rails: int, policy: Policy) -> tuple[Hop, ...]:
    """The way from GPU number `src` to `dst`, by the policy's rule alone (no faults).

    dr and pxn go through the own HB domain to the GPU of the destination's rank, rd rail first; spine goes straight.
    """
    (d1, g1), (d2, g2) = divmod(src, rails), divmod(dst, rails)
    if d1 == d2:
        return ((src, dst, "hb"),)
    if g1 == g2 or policy == "spine":
        return ((src, dst, "rail"),)
    if policy == "rd":
        via = d2 * rails + g1
        return ((src, via, "rail"), (via, dst, "hb"))
    via = d1 * rails + g2
    return ((src, via, "hb"), (via, dst, "rail"))


def pace(schedule: Schedule, hb_bytes_per_s: float, rail_bytes_per_s: float, policy: Policy = "dr") -> float:
    """Seconds from the first task to the end of the last. Rates are of payload, per GPU and direction."""
    rate: dict[Side, float] = {"hb": hb_bytes_per_s, "rail": rail_bytes_per_s}
    free: defaultdict[tuple[int, Side, bool], float] = defaultdict(float)
    ends: list[float] = []
    for task in schedule.tasks:
        ready = max((ends[i] for i in task.after), default=0.0)
        if not isinstance(task, Transfer):
            ends.append(ready + task.seconds)
            continue
        end = ready
        for a, b, side in hops(task.src, task.dst, schedule.rails, policy):
            # a forwarder passes packets on as they come, so a later hop may start with the first one
            start = max(ready, free[a, side, True], free[b, side, False])
            done = start + task.bytes / rate[side]
            free[a, side, True] = free[b, side, False] = done
            end = max(end, done)
        ends.append(end)
    return max(ends, default=0.0)
