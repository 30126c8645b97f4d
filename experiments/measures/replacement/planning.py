"""Fabrics with spares that replacements need, planned before anything is built."""

from collections.abc import Sequence
from typing import NamedTuple

from railyard.experiments.measures.replacement.spec import ReplacementSpec, with_spares
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.capacity import Capacity, auto_rail_bps
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec


class PlannedReplacement(NamedTuple):
    """A replacement on a fabric, both by their number in the experiment, and the plan of that fabric with spares."""

    fabric: int
    number: int
    name: str
    plan: Plan


def planned_replacements(
    spec: ExperimentSpec, replacements: Sequence[ReplacementSpec], capacity: Capacity | None
) -> list[PlannedReplacement]:
    """Return the replacements fabric by fabric, with names that are unique on a fabric.

    A replacement has one auto rate on all its fabrics, so that they can be compared. Not one for all replacements:
    where optical switches carry HB domains, rates are far lower than necessary elsewhere.
    """
    planned: list[PlannedReplacement] = []
    for number, replacement in enumerate(replacements):
        with_spares_by_fabric: dict[int, FabricSpec] = {}
        for n, fabric in enumerate(spec.gpu_fabrics):
            if replacement.is_on(n):
                with_spares_by_fabric[n] = with_spares(replacement, fabric)
        auto_bps = 0
        if capacity:
            auto_bps = auto_rail_bps(list(with_spares_by_fabric.values()), capacity)
        for n, fabric in with_spares_by_fabric.items():
            name = _name_on(n, spec.gpu_fabrics[n], replacement, replacements)
            planned.append(PlannedReplacement(n, number, name, make_plan(fabric, auto_bps)))
    planned.sort(key=lambda item: (item.fabric, item.number))
    return planned


def _name_on(
    number: int, fabric: FabricSpec, replacement: ReplacementSpec, replacements: Sequence[ReplacementSpec]
) -> str:
    """Return the name of a replacement on a fabric: with the failed part where several have the same case and way."""
    case_and_way = (replacement.case, replacement.way_on(fabric))
    on_fabric = [(item.case, item.way_on(fabric)) for item in replacements if item.is_on(number)]
    name = f"{replacement.case} by {replacement.way_on(fabric)}"
    if on_fabric.count(case_and_way) > 1:
        name += f", {replacement.failed}"
    return name
