"""Items of multi-rail experiments: workloads on the nodes of a fabric, and faults of its rails.

They stand in the keys `workloads` and `faults`, which experiments on other fabrics have too.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from railyard.core.config import check_numbers
from railyard.core.errors import BadInput
from railyard.core.units import Size, Time
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plans
from railyard.experiments.spec.faults import FaultSpec, check_faults
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.engine_kind import check_policy
from railyard.workloads.allreduce.workload import RailWorkload


class RailFaultSpec(FaultSpec):
    """A fault of a multi-rail fabric, injected `at` seconds after allreduces of `size` began under `policy`.

    They continue for `after` when it is repaired. `learning`: operations before them, if the policy learns. Every
    element of every operation is checked, so there is no minimum time before the fault.
    """

    at: Time = 0.3
    repair: Time = 0.7
    size: Size = 16 * 2**20
    after: Time = 1.5
    policy: str = "nezha"
    learning: Annotated[int, Field(ge=0, le=10_000)] = 60

    @property
    def identity(self) -> tuple[object, ...]:
        """Kind and target, and what it interrupts."""
        return self.kind, self.target, self.size, self.policy


def rail_fabrics(spec: ExperimentSpec) -> tuple[MultirailSpec, ...]:
    """Return the fabrics of an experiment if they are multi-rail; else none."""
    return tuple(fabric for fabric in spec.fabrics if isinstance(fabric, MultirailSpec))


def workloads_on(spec: ExperimentSpec, number: int) -> list[RailWorkload]:
    """Return the workloads of a fabric, by its number."""
    workloads = [workload for workload in workloads_of(spec) if isinstance(workload, RailWorkload)]
    return [workload for workload in workloads if workload.is_on(number)]


def faults_of(spec: ExperimentSpec) -> list[RailFaultSpec]:
    """Return all faults of multi-rail fabrics."""
    return [fault for fault in getattr(spec, "faults", ()) if isinstance(fault, RailFaultSpec)]


def faults_on(spec: ExperimentSpec, number: int) -> list[RailFaultSpec]:
    """Return the faults of a fabric, by its number."""
    return [fault for fault in faults_of(spec) if fault.is_on(number)]


def dilations_on(spec: ExperimentSpec, number: int) -> list[float]:
    """Return all dilations of a fabric, which is built anew for each. Faults aren't slowed down."""
    dilations = {1.0} if faults_on(spec, number) else set[float]()
    for workload in workloads_on(spec, number):
        dilations |= workload.dilations(number, rail_fabrics(spec)[number])
    return sorted(dilations)


def check_items(spec: ExperimentSpec) -> None:
    """Raise BadInput for items that the fabrics can't have, and for two workloads that record the same interval."""
    faults = faults_of(spec)
    for i, fault in enumerate(faults):
        check_numbers(fault.on, len(spec.fabrics), f"faults.{i}.on")
    check_faults(faults, nominal_plans(spec))
    for i, fault in enumerate(faults):
        for number, fabric in enumerate(rail_fabrics(spec)):
            if not fault.is_on(number):
                continue
            if len(fabric.rails) < 2:
                allowed = f"breaks the only rail of fabrics.{number}: nothing can take over"
                raise BadInput(f"faults.{i}.target", fault.target, allowed)
            check_policy(fault.policy, f"faults.{i}.policy", [fabric], faulted=True)
    intervals = set[tuple[int, str, str]]()
    for i, workload in enumerate(workloads_of(spec)):
        assert isinstance(workload, RailWorkload)
        workload.check(rail_fabrics(spec), f"workloads.{i}")
        for interval in _intervals(spec, workload):
            if interval in intervals:
                number, *names = interval
                allowed = f"is given twice for fabrics.{number}: {', '.join(filter(None, names))}"
                raise BadInput(f"workloads.{i}", workload.result_name, allowed)
            intervals.add(interval)


def _intervals(spec: ExperimentSpec, workload: RailWorkload) -> Iterator[tuple[int, str, str]]:
    """Yield the number of the fabric, the name and the policy of each interval that a workload records."""
    for number, fabric in enumerate(rail_fabrics(spec)):
        if workload.is_on(number):
            for name, policy in workload.intervals(number, fabric):
                yield number, name, policy
