"""One collective among all GPUs, by any algorithm of the registry, or in one communicator of some of them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from railyard.core.config import check_unique
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.schedule import Phase, Program, Rates, Schedule
from railyard.workloads.spec import TRAFFIC_KINDS, WORKLOADS, Built, Count, Setting, Sized, TrafficKind

TRAFFIC_KINDS.add("collective", TrafficKind())
IN_COMMUNICATORS: Final = ("ring", "direct")
"""Algorithms of one communicator by name. A collective has one of them."""
PROBE_BYTES: Final = 10**9
# more than may be replayed: a probe has as many slices as there can be
PROBE_GPU_TASKS: Final = 2**13


@WORKLOADS.register("collective")
class CollectiveSpec(Sized):
    """One plain collective. auto: all-to-all two-phase on rail-only and direct elsewhere, the others hierarchical.

    `gpus`: the members of one communicator in the order of its ring, as d0g0; left out: all. They send in one ring, or
    an all-to-all straight from pair to pair.
    """

    is_iteration = False

    collective: str
    algorithm: str = "auto"
    gpus: Annotated[tuple[str, ...], Field(min_length=2, strict=False), AfterValidator(check_unique)] | None = None
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

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if gpus is not None and info.data.get("algorithm", "auto") not in ("auto", *IN_COMMUNICATORS):
            allowed = " and ".join(IN_COMMUNICATORS)
            raise ValueError(f"can't be given with algorithm {info.data['algorithm']}: in a communicator are {allowed}")
        return gpus

    def label(self) -> str:
        return {"auto": self.collective, **algorithms.algorithms_of(self.collective)}[self.algorithm]

    def traits(self) -> dict[str, str]:
        """Return the GPUs of its communicator."""
        return {"gpus": f"of {' '.join(self.gpus)}"} if self.gpus else {}

    def build(self, setting: Setting) -> Built:
        """A collective has no size of its own: the same bytes are projected to the real platform."""
        if self.gpus:
            return self._build_communicator(setting, self.gpus)
        size = (setting.fabric.domains, setting.fabric.rails)
        chosen = algorithms.chosen_algorithm(self.collective, self.algorithm, setting.fabric)
        sizing = chosen if algorithms.ALGORITHMS[chosen].per_rail else algorithms.sizing_algorithm(self.collective)
        in_flight = None if self.in_flight == "auto" else self.in_flight
        probe = (algorithms.ALGORITHMS[sizing], sizing, *size, in_flight)
        factor = self.bytes_factor(setting, PROBE_BYTES, lambda rates: _probe_s(*probe, rates))
        schedule = _schedule(algorithms.ALGORITHMS[chosen], chosen, *size, PROBE_BYTES * factor, in_flight)
        return Built(schedule, setting.scale(chosen))

    def _build_communicator(self, setting: Setting, gpus: Sequence[str]) -> Built:
        """Build the collective of one communicator. BadInput for a GPU that the fabric doesn't have."""
        names = [gpu.name for gpu in setting.fabric.size.gpus]
        for number, name in enumerate(gpus):
            if name not in names:
                raise BadInput(f"{setting.field}.gpus.{number}", name, unknown_name_hint(name, names))
        members = [names.index(name) for name in gpus]
        by_name = algorithms.algorithms_of(self.collective)
        algorithm = next(by_name[name] for name in IN_COMMUNICATORS if name in by_name)

        def schedule_of(data_bytes: float) -> Schedule:
            program = Program(setting.fabric.domains, setting.fabric.rails)
            # without an algorithm's name: its formula knows nothing of where the members are
            shape = (1, len(members))
            phase = Phase(self.collective, "collective", "", *shape, data_bytes, communicator=self.result_name)
            grid = tuple((member,) for member in members)
            in_flight = None if self.in_flight == "auto" else self.in_flight
            algorithms.ALGORITHMS[algorithm].emit(program, phase, program.phase(phase), grid, in_flight)
            return program.schedule(self.collective)

        probe = schedule_of(PROBE_BYTES)
        factor = self.bytes_factor(setting, PROBE_BYTES, lambda rates: line_rate_duration_s(probe, rates))
        return Built(schedule_of(PROBE_BYTES * factor), setting.scale(algorithm))


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
