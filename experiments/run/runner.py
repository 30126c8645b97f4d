"""Runs an experiment in a sandbox and saves its records.

Whatever ends it early, what was measured by then is saved; an error makes it a run that failed.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
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
from railyard.experiments.live import page, recorded
from railyard.experiments.run.folder import REASON, Spare
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.session import record_interruptions
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs import store
from railyard.results.runs.journal import Journal
from railyard.results.runs.records import CONTROLLER, Run
from railyard.results.views import report


def run_experiment(
    spec: ExperimentSpec,
    folder: Path | Folder,
    console: Console | None,
    spare: Spare | None = None,
    command: Mapping[str, Any] | None = None,
    with_events: bool = False,
) -> int:
    """Run it all, save it in `folder`, print the summary. Return 0 if every check of the experiment passed, else 1.

    `with_events`: print the events of each step too.
    `command`: what it changes of the experiment, as loading.command_line returns it, for the report.
    An exception is raised again after saving and printing what there is: the folder records why the run failed.
    """
    family, resolved = spec.family, spec.resolved()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run = Run(spec.name, resolved, {}, started, files=dict(plugins.copies()))
    begun, begun_ns = time.monotonic(), time.monotonic_ns()
    watch.announce(lambda one: console.print(str(one), markup=False, highlight=False) if console else None)
    watch.include_own_pauses()
    journal = Journal(run, folder) if isinstance(folder, Folder) else None
    saved = False
    try:
        measured = family.needs_capacity(spec)
        on_end = journal.flush if journal else None
        with Steps(console, measured + family.step_count(spec), run, on_end, with_events) as steps:
            machine = detect()
            datapath, why = datapath_choice(machine)
            capacity = None
            if measured:
                with steps.step("measuring what this machine carries"):
                    capacity = family.capacity(spec, datapath)
            run.provenance = provenance(machine, datapath, why, resolved["seed"])
            run.provenance |= capacity.as_dict() if capacity else {}
            run.provenance |= {"command": command} if command else {}
            run.provenance |= {"live_page": recorded.PAGE} if page.is_served() else {}
            if spec.controller:
                source = Path(spec.controller).read_bytes()
                run.files[f"controller/{Path(spec.controller).name}"] = source
                run.provenance |= {CONTROLLER: {"file": spec.controller, "sha256": sha256(source).hexdigest()}}
            family.measure(spec, datapath, capacity, run, steps)
    except KeyboardInterrupt:
        run.interrupted = True
        raise
    except BaseException as error:  # one that isn't ours is a defect of Railyard: its type's name helps
        text = str(known_error(error) or f"{type(error).__name__}: {error}")
        causes = watch.since(begun_ns)
        crashed = isinstance(error, WorkerCrashed)  # which names the process, and has its traceback
        if causes and not crashed and not isinstance(error, watch.ProcessMissing):
            text = f"{causes[-1]}: {text}"
        run.failed = text.partition("\n")[0]
        if causes and not crashed:
            raise watch.ProcessMissing(run.failed) from error
        raise
    finally:
        record_interruptions(run, IntervalId())
        run.duration_s = time.monotonic() - begun
        if journal:
            journal.flush(has_ended=True)
        has_records = bool(run.fabrics or run.measurements or run.recoveries or run.replacements or run.rails)
        analysis = Analysis(run)
        if has_records:
            analysis, saved = save(run, folder, spare)
            if not saved:
                console = console or options.console()
            if run.interrupted and console:
                console.print("interrupted: what was measured until then is kept", highlight=False)
            if run.failed and console:
                report.print_summary(analysis, console)
        if journal:
            journal.close(remove=saved or not has_records)
    if console:
        report.print_summary(analysis, console)
    return 0 if analysis.passed and saved else 1


def save(run: Run, folder: Path | Folder, spare: Spare | None) -> tuple[Analysis, bool]:
    """Save a run in its folder, else in `spare`. Return its analysis, and whether the folder has it."""
    try:
        return store.save(run, folder), True
    except OSError as error:
        if spare is None:
            raise
        spare.write(REASON, (error.strerror or str(error)).encode())
        return store.save(run, spare), False
