"""Measures an experiment on fabrics of GPUs: builds and calibrates each, runs the workloads, injects the faults."""

import sys
from functools import partial
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.units import format_rate
from railyard.experiments.run.fault_script import inject_faults
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.replacement import planned, run_replacements
from railyard.experiments.run.session import FabricSession, built, check_links
from railyard.experiments.run.steered import load_steered
from railyard.experiments.run.traffic import Workload, run_workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.aggregate import slowdown_rows
from railyard.results.runs.records import Run
from railyard.topologies.measure import rates
from railyard.topologies.plan import Plan, make_plan
from railyard.workloads.spec import build_whole

SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that computes yields after so long, not after 5 ms: other threads react to events of the controller."""
FIRST: Final = 0  # of `reroute`: the workloads run on this one; nothing is broken then, so it makes no difference


def measure(spec: ExperimentSpec, datapath: Datapath, frames_per_s: float, run: Run, steps: Steps) -> None:
    """Measure everything of the specification on every fabric. `frames_per_s`: what the machine carries."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    auto = rates.auto_rail_bps(list(spec.fabrics), frames_per_s)
    plans = [make_plan(fabric, auto) for fabric in spec.fabrics]
    replacements = planned(spec, frames_per_s)
    for i, plan in [*enumerate(plans), *((one.fabric, one.plan) for one in replacements)]:
        _check_rate(plan, frames_per_s, f"fabrics.{i}.rail_rate")
    if _is_loaded(spec):
        _load_and_break(spec, plans, datapath, run, steps)
    run_replacements(spec, replacements, datapath, run, steps)
    run.measurements += slowdown_rows(run)


def step_count(spec: ExperimentSpec) -> int:
    """Return the steps of `measure`: builds, calibrations, workloads, faults and GPU replacements."""
    if not _is_loaded(spec):
        return spec.replacement_runs
    fabrics = len(spec.fabrics)
    builds = sum(len(spec.reroutes_on(n)) for n in range(fabrics))
    turns = len(spec.routing.policies) if spec.routing else 1
    turns *= len(spec.grid.scenes) if spec.grid else 1
    loads = fabrics * (1 + len(spec.workloads) * turns * spec.repeats)
    return builds + loads + spec.fault_runs + spec.replacement_runs


def _is_loaded(spec: ExperimentSpec) -> bool:
    """Whether there is something to do on the fabrics as they are, and not with spares beside them only."""
    return bool(spec.workloads or spec.faults or spec.scripts)


def _load_and_break(spec: ExperimentSpec, plans: list[Plan], datapath: Datapath, run: Run, steps: Steps) -> None:
    """On each fabric in turn, built anew for each `reroute`."""
    for number, (label, plan) in enumerate(zip(spec.labels, plans, strict=True)):
        make = partial(_workloads, spec, plan, label, run)
        for turn, reroute in enumerate(spec.reroutes_on(number)):
            with steps.step(f"{label}: building"):
                fabric = built(label, plan, datapath, reroute == "on", run)
                session = fabric.__enter__()
            try:
                if turn == FIRST and spec.routing:
                    load_steered(session, make, spec, run, steps)
                elif turn == FIRST:
                    _load(session, make(spec.seed), spec, run, steps)
                inject_faults(session, number, reroute, make, spec, run, steps)
            finally:
                fabric.__exit__(None, None, None)


def _check_rate(plan: Plan, frames_per_s: float, field: str) -> None:
    max_bps = rates.max_rail_bps(plan.spec, frames_per_s)
    if plan.rail_bps > max_bps:
        allowed = (
            f"is more than this machine carries: {format_rate(max_bps, 2)} or less for {plan.spec.gpus} GPUs, or auto"
        )
        raise BadInput(field, format_rate(plan.rail_bps), allowed)


def _workloads(spec: ExperimentSpec, plan: Plan, label: str, run: Run, seed: int) -> list[Workload]:
    """Schedules for this fabric, drawn from the seed where they are drawn; their scale goes into the run's record."""
    found = []
    for i, (name, workload) in enumerate(zip(spec.workload_labels, spec.workloads, strict=True)):
        built = build_whole(workload, plan.spec, plan.rail_bps, plan.hb_bps, f"workloads.{i}", seed)
        found.append(
            Workload(
                name,
                built.schedule,
                built.scale,
                workload.is_iteration,
                built.measured_files,
                independent=workload.is_independent,
            )
        )
        run.scale.append({**built.scale.as_dict(), "workload": name, "fabric": label})
    return found


def _load(session: FabricSession, workloads: list[Workload], spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    with steps.step(f"{session.label}: calibrating links"):
        check_links(session, run)
    for repeat in range(spec.repeats):
        for workload in workloads:
            what = f"{session.label}: {workload.label}" + (
                f", {repeat + 1} of {spec.repeats}" if spec.repeats > 1 else ""
            )
            with steps.step(what, total=sum(workload.schedule.matrix.values())):
                run_workload(session, workload, repeat, spec.seed, run, steps.reached)
