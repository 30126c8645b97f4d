"""Experiments in a script: a run in a process of its own, and its results or the error that it ended with."""

import json
import os
import re
import signal
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from railyard.core.config import parse_model
from railyard.core.errors import BadInput, MissingRequirement, RailyardError
from railyard.experiments.api import messages as m
from railyard.experiments.api import timing
from railyard.experiments.api.connection import CANCEL_S, Connection
from railyard.experiments.api.machine import TURN
from railyard.experiments.api.results import Results, load


def run(
    name: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    check: bool = False,
    no_queue: bool = False,
) -> Results:
    """Run an experiment, by name or file, and return its results; `overrides` are those of `-o`.

    Its folder is `out`, by default runs/<utc time>-NAME. `no_queue`: start at once, also while other runs measure on
    this machine. BadInput, MachineLacks; with `check`, CheckFailed if a check of the experiment failed.
    KeyboardInterrupt stops the run, and its folder has what was measured until then.
    """
    if not isinstance(overrides, Mapping | None):
        raise BadInput("overrides", overrides, "must be a mapping of keys to values")
    changes = [f"{key}={json.dumps(value, default=str)}" for key, value in (overrides or {}).items()]
    folder = None
    if out is not None:
        folder = m.path_text("out", out)
    arguments = {"name": m.path_text("NAME", name), "overrides": tuple(changes), "out": folder, "seed": seed}
    queue = {"no_queue": no_queue or TURN.is_held}
    order = parse_model(m.RunExperiment, {**arguments, **queue, "caller": os.getpid()})
    connection = Connection(order)
    try:
        folder, status = connection.started.result()
        if not Path(folder, "run.json").exists():
            raise _failure(status, connection.last_line())
    except KeyboardInterrupt:
        connection.process.send_signal(signal.SIGINT)
        wait([connection.started], CANCEL_S)
        raise
    finally:
        connection.close()
    results = load(folder)
    timing.record(results)
    if check:
        results.check()
    return results


def _failure(status: int, line: str) -> RailyardError:
    """Return the exception for a run that ended without records: of its exit status and its line."""
    text = line.removeprefix("error: ")
    if status == BadInput.exit_status and (parts := re.match(r"([^:]+): ('[^']*'|\S+) (.*)", text)):
        return BadInput(parts[1], parts[2].strip("'"), parts[3])
    if status == MissingRequirement.exit_status:
        problem, _, remedy = text.partition("; ")
        return MissingRequirement(problem, remedy)
    error = RailyardError(text or f"the run ended with exit status {status} and left no records")
    error.exit_status = status
    return error
