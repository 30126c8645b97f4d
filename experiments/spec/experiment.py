"""Specification of an experiment: its keys, its labels, and the checks across sections."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator

from railyard.core import plugins
from railyard.core.config import ConfigModel, OnFabrics, PlainName, parse_by_kind, parse_model
from railyard.core.errors import BadInput
from railyard.core.input_paths import InputPath
from railyard.core.units import Time
from railyard.experiments.fabrics.definition import FabricClass, class_of
from railyard.experiments.spec.faults import ATTEMPTS, MAX_ATTEMPTS, Repeats
from railyard.experiments.spec.heartbeats import Heartbeats, HeartbeatsSpec
from railyard.experiments.spec.hosts import Hosts, UnderlaySpec
from railyard.topologies.fabric_kinds import FABRIC_KINDS, BaseFabricSpec, FabricPlan
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec


def distinct_labels(names: Sequence[str], traits: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return each name with the traits that differ among its namesakes, and a number where they don't suffice."""
    traits_by_name: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    for name, item_traits in zip(names, traits, strict=True):
        traits_by_name[name].append(item_traits)
    labels: list[str] = []
    for name, item_traits in zip(names, traits, strict=True):
        words = [name]
        for key, value in item_traits.items():
            values = {namesake.get(key, "") for namesake in traits_by_name[name]}
            if value and len(values) > 1:
                words.append(value)
        labels.append(_distinct(" ".join(words), labels))
    return tuple(labels)


def _distinct(label: str, taken: Sequence[str]) -> str:
    """Return a label, with the lowest number from 2 on if it is taken."""
    distinct = label
    number = 1
    while distinct in taken:
        number += 1
        distinct = f"{label} {number}"
    return distinct


MAX_ITEMS: Final = 100  # of each section
Items: Final = Field(max_length=MAX_ITEMS, strict=False)
NOMINAL_RAIL_BPS: Final = 100_000_000
"""Rate of an `auto` rail where no machine is measured: shapes, ratios and durations don't depend on it."""


Reroute = Literal["on", "off"]
"""Whether the controller reroutes pairs of GPUs."""


def _switches(value: object) -> object:
    """Accept a single value, and `on` and `off`, which YAML 1.1 reads as booleans."""
    if not isinstance(value, list):
        value = [value]
    names: dict[object, object] = {True: "on", False: "off"}
    # 1 and 0 are equal to the booleans, and are no switches
    return [names[item] if isinstance(item, bool) else item for item in value]


class ExperimentSpec(ConfigModel):
    """Items of the measures' sections run on every fabric, or on those of their `on`; workloads first, `repeats` times.

    An interval is measured up to `attempts` times, until no other program keeps the machine busy meanwhile.

    `reroute` off leaves routes as they are, as the papers have it; on lets the controller find detours, and GPUs send
    `heartbeats` while things break.
    The fabrics are built over `hosts` machines (a number, or their names), which the `underlay` joins.
    `controller` is the file of an app of os-ken or Ryu that decides how switches forward.
    `topic` groups it in `list`; `takes` is about how long a run takes where its times don't say so (duration.py). What
    else depends on the class of the fabrics: see `FabricClass`.
    """

    name: PlainName
    title: str = ""
    topic: str = ""
    takes: Time | None = None
    description: str = ""
    fabrics: Annotated[
        tuple[SerializeAsAny[BaseFabricSpec], ...], Field(min_length=1, max_length=MAX_ITEMS, strict=False)
    ]
    heartbeats: Heartbeats = HeartbeatsSpec()
    reroute: Annotated[
        tuple[Reroute, ...], BeforeValidator(_switches), Field(min_length=1, max_length=2, strict=False)
    ] = ("on", "off")
    repeats: Repeats = 1
    attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] = ATTEMPTS
    hosts: Hosts = 1
    underlay: UnderlaySpec = UnderlaySpec()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    plugins: Annotated[tuple[str, ...], Items] = ()
    controller: InputPath | None = None
    plugin_sections: ClassVar[Mapping[str, str]] = {}
    """The sections of measures that are plugins, each with its repeats key, or "" (parsing.experiment_model)."""
    item_types: ClassVar[Mapping[str, Mapping[type[BaseFabricSpec], type[OnFabrics]]]] = {}
    """Section -> specification class of fabrics -> type of its items there (Measure.shared_items)."""

    @field_validator("fabrics", mode="before")
    @classmethod
    def _fabrics_by_kind(cls, data: object) -> object:
        """Parse each fabric by its own kind. Fabrics of different classes can't be compared."""
        if not isinstance(data, list):
            return data
        kinds = {name: kind.Spec or FabricSpec for name, kind in FABRIC_KINDS.items()}
        fabrics = [parse_by_kind(item, kinds, f"fabrics.{i}") for i, item in enumerate(data)]
        for i, fabric in enumerate(fabrics):
            if type(fabric) is not type(fabrics[0]):
                allowed = f"can't be in one experiment with {fabrics[0].kind}: make two experiments of it"
                raise BadInput(f"fabrics.{i}.kind", fabric.kind, allowed)
        return fabrics

    @field_validator("*", mode="before")
    @classmethod
    def _items_by_fabric(cls, data: object, info: ValidationInfo) -> object:
        """Parse the items of a section with the keys that they have on fabrics of this class."""
        fabrics = info.data.get("fabrics")
        types = cls.item_types.get(info.field_name or "")
        if not fabrics or not types or not isinstance(data, list):
            return data
        item_type = types.get(type(fabrics[0]))
        if item_type is None:
            return data
        return [parse_model(item_type, item, f"{info.field_name}.{i}") for i, item in enumerate(data)]

    @cached_property
    def fabric_class(self) -> FabricClass[Any, Any]:
        """The class of its fabrics."""
        return class_of(type(self.fabrics[0]))

    @cached_property
    def gpu_fabrics(self) -> tuple[FabricSpec, ...]:
        """The fabrics if they are of GPUs; else none."""
        return tuple(fabric for fabric in self.fabrics if isinstance(fabric, FabricSpec))

    def resolved(self) -> dict[str, Any]:
        """Return plain data with every default filled in, of which `parse` makes the same experiment."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        # processes without the plugin read it where the section is empty
        unused: set[str] = set()
        for section, repeats in self.plugin_sections.items():
            if not data[section]:
                unused |= {section, repeats}
        resolved = {key: data[key] for key in self.ordered_keys() if key in data and key not in unused}
        return resolved | {"plugins": list(plugins.copies())}

    @classmethod
    def ordered_keys(cls) -> list[str]:
        """Return every key in the order in which files have them: sections of measures are among the sections."""
        keys = list(ExperimentSpec.model_fields)
        for key, field in cls.model_fields.items():
            if key not in ExperimentSpec.model_fields:
                # how often a section is repeated stands behind `repeats`
                following = "attempts" if field.annotation is int else "heartbeats"
                keys.insert(keys.index(following), key)
        return keys

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A name for each fabric: its kind, and what sets it apart from others of that kind."""
        names = [fabric.label() for fabric in self.fabrics]
        traits = [fabric.traits(self.fabrics) for fabric in self.fabrics]
        return distinct_labels(names, traits)

    @property
    def machine_count(self) -> int:
        """Number of machines that the fabrics are built over."""
        if isinstance(self.hosts, int):
            return self.hosts
        return len(self.hosts)


def nominal_plan(fabric: FabricSpec) -> Plan:
    """Return the fabric with `auto` rails at their nominal rate."""
    return make_plan(fabric, NOMINAL_RAIL_BPS)


def nominal_plans(spec: ExperimentSpec) -> list[FabricPlan]:
    """Return the plans of all fabrics, with `auto` rates at their nominal ones."""
    return [spec.fabric_class.nominal_plan(fabric) for fabric in spec.fabrics]
