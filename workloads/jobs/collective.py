"""One collective among all GPUs, by any algorithm of the registry."""

from typing import Final

from pydantic import ValidationInfo, field_validator

from railyard.core.errors import unknown_name_hint
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import (
    algorithms_of,
    collective_schedule,
    collectives,
    default_algorithm,
)
from railyard.workloads.collectives.stages import IN_FLIGHT
from railyard.workloads.spec import WORKLOADS, Built, Count, Setting, Sized

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
        known = algorithms_of(info.data.get("collective", ""))
        if algorithm != "auto" and known and algorithm not in known:
            raise ValueError(f"is not for {info.data['collective']}: allowed are auto, {', '.join(known)}")
        return algorithm

    def resolve_algorithm(self, fabric: FabricSpec) -> str:
        """Return the full name of the algorithm chosen."""
        if self.algorithm != "auto":
            return algorithms_of(self.collective)[self.algorithm]
        return default_algorithm(self.collective, fabric)

    def label(self) -> str:
        return self.collective if self.algorithm == "auto" else algorithms_of(self.collective)[self.algorithm]

    def build(self, setting: Setting) -> Built:
        """A collective has no size of its own: the same bytes are projected to the real platform."""
        chosen, m, k = self.resolve_algorithm(setting.fabric), setting.fabric.domains, setting.fabric.rails
        sizing = "all-to-all-two-phase" if chosen == "all-to-all" else chosen
        factor = self.bytes_factor(
            setting, PROBE_BYTES, lambda: collective_schedule(sizing, m, k, PROBE_BYTES, self.in_flight)
        )
        return Built(collective_schedule(chosen, m, k, PROBE_BYTES * factor, self.in_flight), setting.scale(chosen))
