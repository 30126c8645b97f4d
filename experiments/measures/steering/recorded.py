"""Steering as a run recorded it in its specification; policies of plugins needn't be loaded."""

from railyard.core.units import parse_time
from railyard.results.runs.records import Run
from railyard.workloads.background.spec import GridSpec


def is_steered(run: Run) -> bool:
    """Return whether policies steered the routes of a run: each fabric ran under each policy in turn."""
    return bool(run.experiment.section("routing"))


def recorded_policies(run: Run) -> tuple[str, ...]:
    """Return the policies of a run in the order of its specification."""
    routing = run.experiment.section("routing") or {}
    return tuple(routing.get("policies") or ())


def recorded_grid(run: Run) -> GridSpec | None:
    """Return the grid of scenes of a run, if it had one."""
    grid = run.experiment.section("grid")
    return GridSpec.model_validate(grid) if grid else None


def recorded_dwell_s(run: Run) -> float | None:
    """Return the least time between two changes of a pair's path, s; None without one."""
    routing = run.experiment.section("routing") or {}
    try:
        return parse_time(routing.get("dwell"))
    # `none`, or zero, which is no time
    except ValueError:
        return None
