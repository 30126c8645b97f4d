"""A script beside a workload: which phases it can wait for, and whether the workload is long enough."""

from collections.abc import Iterable, Sequence

from railyard.core.errors import BadInput
from railyard.experiments.spec.scripts import ScriptSpec
from railyard.topologies.plan import Plan
from railyard.workloads.matrix.pace import line_rate_duration_s
from railyard.workloads.scale import payload_rates
from railyard.workloads.schedule import Schedule


def phases_of(schedule: Schedule) -> frozenset[str]:
    """The names of the phases in which it sends something."""
    return frozenset(schedule.phases[transfer.phase].name for _, transfer in schedule.transfers)


def check_lasts(
    script: ScriptSpec, field: str, plans: Sequence[Plan], schedules: Sequence[Schedule], seeds: Iterable[int]
) -> None:
    """BadInput for random faults that last longer than the workload would on an intact fabric.

    `plans` and `schedules` of all fabrics; `seeds` of the script's repeats. Faults in a list aren't checked: those that
    come too late fail the run, and a workload that they slow down may be long enough for the last of them.
    """
    for number in range(len(plans)) if script.on is None else script.on:
        plan = plans[number]
        lasts_s = line_rate_duration_s(
            schedules[number], payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu), plan.spec
        )
        drawn = [timed for seed in seeds for timed in script.script(plan, seed).faults]
        over_s = max(timed.at_s + timed.repair_s for timed in drawn)
        if over_s > lasts_s:
            label = f"on fabric {number} takes {lasts_s:.1f} s, and the random faults {over_s:.1f} s"
            allowed = f"{label}: make it longer, or {field}.random_faults.count less"
            raise BadInput(f"{field}.during", script.during, allowed)
