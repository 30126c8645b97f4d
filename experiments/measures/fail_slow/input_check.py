"""Check of fail-slow items against the fabrics of an experiment, before anything is built."""

from collections.abc import Sequence

from railyard.core.errors import BadInput
from railyard.experiments.measures.fail_slow.spec import FailSlowSpec, check_item, place_of
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.plan import Plan
from railyard.workloads.schedule import check_gpus, check_total
from railyard.workloads.spec import build


def check_items(spec: ExperimentSpec, items: Sequence[FailSlowSpec], plans: Sequence[FabricPlan]) -> None:
    """Raise BadInput for a target that a fabric lacks, and for a job that makes no schedule or one that is too long."""
    tasks = 0
    for number, plan in enumerate(plans):
        assert isinstance(plan, Plan)
        check_gpus(plan.spec.domains, plan.spec.rails, f"fabrics.{number}.domains")
        for place, item in enumerate(items):
            if not item.is_on(number):
                continue
            field = f"fail_slow.{place}"
            check_item(item, plan, field)
            job = f"{field}.workload"
            schedule = build(item.workload, plan.spec, plan.rail_bps, plan.hb_bps, job, spec.seed).schedule
            tasks += item.iterations * len(schedule.tasks)
            check_total(tasks, plan.spec.gpus, f"{field}.iterations", item.iterations)
            if item.part == "gpu" and not schedule.columns.is_compute.any():
                allowed = "needs a workload that computes: this one only sends"
                raise BadInput(f"{field}.part", item.part, allowed)
            try:
                item.case(plan, schedule, spec.seed, 0, place_of(item, items))
            except ValueError as error:
                allowed = f"has no effect: {error}: give a target and a ratio, or another workload"
                raise BadInput(f"{field}.part", item.part, allowed) from error
