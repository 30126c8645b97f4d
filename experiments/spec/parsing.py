"""Parser of experiments: plain data, as YAML gives it, with the keys of ExperimentSpec and of every measure."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from pydantic import create_model

from railyard.core.config import OnFabrics, check_numbers, parse_model
from railyard.core.errors import BadInput
from railyard.experiments.measures.definition import MEASURES, Measure, measures_of
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plans
from railyard.experiments.spec.fabric_checks import check_fabrics, check_joined
from railyard.experiments.spec.faults import Repeats
from railyard.topologies.fabric_kinds import FABRIC_KINDS, BaseFabricSpec
from railyard.topologies.spec import FabricSpec

Sections = Mapping[str, frozenset[str]]
"""Every key of an experiment, and the keys of its items where it is a list of things."""


def sections(data: Mapping[str, Any]) -> Sections:
    """Return which keys `-o` may give without their section, on fabrics like the first one; plugins add to them."""
    fabric_spec = _fabric_spec(data)
    short_keys = {"fabrics": frozenset(fabric_spec.model_fields)}
    for measure in MEASURES.values():
        if measure.fabric_spec is fabric_spec:
            short_keys |= measure.short_keys_by_section()
    return {key: frozenset[str]() for key in experiment_model().ordered_keys()} | short_keys


def _fabric_spec(data: Mapping[str, Any]) -> type[BaseFabricSpec]:
    """Return the specification class of the first fabric; that of fabrics of GPUs where it isn't known."""
    fabrics = data.get("fabrics")
    if not isinstance(fabrics, list) or not fabrics or not isinstance(fabrics[0], Mapping):
        return FabricSpec
    # str(): the kind isn't checked yet, and may be a list
    kind = str(fabrics[0].get("kind"))
    if kind not in FABRIC_KINDS:
        return FabricSpec
    return FABRIC_KINDS[kind].Spec or FabricSpec


def experiment_model() -> type[ExperimentSpec]:
    """Return the model of an experiment's file, with the sections of all measures, those of plugins too."""
    return _model_with(tuple(MEASURES.values()))


@cache
def _model_with(measures: tuple[Measure[Any], ...]) -> type[ExperimentSpec]:
    fields: dict[str, Any] = {}
    for measure in measures:
        for section in measure.spec_sections:
            fields[section.key] = (section.Spec, section.default)
            if section.repeats_key:
                fields[section.repeats_key] = (Repeats, 1)
    # a model is made anew for each set of measures: plugins may be loaded and removed in one process
    model = cast(type[ExperimentSpec], create_model("ExperimentSpec", __base__=ExperimentSpec, **fields))
    plugin_sections: dict[str, str] = {}
    for name, measure in MEASURES.items():
        if MEASURES.source(name).origin != "built-in":
            plugin_sections |= {section.key: section.repeats_key for section in measure.spec_sections}
    model.plugin_sections = plugin_sections
    model.item_types = _item_types(measures)
    return model


def _item_types(measures: Iterable[Measure[Any]]) -> dict[str, dict[type[BaseFabricSpec], type[OnFabrics]]]:
    """Return the types of items that measures have in a section of another measure, by the class of the fabrics."""
    types: dict[str, dict[type[BaseFabricSpec], type[OnFabrics]]] = {}
    for measure in measures:
        for key, item_type in measure.shared_items.items():
            if item_type is not None:
                types.setdefault(key, {})[measure.fabric_spec] = item_type
    return types


def parse_keys(data: object) -> ExperimentSpec:
    """Return an experiment of which each key is checked, but not whether its fabrics can have its items."""
    if not isinstance(data, Mapping):
        raise BadInput("experiment", data, "must be keys and values: name, fabrics, workloads or faults, ...")
    return parse_model(experiment_model(), dict(data))


def restored(data: Mapping[str, Any]) -> ExperimentSpec:
    """Return the experiment of `resolved` data, which another process has checked; its plugins must be loaded."""
    return experiment_model().model_validate(dict(data))


def parse(data: object) -> ExperimentSpec:
    """Return an experiment from plain data, as YAML gives it. BadInput names the first field that is wrong."""
    spec = parse_keys(data)
    _check_sections(spec)
    _check_dependent_keys(spec)
    check_fabrics(spec)
    for measure in measures_of(spec):
        for section in measure.spec_sections:
            if not section.has_items:
                continue
            for i, item in enumerate(getattr(spec, section.key)):
                check_numbers(item.on, len(spec.fabrics), f"{section.key}.{i}.on")
        if measure.needs_all_paths:
            check_joined(spec, measure.key, measure.items(spec))
        measure.check(spec, nominal_plans(spec))
    return spec


def _check_sections(spec: ExperimentSpec) -> None:
    """Raise BadInput for sections that aren't for the fabrics, and for an experiment without any."""
    plain = ExperimentSpec.model_fields
    for key in spec.fabric_class.unused_keys:
        if getattr(spec, key) != plain[key].default:
            raise BadInput(key, spec.model_dump(mode="json")[key], "is for fabrics of GPUs")
    has_items = False
    for measure in MEASURES.values():
        for section in measure.spec_sections:
            value = getattr(spec, section.key)
            if value:
                has_items = True
                _check_section(spec, measure, section.key, _count(value))
    if not has_items:
        raise BadInput("workloads", [], "must have 1 or more, unless another section has something to measure")
    if len(set(spec.reroute)) < len(spec.reroute):
        raise BadInput("reroute", list(spec.reroute), "must name on and off once each")


def _check_dependent_keys(spec: ExperimentSpec) -> None:
    """Raise BadInput for a key that has an effect only beside the items of a measure, which has none."""
    for measure in MEASURES.values():
        if measure.items(spec):
            continue
        for key, allowed in measure.dependent_keys.items():
            value = getattr(spec, key)
            if value:
                raise BadInput(key, _count(value), allowed)


def _count(section: object) -> int:
    """Return how many items a section has; 1 for one that is no list."""
    if isinstance(section, tuple):
        return len(section)
    return 1


def _check_section(spec: ExperimentSpec, measure: Measure[Any], key: str, item_count: int) -> None:
    """Raise BadInput for a section with items that doesn't suit the fabrics, the machines or another section."""
    if not measure.is_for(spec):
        for other_measure in MEASURES.values():
            if key in other_measure.shared_items and other_measure.is_for(spec):
                return
        raise BadInput(key, spec.model_dump(mode="json")[key], "is for fabrics of GPUs")
    for other in sorted(measure.excludes):
        if getattr(spec, other):
            raise BadInput(key, item_count, f"can't be given together with {other}: make two experiments of it")
    if spec.machine_count > 1 and not measure.spans_machines:
        raise BadInput(key, item_count, "can't be given together with hosts: it needs all GPUs on one machine")
