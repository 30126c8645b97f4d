"""Runs an experiment in a sandbox and saves its records.

Whatever ends it early, what was measured by then is saved; an error makes it a run that failed.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console

from railyard.core import plugins, watch
from railyard.core.crash import WorkerCrashed, known_error
from railyard.core.host import datapath_choice, detect
from railyard.core.provenance import provenance
from railyard.core.records import IntervalId
from railyard.core.safe_files import Folder
from railyard.experiments import options
from railyard.experiments.measures.definition import RunContext, measures_of
from railyard.experiments.run import observers
from railyard.experiments.run.folder import REASON, Spare
from railyard.experiments.run.measuring import run_measures, shared_steps
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.session import record_interruptions
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.journal import Journal
from railyard.results.runs.records import CONTROLLER, EVENTS, Run, record_kinds
from railyard.results.views import report
from railyard.topologies.capacity import Capacity


def run_experiment(
    spec: ExperimentSpec,
    folder: Path | Folder,
    console: Console | None,
    spare: Spare | None = None,
    command: Mapping[str, Any] | None = None,
    with_events: bool = False,
) -> int:
    """Run it all, save it in `folder`, print the summary. Return 0 if every check passed and all was saved, else 1.

    `with_events`: print the events of each step too.
    `command`: what it changes of the experiment, as loading.command_line returns it, for the report.
    An exception is raised again after saving and printing what there is: the folder records why the run failed.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run = Run(spec.name, spec.resolved(), {}, started, files=dict(plugins.copies()))
    begun_s = time.monotonic()
    begun_ns = time.monotonic_ns()
    watch.announce(partial(_print_interruption, console))
    watch.include_own_pauses()
    journal = Journal(run, folder) if isinstance(folder, Folder) else None
    saved = False
    try:
        _measure(spec, run, console, journal, command, with_events)
    except KeyboardInterrupt:
        run.interrupted = True
        raise
    except BaseException as error:
        missing = _record_failure(run, error, begun_ns)
        if missing:
            raise missing from error
        raise
    finally:
        record_interruptions(run, IntervalId())
        run.duration_s = time.monotonic() - begun_s
        if journal:
            journal.flush(has_ended=True)
        has_records = _has_records(run)
        analysis = Analysis(run)
        if has_records:
            analysis, saved = save(run, folder, spare)
            if not saved:
                console = console or options.console()
            _print_early_end(run, analysis, console)
        if journal:
            journal.close(remove=saved or not has_records)
    if console:
        report.print_summary(analysis, console)
    return 0 if analysis.passed and saved else 1


def _has_records(run: Run) -> bool:
    """Return whether anything was measured, or a fabric was built."""
    return any(run.rows(kind) for kind in record_kinds().values() if kind is not EVENTS)


def _print_interruption(console: Console | None, interruption: watch.Interruption) -> None:
    if console:
        console.print(str(interruption), markup=False, highlight=False)


def _measure(
    spec: ExperimentSpec,
    run: Run,
    console: Console | None,
    journal: Journal | None,
    command: Mapping[str, Any] | None,
    with_events: bool,
) -> None:
    """Measure the machine if a rate depends on it, then the experiment, and record under which conditions."""
    fabric_class = spec.fabric_class
    needs_capacity = fabric_class.needs_capacity(spec.fabrics)
    step_count = shared_steps(spec) + int(needs_capacity)
    step_count += sum(measure.steps(spec) for measure in measures_of(spec))
    on_end = journal.flush if journal else None
    with Steps(console, step_count, run, on_end, with_events) as steps:
        machine = detect()
        datapath, reason = datapath_choice(machine)
        capacity = None
        if needs_capacity:
            with steps.step("measuring what this machine carries"):
                capacity = fabric_class.capacity(spec.fabrics, datapath)
        run.provenance = provenance(machine, datapath, reason, spec.resolved()["seed"])
        if capacity:
            run.provenance |= capacity.as_dict()
        if command:
            run.provenance["command"] = command
        run.provenance |= observers.provenance()
        if spec.controller:
            _record_controller(spec.controller, run)
        plans = _checked_plans(spec, capacity)
        run_measures(RunContext(spec, plans, datapath, capacity, run, steps))


def _checked_plans(spec: ExperimentSpec, capacity: Capacity | None) -> list[Any]:
    """Return the plans of the fabrics. BadInput if one of them, or of a measure's, is more than this machine carries.

    `capacity`: what the machine carries, if it was measured.
    """
    # all of them before anything is built: a run of an hour must not end at its last fabric
    plans = spec.fabric_class.plans(spec.fabrics, capacity)
    numbered_plans = list(enumerate(plans))
    for measure in measures_of(spec):
        numbered_plans += measure.plans(spec, capacity)
    for number, plan in numbered_plans:
        spec.fabric_class.check_plan(plan, number, capacity)
    return plans


def _record_controller(path: str, run: Run) -> None:
    """Keep a copy of the user's OpenFlow app, and its digest."""
    source = Path(path).read_bytes()
    run.files[f"controller/{Path(path).name}"] = source
    run.provenance[CONTROLLER] = {"file": path, "sha256": sha256(source).hexdigest()}


def _record_failure(run: Run, error: BaseException, begun_ns: int) -> watch.ProcessMissing | None:
    """Record why a run failed. Return the error to raise instead, if a process that died or stopped caused this one."""
    # the type's name helps with an error that isn't one of Railyard's, which is a defect
    message = str(known_error(error) or f"{type(error).__name__}: {error}")
    interruptions = watch.since(begun_ns)
    # WorkerCrashed names the process already, and has its traceback
    has_cause = bool(interruptions) and not isinstance(error, WorkerCrashed)
    if has_cause and not isinstance(error, watch.ProcessMissing):
        message = f"{interruptions[-1]}: {message}"
    run.failed = message.partition("\n")[0]
    return watch.ProcessMissing(run.failed) if has_cause else None


def _print_early_end(run: Run, analysis: Analysis, console: Console | None) -> None:
    if console is None:
        return
    if run.interrupted:
        console.print("interrupted: what was measured until then is kept", highlight=False)
    if run.failed:
        report.print_summary(analysis, console)


def save(run: Run, folder: Path | Folder, spare: Spare | None) -> tuple[Analysis, bool]:
    """Save a run in its folder, else in `spare`. Return its analysis, and whether the folder has it."""
    try:
        return run_folder.save(run, folder), True
    except OSError as error:
        if spare is None:
            raise
        spare.write(REASON, (error.strerror or str(error)).encode())
        return run_folder.save(run, spare), False
