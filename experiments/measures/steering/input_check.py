"""Check of routing, its background and its grid against the fabrics of an experiment."""

from railyard.core.errors import BadInput
from railyard.experiments.measures.steering.spec import background_of, grid_of
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.fabric_checks import check_joined
from railyard.workloads.background.spec import check_background, check_patterns


def check_routing(spec: ExperimentSpec) -> None:
    """Raise BadInput for what can't be given together with routing, and for a background that doesn't fit a fabric.

    A grid's loads can't add up to too much: see Scene.background.
    """
    grid = grid_of(spec)
    background = background_of(spec)
    if grid and background:
        raise BadInput("background", len(background), "can't be given together with grid, which makes its own")
    check_joined(spec, "routing")
    has_spines = any(fabric.spine_count for fabric in spec.gpu_fabrics)
    for number, fabric in enumerate(spec.gpu_fabrics):
        if fabric.rail_of_rank:
            allowed = "can't be steered by health if GPUs share NICs: scores are of rails with a NIC for each GPU"
            raise BadInput(f"fabrics.{number}.kind", fabric.kind, allowed)
        check_background(background, fabric)
        if grid:
            # a fabric without spines may stand beside one that has some
            patterns = grid.on(fabric).patterns if has_spines else grid.patterns
            check_patterns(patterns, fabric, "grid")
    if not workloads_of(spec):
        raise BadInput("workloads", [], "must have 1 or more: routing is measured by what they take")
