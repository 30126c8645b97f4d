"""All replacements of an experiment: each on a fabric of its own with spares, built for it and taken down after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from railyard.core.host import Datapath
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.replacement import run_replacement
from railyard.experiments.run.replacement_job import replacement_job
from railyard.experiments.run.session import built
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.replacements import ReplacementSpec, with_spares
from railyard.results.analysis.replacements import replacement_name
from railyard.results.runs.records import Run
from railyard.topologies.measure.rates import auto_rail_bps
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec


@dataclass(frozen=True)
class Planned:
    """A takeover, by its number and its fabric's in the experiment, and the plan of that fabric with spares."""

    number: int
    fabric: int
    replacement: ReplacementSpec
    plan: Plan


def planned(spec: ExperimentSpec, frames_per_s: float) -> list[Planned]:
    """Fabric by fabric. A takeover has one auto rate on all its fabrics, so that they can be compared.

    Not one for all: where optical switches carry HB domains, rates are far lower than necessary elsewhere.
    """
    found = []
    for number, replacement in enumerate(spec.replacements):
        on = [n for n in range(len(spec.fabrics)) if replacement.on is None or n in replacement.on]
        fabrics = [with_spares(replacement, spec.fabrics[n]) for n in on]
        auto = auto_rail_bps(fabrics, frames_per_s)
        found += [
            Planned(number, n, replacement, make_plan(fabric, auto)) for n, fabric in zip(on, fabrics, strict=True)
        ]
    return sorted(found, key=lambda one: (one.fabric, one.number))


def replacement_label(one: Planned, planned_runs: Sequence[Planned], fabric: FabricSpec) -> str:
    """Its name on that fabric: with what fails, if several differ in that alone."""
    case, way = one.replacement.case, one.replacement.way_on(fabric)
    same_case = [
        other
        for other in planned_runs
        if other.fabric == one.fabric and (other.replacement.case, other.replacement.way_on(fabric)) == (case, way)
    ]
    return replacement_name(case, way, one.replacement.failed if len(same_case) > 1 else "")


def run_replacements(
    spec: ExperimentSpec, planned_runs: Sequence[Planned], datapath: Datapath, run: Run, steps: Steps
) -> None:
    """Each `replacement_repeats` times. What is gone is gone: so none is like new for the next."""
    for one in planned_runs:
        label, fabric, replacement = spec.labels[one.fabric], spec.fabrics[one.fabric], one.replacement
        job = replacement_job(replacement, fabric, one.plan, spec.seed, f"replacements.{one.number}")
        what = replacement_label(one, planned_runs, fabric)
        where = {"workload": replacement.workload.label(), "fabric": label, "replacement": what}
        run.scale.append({**where, **job.scale.as_dict()})
        for repeat in range(spec.replacement_repeats):
            shown = f", {repeat + 1} of {spec.replacement_repeats}" if spec.replacement_repeats > 1 else ""
            built_for = f"{label}, {what}"
            with steps.step(f"{built_for}{shown}"), built(built_for, one.plan, datapath, True, run) as session:
                run_replacement(session, replacement, job, label, what, repeat, spec.seed, run)
