"""One collective among all GPUs, by any algorithm of the registry."""

from functools import lru_cache
from typing import Final, Literal

from pydantic import ValidationInfo, field_validator

from railyard.core.errors import unknown_name_hint
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.schedule import Rates, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Setting, Sized, TrafficKind

TRAFFIC_KINDS.add("collective", TrafficKind())
PROBE_BYTES: Final = 10**9
# more than may be replayed: a probe has as many slices as there can be
PROBE_GPU_TASKS: Final = 2**13


@WORKLOADS.register("collective")
class CollectiveSpec(Sized):
    """One plain collective. auto: all-to-all two-phase on rail-only and direct elsewhere, the others hierarchical."""

    is_iteration = False

    collective: str
    algorithm: str = "auto"
    in_flight: Count | Literal["auto"] = "auto"

    @field_validator("collective")
    @classmethod
    def _check_collective(cls, collective: str) -> str:
        if collective not in algorithms.collectives():
            raise ValueError(unknown_name_hint(collective, algorithms.collectives()))
        return collective

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm(cls, algorithm: str, info: ValidationInfo) -> str:
        collective = info.data.get("collective")
        return algorithms.check_algorithm(collective, algorithm) if collective else algorithm

    def label(self) -> str:
        return {"auto": self.collective, **algorithms.algorithms_of(self.collective)}[self.algorithm]

    def build(self, setting: Setting) -> Built:
        """A collective has no size of its own: the same bytes are projected to the real platform."""
        size = (setting.fabric.domains, setting.fabric.rails)
        chosen = algorithms.chosen_algorithm(self.collective, self.algorithm, setting.fabric)
        sizing = chosen if algorithms.ALGORITHMS[chosen].per_rail else algorithms.sizing_algorithm(self.collective)
        in_flight = None if self.in_flight == "auto" else self.in_flight
        probe = (algorithms.ALGORITHMS[sizing], sizing, *size, in_flight)
        factor = self.bytes_factor(setting, PROBE_BYTES, lambda rates: _probe_s(*probe, rates))
        schedule = _schedule(algorithms.ALGORITHMS[chosen], chosen, *size, PROBE_BYTES * factor, in_flight)
        return Built(schedule, setting.scale(chosen))


# Fabrics of an experiment often differ in nothing that a schedule depends on: with 448 GPUs it takes seconds. The
# algorithm is a part of the key because a plugin may define another one under the same name.
@lru_cache(maxsize=64)
def _probe_s(
    algorithm: algorithms.Algorithm, name: str, domains: int, rails: int, in_flight: int | None, rates: Rates
) -> float:
    # rails without a common port take the same time
    rails = 1 if algorithm.per_rail else rails
    probe = algorithms.collective_schedule(name, domains, rails, PROBE_BYTES, in_flight, gpu_tasks=PROBE_GPU_TASKS)
    return line_rate_duration_s(probe, rates)


@lru_cache(maxsize=1)
def _schedule(
    algorithm: algorithms.Algorithm, name: str, domains: int, rails: int, data_bytes: float, in_flight: int | None
) -> Schedule:
    return algorithms.collective_schedule(name, domains, rails, data_bytes, in_flight)
