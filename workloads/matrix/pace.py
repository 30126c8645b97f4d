"""How long a schedule takes if every port sends at its rate and nothing is ever late: a list scheduling of its tasks.

It serves to choose byte sizes for a wished-for duration, and to check a schedule's shape against the equations; it is
no prediction (those are in `railyard.results.theory.predict`, and know nothing of tasks). Each port carries one
transfer at a time, in the order of the task list, which all workloads here emit in the order of time.
"""

from collections import defaultdict
from typing import Literal

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shape, policy_shares
from railyard.topologies.paths import hops
from railyard.topologies.spec import FabricSpec
from railyard.workloads.scale import Rates
from railyard.workloads.schedule import Schedule, Transfer

Side = Literal["hb", "rail"]
Hop = tuple[int, int, Side]
"""(from GPU, to GPU, over which of their interfaces)."""


def gpu_hops(src: int, dst: int, rails: int, fabric: FabricSpec) -> tuple[tuple[float, tuple[Hop, ...]], ...]:
    """Return (share of the traffic, hops) of each path from GPU number `src` to `dst`, by the fabric's policy.

    `rails`: the schedule's GPUs in each domain; it may be of another size than the fabric.
    """
    a, b = Gpu(*divmod(src, rails)), Gpu(*divmod(dst, rails))
    shares = policy_shares(fabric.chosen_policy, a, b, Shape(fabric.kind, fabric.domains, rails))
    total = sum(share.weight for share in shares)
    return tuple(
        (
            share.weight / total,
            tuple(
                (x.domain * rails + x.rank, y.domain * rails + y.rank, side) for x, y, side in hops(share.path, a, b)
            ),
        )
        for share in shares
    )


def rail_only(schedule: Schedule) -> FabricSpec:
    """Return the rail-only fabric of a schedule's GPUs: the one that durations in specifications refer to."""
    return FabricSpec.model_construct(
        kind="rail-only", domains=max(1, schedule.gpus // schedule.rails), rails=schedule.rails
    )


def line_rate_duration_s(schedule: Schedule, rates: Rates, fabric: FabricSpec | None = None) -> float:
    """Return the seconds from the first task to the end of the last; on `rail_only` if no fabric is given."""
    fabric = fabric or rail_only(schedule)
    paths: dict[tuple[int, int], tuple[tuple[float, tuple[Hop, ...]], ...]] = {}
    rate: dict[Side, float] = {"hb": rates.hb, "rail": rates.rail}
    port_free_at: defaultdict[tuple[int, Side, bool], float] = defaultdict(float)
    ends: list[float] = []
    for task in schedule.tasks:
        ready = max((ends[i] for i in task.after), default=0.0)
        if not isinstance(task, Transfer):
            ends.append(ready + task.seconds)
            continue
        end = ready
        pair = (task.src, task.dst)
        if pair not in paths:
            paths[pair] = gpu_hops(*pair, schedule.rails, fabric)
        for share, path in paths[pair]:
            for a, b, side in path:
                # a forwarder passes packets on as they come, so a later hop may start with the first one
                start = max(ready, port_free_at[a, side, True], port_free_at[b, side, False])
                done = start + share * task.bytes / rate[side]
                port_free_at[a, side, True] = port_free_at[b, side, False] = done
                end = max(end, done)
        ends.append(end)
    return max(ends, default=0.0)
