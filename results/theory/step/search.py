"""The fastest strategies of a cluster for a model, with every recipe of the space."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput
from railyard.results.theory.step.candidates import broken_rules, candidates
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.memory import gpu_memory, usable_bytes
from railyard.results.theory.step.nearest import check_fixed, nearest_gpus
from railyard.results.theory.step.space import (
    Space,
    Variant,
    has_overlap,
    is_offered,
    sharded_variants,
    with_overlap,
)
from railyard.results.theory.step.step_time import StepTime, step_time
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
from railyard.workloads.models.transformer import Transformer


@dataclass(frozen=True)
class Weighed:
    """Strategies side by side, with their recipes, times and bytes of a GPU."""

    strategies: Strategies
    variants: tuple[Variant, ...]
    variant_of: NDArray[np.int64]
    seconds: FloatArray
    gpu_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.seconds)

    def order(self) -> NDArray[np.int64]:
        """Return the indices from the fastest on. Of equals the one that takes less memory comes first."""
        return np.lexsort((self.gpu_bytes, self.seconds))

    def fastest_layouts(self) -> list[int]:
        """Return the indices of the fastest strategy of each layout (t, c, p, d, e), from the fastest on."""
        columns = (self.strategies.tensor, self.strategies.context, self.strategies.pipeline, self.strategies.expert)
        order = self.order()
        _, first = np.unique(np.stack(columns)[:, order], axis=1, return_index=True)
        return [int(index) for index in order[np.sort(first)]]

    def variant(self, index: int) -> Variant:
        """Return the recipe and the cluster of one of them."""
        return self.variants[int(self.variant_of[index])]

    def recipe(self, index: int) -> Recipe:
        """Return the recipe of one of them."""
        return self.variant(index).recipe

    def strategy(self, index: int) -> Strategies:
        """Return one of them, as arrays of length 1."""
        return self.strategies.select(np.array([index]))


def weigh(model: Transformer, recipe: Recipe, clusters: Sequence[Hardware], space: Space) -> Weighed:
    """Return all candidates that fit memory, with every recipe of the space.

    clusters: the same GPUs in each number format of the space. BadInput if there is no candidate: it names the nearest
    numbers of GPUs that have one, or what the leanest takes and the GPUs on which it fits.
    """
    # number formats change no rule
    hardware = clusters[0]
    s = candidates(model, recipe, hardware, space.fixed)
    if not len(s):
        check_fixed(model, recipe, hardware, space.fixed)
        raise BadInput("gpus", hardware.gpus, f"no strategy divides {_nearest(model, recipe, hardware, space)}")
    variants: list[Variant] = []
    chosen: list[Strategies] = []
    seconds: list[FloatArray] = []
    sizes: list[FloatArray] = []
    leanest = np.inf
    for sharded in sharded_variants(recipe, clusters, space):
        total_bytes = _gpu_bytes(model, sharded, space, s)
        leanest = min(leanest, float(total_bytes.min(initial=np.inf)))
        fits = total_bytes <= usable_bytes(sharded.hardware)
        # what overlaps takes no memory, so all overlaps share the bytes of a GPU
        for overlap in space.overlaps:
            variant = replace(sharded, recipe=with_overlap(sharded.recipe, overlap, space))
            kept = fits & has_overlap(overlap, space, hardware, recipe, s)
            fitting = s.select(kept)
            variants.append(variant)
            chosen.append(fitting)
            seconds.append(step_time(model, variant.recipe, variant.hardware, fitting).total_s)
            sizes.append(total_bytes[kept])
    counts = [len(strategies) for strategies in chosen]
    if not sum(counts):
        raise BadInput("gpus", hardware.gpus, _too_little_memory(model, recipe, clusters, space, leanest))
    return Weighed(
        strategies=_joined(chosen),
        variants=tuple(variants),
        variant_of=np.repeat(np.arange(len(variants)), counts),
        seconds=np.concatenate(seconds),
        gpu_bytes=np.concatenate(sizes),
    )


def _gpu_bytes(model: Transformer, variant: Variant, space: Space, s: Strategies) -> FloatArray:
    """Return the bytes of a GPU for each strategy; infinite where frameworks don't offer it."""
    total_bytes = gpu_memory(model, variant.recipe, s, variant.hardware.precision).total_bytes
    return np.where(is_offered(variant, space, s), total_bytes, np.inf)


def _too_little_memory(
    model: Transformer, recipe: Recipe, clusters: Sequence[Hardware], space: Space, leanest: float
) -> str:
    """Return why no strategy fits, and on how many GPUs one does."""
    usable = usable_bytes(clusters[0])
    reason = (
        f"can't train this model: no strategy fits the {usable / 1e9:,.0f} GB that a training can take of a GPU's "
        f"memory; the leanest takes {leanest / 1e9:,.1f} GB"
    )
    enough = _gpus_that_fit(model, recipe, clusters, space)
    if enough:
        reason += f", and on {enough:,} GPUs it fits"
    return reason


def _gpus_that_fit(model: Transformer, recipe: Recipe, clusters: Sequence[Hardware], space: Space) -> int | None:
    """Return the first doubling of the cluster with a strategy that fits memory; None up to 1,024 times its GPUs."""
    for doublings in range(1, 11):
        larger = [replace(hardware, gpus=hardware.gpus * 2**doublings) for hardware in clusters]
        s = candidates(model, recipe, larger[0], space.fixed)
        for variant in sharded_variants(recipe, larger, space):
            if np.any(_gpu_bytes(model, variant, space, s) <= usable_bytes(variant.hardware)):
                return variant.hardware.gpus
    return None


def explained(
    model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies
) -> tuple[list[str], StepTime, float]:
    """Return why one strategy is left out (nothing if it isn't), its times, and its bytes of a GPU."""
    broken = broken_rules(model, recipe, hardware, s)
    reasons: list[str] = []
    for rule, mask in broken.items():
        if mask[0]:
            reasons.append(rule)
    gpu_bytes = float(gpu_memory(model, recipe, s, hardware.precision).total_bytes[0])
    usable = usable_bytes(hardware)
    if gpu_bytes > usable:
        reasons.append(f"takes {gpu_bytes / 1e9:,.1f} GB of a GPU, of which a training can take {usable / 1e9:,.1f}")
    return reasons, step_time(model, recipe, hardware, s), gpu_bytes


def _joined(parts: Iterable[Strategies]) -> Strategies:
    """Return strategies one after the other."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Strategies(*map(np.concatenate, columns))


def _nearest(model: Transformer, recipe: Recipe, hardware: Hardware, space: Space) -> str:
    """Return what heads, layers and batch don't allow, and the nearest numbers of GPUs that they do."""
    text = f"the {model.heads} heads, {model.layers} layers and batch of {recipe.global_batch:,}"
    nearest = nearest_gpus(model, recipe, hardware, space.fixed)
    if nearest:
        text += f"; {' or '.join(f'{gpus:,}' for gpus in nearest)} GPUs have one"
    return text
