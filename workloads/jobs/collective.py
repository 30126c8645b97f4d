"""One collective among all GPUs, by any algorithm of the registry."""

from typing import Final

from pydantic import ValidationInfo, field_validator

from railyard.core.errors import unknown_name_hint
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Setting, Sized, TrafficKind

TRAFFIC_KINDS.add("collective", TrafficKind())
PROBE_BYTES: Final = 10**9


@WORKLOADS.register("collective")
class CollectiveSpec(Sized):
    """One plain collective. auto: all-to-all two-phase on rail-only and direct elsewhere, the others hierarchical."""

    is_iteration = False

    collective: str
    algorithm: str = "auto"
    in_flight: Count = algorithms.IN_FLIGHT

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

        def schedule(name: str, data_bytes: float) -> Schedule:
            return algorithms.collective_schedule(name, *size, data_bytes, self.in_flight)

        factor = self.bytes_factor(setting, PROBE_BYTES, lambda: schedule(sizing, PROBE_BYTES))
        return Built(schedule(chosen, PROBE_BYTES * factor), setting.scale(chosen))
