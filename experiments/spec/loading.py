"""Load an experiment of any kind, by its name or file."""

from collections.abc import Iterable, Mapping
from typing import Any

from railyard.experiments.spec.catalogue import load_plugins, read
from railyard.experiments.spec.kind import BaseExperiment, kind_for
from railyard.experiments.spec.overrides import apply


def load_any(name_or_file: str, overrides: Iterable[str] = (), seed: int | None = None) -> BaseExperiment:
    """Return a named experiment or a YAML file, with `key=value` overrides on top. BadInput if it can't be used."""
    data = read(name_or_file)
    kind = kind_for(data)
    load_plugins(data, name_or_file)  # before overrides, which may have keys of their definitions
    data = apply(data, overrides, kind.sections())
    load_plugins(data, name_or_file)
    if seed is not None:
        data["seed"] = seed
    spec: BaseExperiment = kind.parse(data)
    return spec


def from_resolved(data: Mapping[str, Any]) -> BaseExperiment:
    """Return the experiment of resolved data, which was checked when it was loaded."""
    spec: BaseExperiment = kind_for(data).spec.model_validate(data)
    return spec
