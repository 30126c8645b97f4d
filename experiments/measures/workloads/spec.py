"""Section `workloads` of an experiment's file, whose items are for all classes of fabrics, each kind for one."""

from collections.abc import Mapping, Sequence
from typing import Annotated, cast

from pydantic import BeforeValidator, ValidationInfo

from railyard.core.errors import BadInput
from railyard.experiments.spec.experiment import ExperimentSpec, Items, distinct_labels
from railyard.topologies.fabric_kinds import BaseFabricSpec
from railyard.workloads.spec import WORKLOADS, Workload, WorkloadSpec, kinds_for, parse_workload


def _parsed(data: object, info: ValidationInfo) -> object:
    """Parse each workload by its own kind, so that messages give that kind's values and the field's path."""
    if not isinstance(data, list):
        return data
    workloads = [parse_workload(item, f"workloads.{i}") for i, item in enumerate(data)]
    fabrics = info.data.get("fabrics")
    # none if they are wrong themselves
    if fabrics:
        _check_kinds(workloads, fabrics[0])
    _check_names(workloads)
    return workloads


def _check_kinds(workloads: Sequence[Workload], fabric: BaseFabricSpec) -> None:
    """Raise BadInput for a workload that isn't for fabrics of this class."""
    for i, workload in enumerate(workloads):
        if not isinstance(fabric, workload.fabric_spec):
            kinds = [name for name, kind in WORKLOADS.items() if isinstance(fabric, kind.fabric_spec)]
            allowed = f"is not for {fabric.kind}: allowed are {', '.join(sorted(kinds))}"
            raise BadInput(f"workloads.{i}.kind", workload.kind, allowed)


def _check_names(workloads: Sequence[Workload]) -> None:
    """Raise BadInput for a workload that has the name of another one."""
    names: set[str] = set()
    for i, workload in enumerate(workloads):
        if workload.name in names:
            raise BadInput(f"workloads.{i}.name", workload.name, "is the name of another workload: give each its own")
        names.add(workload.result_name)


WorkloadItems = Annotated[tuple[WorkloadSpec, ...], BeforeValidator(_parsed), Items]


def workloads_of(spec: ExperimentSpec) -> tuple[Workload, ...]:
    """Return the workloads of an experiment, on fabrics of any class."""
    return cast(tuple[Workload, ...], getattr(spec, "workloads", ()))


def workload_labels(spec: ExperimentSpec) -> tuple[str, ...]:
    """Return a name for each workload, the same on every fabric."""
    names: list[str] = []
    traits: list[Mapping[str, str]] = []
    for workload in workloads_of(spec):
        names.append(workload.result_name)
        # a name that the user gave stays as it is
        traits.append({} if workload.name else workload.traits())
    return distinct_labels(names, traits)


def labelled_workloads(spec: ExperimentSpec) -> list[tuple[str, Workload]]:
    """Return each workload after its name."""
    return list(zip(workload_labels(spec), workloads_of(spec), strict=True))


def short_keys(fabric_spec: type[BaseFabricSpec]) -> frozenset[str]:
    """Return the keys that `-o` may give without the section, of all kinds that are for a class of fabrics."""
    keys: set[str] = set()
    for kind in kinds_for(fabric_spec).values():
        keys |= set(kind.model_fields)
    # transfers have domains too, but who writes `domains=8` means the fabric's
    return frozenset(keys - {"domains", "on", "dilation"})
