"""Runs an experiment: each fabric is built, calibrated, loaded and broken in turn, and everything is written down.

Called in a capsule. Whatever ends it early, what was measured by then is saved; an error makes it a run that failed.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from railyard.controller.processes.clients import ControllerProcess
from railyard.core import plugins
from railyard.core.errors import BadInput, RailyardError
from railyard.core.host import Datapath, datapath_choice, detect
from railyard.core.provenance import provenance
from railyard.core.units import format_rate
from railyard.experiments.run.faults import inject_faults
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.replacement_runs import planned, run_replacements
from railyard.experiments.run.session import FabricSession, built, check_links
from railyard.experiments.run.steered import load_steered
from railyard.experiments.run.traffic import Workload, run_workload
from railyard.experiments.spec.experiment import ExperimentSpec, resolved
from railyard.results.analysis.aggregate import slowdown_rows
from railyard.results.runs import store
from railyard.results.runs.records import Run
from railyard.results.views import summary
from railyard.topologies.measure import capacity
from railyard.topologies.plan import Plan, make_plan
from railyard.workloads.build import build_whole

FIRST: Final = 0  # of `reroute`: the workloads run on this one; nothing is broken then, so it makes no difference


def run_experiment(spec: ExperimentSpec, folder: Path, console: Console | None) -> int:
    """Run it all, save it in `folder`, print the summary. 0 if every check of the experiment passed, else 1.

    Whatever raises, it raises on, after saving and printing what there is: the folder says that it failed, and by what.
    """
    run = begin(spec.name, resolved(spec))

    def work(steps: Steps) -> None:
        _run(spec, run, steps)
        run.measurements += slowdown_rows(run)

    return carry_out(run, _step_count(spec), work, folder, console)


def begin(name: str, spec: dict[str, Any]) -> Run:
    """A run of which nothing is known yet but when it began."""
    return Run(name, spec, {}, datetime.now(UTC).isoformat(timespec="seconds"), files=dict(plugins.copies()))


def carry_out(run: Run, total: int, work: Callable[[Steps], None], folder: Path, console: Console | None) -> int:
    """Do the work of `total` steps, which fills in `run`; save what came of it, print the summary. 0 if it passed."""
    begun = time.monotonic()
    try:
        with Steps(console, total) as steps:
            work(steps)
    except KeyboardInterrupt:
        run.interrupted = True
        raise
    except Exception as error:
        run.failed = _first_line(error)
        raise
    finally:
        run.duration_s = time.monotonic() - begun
        if run.fabrics or run.measurements or run.recoveries or run.takeovers or run.multirail:
            store.save(run, folder)
            if run.interrupted and console:
                console.print("interrupted: what was measured until then is kept", highlight=False)
            if run.failed and console:
                summary.print_summary(run, console)
    if console:
        summary.print_summary(run, console)
    return 0 if summary.summarise(run)["passed"] else 1


def _first_line(error: Exception) -> str:
    """Its first line; with its name where it isn't one of ours, which is a mistake in here."""
    text = str(error) if isinstance(error, RailyardError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def _step_count(spec: ExperimentSpec) -> int:
    """The machine; each build with its calibration; each workload, each fault and each takeover."""
    if not _is_loaded(spec):
        return 1 + spec.replacement_runs
    fabrics = len(spec.fabrics)
    builds = sum(len(spec.reroutes_on(n)) for n in range(fabrics))
    turns = len(spec.routing.policies) if spec.routing else 1
    turns *= len(spec.grid.scenes) if spec.grid else 1
    loads = fabrics * (1 + len(spec.workloads) * turns * spec.repeats)
    return 1 + builds + loads + spec.fault_runs + spec.replacement_runs


def _is_loaded(spec: ExperimentSpec) -> bool:
    """Whether there is something to do on the fabrics as they are, and not with spares beside them only."""
    return bool(spec.workloads or spec.faults or spec.scripts)


def _run(spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    machine = detect()
    datapath, why = datapath_choice(machine)
    with steps.step("measuring what this machine carries"):
        frames = capacity.measure(datapath, ControllerProcess())
    run.provenance = provenance(machine, datapath, why, frames, spec.seed)
    auto = capacity.auto_rail_bps(list(spec.fabrics), frames)
    plans = [make_plan(fabric, auto) for fabric in spec.fabrics]
    takeovers = planned(spec, frames)
    for i, plan in [*enumerate(plans), *((one.fabric, one.plan) for one in takeovers)]:
        _check_rate(plan, frames, f"fabrics.{i}.rail_rate")
    if _is_loaded(spec):
        _load_and_break(spec, plans, datapath, run, steps)
    run_replacements(spec, takeovers, datapath, run, steps)


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
    max_bps = capacity.max_rail_bps(plan.spec, frames_per_s)
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
