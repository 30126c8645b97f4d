"""The space of a search: what is fixed, and the recipes that are tried with each strategy.

A recipe's number format, recomputation, ZeRO stage and overlap are dimensions like t, p and d. Where frameworks don't
offer a recipe for a strategy, or where it would be the same as a simpler one, the search leaves it out (`is_offered`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import RECOMPUTE, Recipe, Recompute, Strategies

Mask = NDArray[np.bool_]
Overlap = tuple[str, ...]
FSDP: Final = 3
ZERO: Final = (0, 1, 2, FSDP)
OVERLAP_LETTERS: Final = {"data": "d", "tensor": "t", "pipeline": "p", "experts": "e"}
"""Communication that may run beside computing, with the letter of its dimension."""
OVERLAPS: Final[tuple[Overlap, ...]] = (
    (),
    ("data",),
    ("tensor",),
    ("pipeline",),
    ("data", "tensor"),
    ("data", "pipeline"),
    ("tensor", "pipeline"),
    ("data", "tensor", "pipeline"),
)
"""What is searched. All-to-alls of experts run beside computing only on demand: few frameworks offer it."""


@dataclass(frozen=True, slots=True)
class Space:
    """The space that is searched.

    fixed: dimensions that are given, by the names of `DIMENSIONS`
    tensor_share: share of tensor-parallel communication that an overlap of it can hide
    """

    fixed: Mapping[str, int]
    recompute: tuple[Recompute, ...] = RECOMPUTE
    zero: tuple[int, ...] = ZERO
    overlaps: tuple[Overlap, ...] = OVERLAPS
    tensor_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A recipe on a cluster, whose number format is a part of it."""

    recipe: Recipe
    hardware: Hardware

    @property
    def overlap(self) -> Overlap:
        """The communication that runs beside computing."""
        return tuple(name for name in OVERLAP_LETTERS if getattr(self.recipe, f"overlap_{name}"))

    @property
    def overlap_letters(self) -> str:
        """The same in letters: `dtp`, or - for none."""
        return "".join(OVERLAP_LETTERS[name] for name in self.overlap) or "-"


def with_overlap(recipe: Recipe, overlap: Overlap, space: Space) -> Recipe:
    """Return a recipe whose communication of these names runs beside computing."""
    return replace(
        recipe,
        overlap_data="data" in overlap,
        overlap_tensor=space.tensor_share if "tensor" in overlap else 0.0,
        overlap_pipeline="pipeline" in overlap,
        overlap_experts="experts" in overlap,
    )


def sharded_variants(recipe: Recipe, clusters: Sequence[Hardware], space: Space) -> Iterator[Variant]:
    """Yield every number format (a cluster each), recomputation and ZeRO stage: what decides the memory of a GPU."""
    for hardware, recompute, zero in product(clusters, space.recompute, space.zero):
        yield Variant(replace(recipe, recompute=recompute, zero=zero), hardware)


def is_offered(variant: Variant, space: Space, s: Strategies) -> Mask:
    """Return the strategies for which frameworks offer a ZeRO stage: 2 and 3 in place of pipelines, not with them.

    DeepSpeed refuses ZeRO 2 and 3 with pipelines. A stage and a pipeline that are both fixed are taken as they are.
    Without replicas there is nothing to split, and all stages are the same.
    """
    zero = variant.recipe.zero
    offered = (s.pipeline == 1) | (zero < 2)
    # the user knows a framework that offers it
    if "p" in space.fixed and len(space.zero) == 1:
        offered = np.ones_like(offered)
    # the first stage of the space stands for all of them
    if zero != space.zero[0]:
        offered = offered & (s.replicas > 1)
    return np.asarray(offered)


def has_overlap(overlap: Overlap, space: Space, hardware: Hardware, recipe: Recipe, s: Strategies) -> Mask:
    """Return the strategies that frameworks offer an overlap for, and that have something to overlap.

    Tensor-parallel collectives run beside matmuls within HB domains and with sequence parallelism (Transformer Engine),
    transfers between stages where stages are interleaved (Megatron Core). An overlap that is fixed is taken as it is.
    """
    possible = {
        "data": s.replicas > 1,
        "tensor": (s.tensor > 1) & (s.tensor <= hardware.domain_gpus) & recipe.sequence_parallel,
        "pipeline": s.virtual_stages > 1,
    }
    mask = np.ones(len(s), dtype=bool)
    for name in overlap:
        # the same strategy without the overlap is in the space, and is as fast where the overlap does nothing
        without = tuple(other for other in overlap if other != name)
        if name in possible and without in space.overlaps:
            mask &= possible[name]
    return mask
