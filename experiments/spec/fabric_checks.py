"""Checks of fabrics together with the keys of an experiment that depend on them, such as controller and hosts."""

from collections.abc import Iterable

from railyard.core.config import OnFabrics
from railyard.core.errors import BadInput
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.hosts import UnderlaySpec


def check_fabrics(spec: ExperimentSpec) -> None:
    """Raise BadInput for fabrics that can't be built as the experiment says."""
    spec.fabric_class.check(spec.fabrics)
    if not spec.gpu_fabrics:
        return
    _check_controller(spec)
    _check_hosts(spec)


def _check_controller(spec: ExperimentSpec) -> None:
    """Raise BadInput for an app of the user's on fabrics whose switches need Railyard's flows."""
    if spec.controller is None:
        return
    if spec.machine_count > 1:
        raise BadInput("controller", spec.controller, "can't be given together with hosts of 2 or more")
    if any(fabric.optical for fabric in spec.gpu_fabrics):
        raise BadInput("controller", spec.controller, "can't be given with optical switches")


def _check_hosts(spec: ExperimentSpec) -> None:
    """Raise BadInput for what can't be on several machines, and for an underlay that nothing would use."""
    if spec.machine_count == 1:
        if spec.underlay != UnderlaySpec():
            raise BadInput("underlay", spec.underlay.model_dump(mode="json"), "is for hosts of 2 or more")
        return
    if not spec.underlay.interface:
        raise BadInput("underlay.interface", "", "must be named: the interface that leads to the other machines")
    for i, fabric in enumerate(spec.gpu_fabrics):
        if fabric.spine_count or fabric.optical or fabric.definition.is_graph:
            parts = "optical switches" if fabric.optical else "links between switches"
            raise BadInput(f"fabrics.{i}.kind", fabric.kind, f"can't be on several hosts with {parts}")
        if fabric.rail_of_rank:
            raise BadInput(f"fabrics.{i}.kind", fabric.kind, "can't be on several hosts if GPUs share NICs")
        if fabric.domains < spec.machine_count:
            allowed = f"must be {fabric.domains} or less: HB domains are whole on a machine, fabrics.{i} has no more"
            raise BadInput("hosts", spec.machine_count, allowed)


def check_joined(spec: ExperimentSpec, key: str, items: Iterable[OnFabrics] | None = None) -> None:
    """Raise BadInput for a fabric whose policy leaves pairs without a path, for a section that needs paths for all.

    `key`: of the section. `items`: of the section, where each may be on some fabrics only.
    """
    for number, fabric in enumerate(spec.gpu_fabrics):
        is_needed = items is None or any(item.is_on(number) for item in items)
        if is_needed and not fabric.forwards_in_domains:
            allowed = f"leaves GPUs of different rails and domains without a path: it can't be given with {key}"
            raise BadInput(f"fabrics.{number}.policy", fabric.chosen_policy, allowed)
