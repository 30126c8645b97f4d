"""How long a schedule takes if every port sends at its rate and nothing is ever late: a list scheduling of its tasks.

It serves to choose byte sizes for a wished-for duration, and to check a schedule's shape against the equations; it is
no prediction (those are in `railyard.results.theory.predict`, and know nothing of tasks). Each port carries one
transfer at a time, in the order of the task list, which all workloads here emit in the order of time.
"""

from collections import defaultdict
from typing import Literal

from railyard.topologies.spec import Policy
from railyard.workloads.scale import Rates
from railyard.workloads.schedule import Schedule, Transfer

Side = Literal["hb", "rail"]
Hop = tuple[int, int, Side]
"""(from GPU, to GPU, over which of their interfaces)."""


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


def line_rate_duration_s(schedule: Schedule, rates: Rates, policy: Policy) -> float:
    """Seconds from the first task to the end of the last."""
    rate: dict[Side, float] = {"hb": rates.hb, "rail": rates.rail}
    port_free_at: defaultdict[tuple[int, Side, bool], float] = defaultdict(float)
    ends: list[float] = []
    for task in schedule.tasks:
        ready = max((ends[i] for i in task.after), default=0.0)
        if not isinstance(task, Transfer):
            ends.append(ready + task.seconds)
            continue
        end = ready
        for a, b, side in hops(task.src, task.dst, schedule.rails, policy):
            # a forwarder passes packets on as they come, so a later hop may start with the first one
            start = max(ready, port_free_at[a, side, True], port_free_at[b, side, False])
            done = start + task.bytes / rate[side]
            port_free_at[a, side, True] = port_free_at[b, side, False] = done
            end = max(end, done)
        ends.append(end)
    return max(ends, default=0.0)
