"""About how long workloads take under policies, from the specification alone."""

from collections.abc import Iterator
from typing import Final

from railyard.experiments.measures.steering.spec import RoutingSpec, background_of, grid_of
from railyard.experiments.spec.duration import INTERVAL_S
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.workloads.background.spec import BackgroundSpec

# a background of 100% would leave nothing to the workload, which would never end
MAX_LOAD: Final = 0.95


def seconds_of_repeat(spec: ExperimentSpec, routing: RoutingSpec, stated_s: float) -> float:
    """Return how long a repeat of a workload takes, s, under all policies and in all scenes.

    `stated_s`: its time on an idle fabric.
    """
    around_s = 2 * routing.settle + INTERVAL_S
    scenes_s = sum(stated_s * slowdown + around_s for slowdown in _slowdowns(spec))
    return len(routing.policies) * scenes_s


def _slowdowns(spec: ExperimentSpec) -> Iterator[float]:
    """Yield for each scene how many times as long a workload takes, by about half of the policies around the load."""
    grid = grid_of(spec)
    if grid:
        loads = [max(grid.loads)] * len(grid.scenes)
    else:
        loads = [max(map(_mean_load, background_of(spec)), default=0.0)]
    for load in loads:
        yield (1 + 1 / (1 - load)) / 2


def _mean_load(entry: BackgroundSpec) -> float:
    """Return the load of an entry of the background, on average over its period."""
    load = entry.load
    if entry.duration and entry.period:
        load *= min(1.0, entry.duration / entry.period)
    return min(load, MAX_LOAD)
