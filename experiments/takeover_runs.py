"""All takeovers of an experiment: each on a fabric of its own with spares, built for it and taken down after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.labels import workload_name
from experiments.progress import Steps
from experiments.spec import ExperimentSpec
from experiments.stage import built
from experiments.takeover import run_takeover
from experiments.takeover_job import takeover_job
from experiments.takeovers import TakeoverSpec, with_spares
from results.records import Run
from topologies.capacity import auto_rail_bps
from topologies.ovs import Datapath
from topologies.plan import Plan, make_plan


@dataclass(frozen=True)
class Planned:
    """A takeover, by its number and its fabric's in the experiment, and the plan of that fabric with spares."""

    number: int
    fabric: int
    takeover: TakeoverSpec
    plan: Plan


def planned(spec: ExperimentSpec, frames_per_s: float) -> list[Planned]:
    """Fabric by fabric. A takeover has one auto rate on all its fabrics, so that they can be compared.

    Not one for all takeovers: where optical switches carry HB domains, rates are far lower than they need be elsewhere.
    """
    found = []
    for number, takeover in enumerate(spec.takeovers):
        on = [n for n in range(len(spec.fabrics)) if takeover.on is None or n in takeover.on]
        fabrics = [with_spares(takeover, spec.fabrics[n]) for n in on]
        auto = auto_rail_bps(fabrics, frames_per_s)
        found += [Planned(number, n, takeover, make_plan(fabric, auto)) for n, fabric in zip(on, fabrics, strict=True)]
    return sorted(found, key=lambda one: (one.fabric, one.number))


def run_takeovers(
    spec: ExperimentSpec, all_of_them: Sequence[Planned], datapath: Datapath, run: Run, steps: Steps
) -> None:
    """Each `takeover_repeats` times. What is gone is gone: so none is like new for the next."""
    for one in all_of_them:
        label, fabric, takeover = spec.labels[one.fabric], spec.fabrics[one.fabric], one.takeover
        job = takeover_job(takeover, fabric, one.plan, spec.seed, f"takeovers.{one.number}")
        what = f"{label}, {takeover.case} by {job.way}"
        run.scale[f"{workload_name(takeover.workload)}, {what}"] = job.scale.as_dict()
        for repeat in range(spec.takeover_repeats):
            shown = f", {repeat + 1} of {spec.takeover_repeats}" if spec.takeover_repeats > 1 else ""
            with steps.step(f"{what}{shown}"), built(what, one.plan, datapath, True, run) as stage:
                run_takeover(stage, takeover, job, label, repeat, spec.seed, run)
