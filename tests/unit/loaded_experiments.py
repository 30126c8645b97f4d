"""Load an experiment on fabrics of GPUs, with its own type, and messages of values that are refused."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import yaml

from railyard.core.errors import BadInput
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.parsing import parse


def load(name_or_file: str, overrides: Iterable[str] = (), seed: int | None = None) -> ExperimentSpec:
    """Return what load_any does; the experiment must be on fabrics of GPUs."""
    spec = load_any(name_or_file, overrides, seed)
    assert isinstance(spec, ExperimentSpec)
    return spec


def refusals(experiment: Mapping[str, Any], changes: str) -> dict[str, str]:
    """Return the message for each change of an experiment that is refused, for a golden file.

    `changes`: a change a line, in YAML: keys of the experiment, each with the value that takes the place of its own.
    """
    messages: dict[str, str] = {}
    for change in filter(None, changes.splitlines()):
        messages[change] = refusal({**experiment, **yaml.safe_load(f"{{{change}}}")})
    return messages


def refusal(experiment: object) -> str:
    """Return the message for an experiment that is refused."""
    with pytest.raises(BadInput) as caught:
        parse(experiment)
    return str(caught.value)
