"""Runs the workloads of an experiment on a built fabric: each repeat, each workload, in each variant."""

from dataclasses import replace
from functools import partial

from railyard.experiments.measures.workloads.spec import labelled_workloads
from railyard.experiments.measures.workloads.turn import Turn, Variant, Workload
from railyard.experiments.measures.workloads.variants import Measurer, variants_of
from railyard.experiments.run.progress import Steps, measure_undisturbed
from railyard.experiments.run.session import FabricSession, repeat_suffix, surviving_interruptions
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.runs.records import Run
from railyard.results.theory.predict import full_step_s
from railyard.topologies.plan import Plan
from railyard.workloads.spec import build


def make_workloads(spec: ExperimentSpec, plan: Plan, label: str, run: Run, seed: int) -> list[Workload]:
    """Return the workloads of an experiment on one fabric, and record how they are scaled."""
    workloads: list[Workload] = []
    for number, (name, item) in enumerate(labelled_workloads(spec)):
        built = build(item, plan.spec, plan.rail_bps, plan.hb_bps, f"workloads.{number}", seed)
        workload = Workload(
            label=name,
            schedule=built.schedule,
            scale=built.scale,
            iteration=item.is_iteration,
            measured_files=built.measured_files,
            independent=item.is_independent,
        )
        workloads.append(workload)
        full_s = full_step_s(built.scale, plan.spec)
        scale = {**built.scale.as_dict(), "workload": name, "fabric": label, "full_step_s": full_s}
        # workloads are made again for each mode of rerouting, seed and script
        if scale not in run.scale:
            run.scale.append(scale)
    return workloads


def run_workloads(session: FabricSession, spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    """Run all workloads of the experiment on a built fabric. Each replay is a step."""
    method = variants_of(spec)
    variants = method.variants(spec, session.plan.spec)
    with method.measuring(session, spec) as measurer:
        made_for = None
        for repeat in range(spec.repeats):
            seed = method.seed(spec, repeat)
            if seed != made_for:
                workloads = make_workloads(spec, session.plan, session.label, run, seed)
                made_for = seed
            for workload in workloads:
                for variant in variants:
                    turn = _turn(session, workload, repeat, seed, run, steps, variant)
                    _run_step(turn, measurer, spec.repeats, steps)


def _turn(
    session: FabricSession, workload: Workload, repeat: int, seed: int, run: Run, steps: Steps, variant: Variant
) -> Turn:
    if variant.policy:
        session = replace(session, steered_by=variant.policy)
    return Turn(session, workload, repeat, seed, run, steps.reached, variant)


def _run_step(turn: Turn, measurer: Measurer, repeats: int, steps: Steps) -> None:
    """Measure a turn as a step of the run. An interval that ends early doesn't end the run."""
    names = ", ".join(filter(None, (turn.workload.label, turn.variant.scene)))
    title = f"{turn.session.name}: {names}" + repeat_suffix(turn.repeat, repeats)
    size = sum(turn.workload.schedule.matrix.values())
    with steps.step(title, size, in_bytes=True), surviving_interruptions(turn.run, turn.interval):
        measure_undisturbed(turn.run, partial(measurer, turn))
