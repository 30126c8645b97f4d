"""What an iteration time is asked for: a model, a recipe of training it, and a cluster to train it on."""

from dataclasses import dataclass

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.results.theory.iteration.constants import Constants, constants_of
from railyard.results.theory.iteration.flops import Recompute
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import GptModel


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained. `gradient_bytes`: of a parameter's gradient, as kept and as AllReduced."""

    global_batch: int
    recompute: Recompute = "selective"
    sequence_parallel: bool = True
    gradient_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """`gpus` in HB domains of `domain_gpus` (K). Bandwidths per GPU and direction; memory of a GPU, in bytes."""

    gpus: int
    domain_gpus: int
    flops: float
    hb_bytes_per_s: float
    rail_bytes_per_s: float
    memory_bytes: float
    constants: Constants


@dataclass(frozen=True, slots=True)
class Job:
    """All but the strategy."""

    model: GptModel
    recipe: Recipe
    cluster: Cluster


def make_cluster(platform: str, gpus: int, domain_gpus: int) -> Cluster:
    """GPUs and links of a platform in HB domains of any size; the platform by its name or its file's path."""
    if platform not in PLATFORMS:
        raise BadInput("platform", platform, f"{unknown_name_hint(platform, PLATFORMS)}, or the path of a .yaml file")
    if gpus < 1 or domain_gpus < 1 or gpus % domain_gpus:
        raise BadInput("domain_gpus", domain_gpus, f"must divide the {gpus} GPUs")
    p = PLATFORMS[platform]
    return Cluster(gpus, domain_gpus, p.flops, p.hb_bps / 8, p.rail_bps / 8, float(p.memory_bytes), constants_of(p))
