"""One collective among all GPUs, by any algorithm of the registry."""

from typing import Final

from pydantic import ValidationInfo, field_validator

from railyard.core.errors import unknown_name_hint
from railyard.workloads.collectives.algorithm import (
    ALGORITHMS,
    IN_FLIGHT,
    algorithms_of,
    check_algorithm,
    chosen_algorithm,
    collective_schedule,
    collectives,
    sizing_algorithm,
)
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Setting, Sized, TrafficKind

TRAFFIC_KINDS.add("collective", TrafficKind())
PROBE_BYTES: Final = 10**9


@WORKLOADS.register("collective")
class CollectiveSpec(Sized):
    """One plain collective. auto: all-to-all two-phase on rail-only and direct elsewhere, the others hierarchical."""

    is_iteration = False

    collective: str
    algorithm: str = "auto"
    in_flight: Count = IN_FLIGHT

    @field_validator("collective")
    @classmethod
    def _check_collective(cls, collective: str) -> str:
        if collective not in collectives():
            raise ValueError(unknown_name_hint(collective, collectives()))
        return collective

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm(cls, algorithm: str, info: ValidationInfo) -> str:
        return check_algorithm(info.data["collective"], algorithm) if "collective" in info.data else algorithm

    def label(self) -> str:
        return self.collective if self.algorithm == "auto" else algorithms_of(self.collective)[self.algorithm]

    def build(self, setting: Setting) -> Built:
        """A collective has no size of its own: the same bytes are projected to the real platform."""
        m, k = setting.fabric.domains, setting.fabric.rails
        chosen = chosen_algorithm(self.collective, self.algorithm, setting.fabric)
        sizing = chosen if ALGORITHMS[chosen].per_rail else sizing_algorithm(self.collective)
        factor = self.bytes_factor(
            setting, PROBE_BYTES, lambda: collective_schedule(sizing, m, k, PROBE_BYTES, self.in_flight)
        )
        return Built(collective_schedule(chosen, m, k, PROBE_BYTES * factor, self.in_flight), setting.scale(chosen))
