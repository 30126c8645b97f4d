"""Check of workloads against the fabrics of an experiment, before anything is built."""

from typing import Final

from railyard.core.errors import BadInput
from railyard.core.units import format_size
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.topologies.plan import Plan
from railyard.workloads.schedule import check_gpus, check_total
from railyard.workloads.spec import build

MAX_DAYS: Final = 30  # of a workload with its repeats
DAY_S: Final = 86_400


def check_workloads(spec: ExperimentSpec) -> None:
    """Raise BadInput for a workload that makes no schedule on a fabric, or one that is too long.

    Models have to be known, and parallelism has to divide the GPUs.
    """
    tasks = 0
    most_gpus = max((fabric.gpus for fabric in spec.gpu_fabrics), default=0)
    for number, fabric in enumerate(spec.gpu_fabrics):
        check_gpus(fabric.domains, fabric.rails, f"fabrics.{number}.domains")
        plan = nominal_plan(fabric)
        for i, workload in enumerate(workloads_of(spec)):
            schedule = build(workload, fabric, plan.rail_bps, plan.hb_bps, f"workloads.{i}", spec.seed).schedule
            tasks += len(schedule.tasks)
            check_total(tasks, most_gpus, f"workloads.{i}", workload.kind)
            _check_days(sum(schedule.matrix.values()), plan, spec.repeats, f"workloads.{i}")


def _check_days(sent_bytes: int, plan: Plan, repeats: int, field: str) -> None:
    """Raise BadInput if all repeats take too long at the links' rates. `sent_bytes`: of one repeat."""
    fabric_bps = plan.spec.gpus * (plan.rail_bps + plan.hb_bps)
    days = repeats * sent_bytes / (fabric_bps / 8) / DAY_S
    if days > MAX_DAYS:
        value = format_size(sent_bytes)
        if repeats > 1:
            value += f", {repeats} times,"
        allowed = f"in all take {days:,.0f} days or more at the links' rates: {MAX_DAYS} or fewer are allowed"
        raise BadInput(field, value, allowed)
