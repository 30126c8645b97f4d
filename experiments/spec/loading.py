"""An experiment of either kind, by its name or file: on grids of GPUs, or on nodes with several rails each."""

from collections.abc import Iterable, Mapping
from typing import Any

from railyard.core.config import is_path
from railyard.experiments.multirail import spec as rails
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.spec import experiment as grids
from railyard.experiments.spec.catalogue import load_plugins, names, read
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.overrides import apply
from railyard.topologies.multirail.addresses import Nic

AnyExperiment = ExperimentSpec | MultirailExperiment


def load_any(name_or_file: str, overrides: Iterable[str] = (), seed: int | None = None) -> AnyExperiment:
    """As `railyard.experiments.spec.experiment.load`, for both kinds; the fabrics tell which it is."""
    data = read(name_or_file)
    if not rails.is_multirail(data):
        return grids.load(name_or_file, overrides, seed)
    data = apply(data, overrides, rails.SECTIONS)
    load_plugins(data, name_or_file)
    if seed is not None:
        data["seed"] = seed
    return rails.parse(data)


def names_multirail(name_or_file: str) -> bool:
    """Whether it is an experiment with multi-rail fabrics; what is no experiment, such as a trace, isn't."""
    known = name_or_file in names() or is_path(name_or_file)
    return known and rails.is_multirail(read(name_or_file))


def resolved(spec: AnyExperiment) -> dict[str, Any]:
    """Plain data with every default filled in."""
    return rails.resolved(spec) if isinstance(spec, MultirailExperiment) else grids.resolved(spec)


def from_resolved(data: Mapping[str, Any]) -> AnyExperiment:
    """What `resolved` made plain data of, and was checked then."""
    kind = MultirailExperiment if rails.is_multirail(data) else ExperimentSpec
    return kind.model_validate(data)


def hosts(spec: AnyExperiment) -> dict[str, str]:
    """The address of every GPU, or of every node on its first rail."""
    if isinstance(spec, MultirailExperiment):
        return {nic.namespace: nic.ip for f in spec.fabrics for nic in (Nic(0, node) for node in range(f.nodes))}
    return {gpu.name: gpu.ip for fabric in spec.fabrics for gpu in grids.nominal_plan(fabric).gpus}
