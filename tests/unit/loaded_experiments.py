"""Load an experiment on fabrics of GPUs, with its own type."""

from collections.abc import Iterable

from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import load_any


def load(name_or_file: str, overrides: Iterable[str] = (), seed: int | None = None) -> ExperimentSpec:
    """Return what load_any does; the experiment must be on fabrics of GPUs."""
    spec = load_any(name_or_file, overrides, seed)
    assert isinstance(spec, ExperimentSpec)
    return spec
