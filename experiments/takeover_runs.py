"""All takeovers of an experiment: each on a fabric of its own with spares, built for it and taken down after it."""

from experiments.progress import Steps
from experiments.spec import ExperimentSpec
from experiments.stage import built
from experiments.takeover import run_takeover
from experiments.takeover_job import takeover_job
from experiments.takeovers import with_spares
from results.records import Run
from topologies.ovs import Datapath
from topologies.plan import make_plan
from topologies.spec import FabricSpec


def takeover_count(spec: ExperimentSpec) -> int:
    """How many there are in all."""
    return sum(len(spec.takeovers_on(n)) for n in range(len(spec.fabrics))) * spec.takeover_repeats


def fabrics_with_spares(spec: ExperimentSpec) -> list[tuple[int, FabricSpec]]:
    """(number of the experiment's fabric, that fabric with spares) for each takeover."""
    return [
        (n, with_spares(takeover, fabric)) for n, fabric in enumerate(spec.fabrics) for takeover in spec.takeovers_on(n)
    ]


def run_takeovers(spec: ExperimentSpec, auto_rail_bps: int, datapath: Datapath, run: Run, steps: Steps) -> None:
    """Each `takeover_repeats` times. What is gone is gone: so none is like new for the next."""
    for n, (label, fabric) in enumerate(zip(spec.labels, spec.fabrics, strict=True)):
        for takeover in spec.takeovers_on(n):
            plan = make_plan(with_spares(takeover, fabric), auto_rail_bps)
            field = f"takeovers.{spec.takeovers.index(takeover)}"
            job = takeover_job(takeover, fabric, plan, spec.seed, field)
            what = f"{label}, {takeover.case} by {job.way}"
            for repeat in range(spec.takeover_repeats):
                shown = f", {repeat + 1} of {spec.takeover_repeats}" if spec.takeover_repeats > 1 else ""
                with steps.step(f"{what}{shown}"), built(what, plan, datapath, True, run) as stage:
                    run_takeover(stage, takeover, job, label, repeat, spec.seed, run)
