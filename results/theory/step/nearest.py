"""Numbers of GPUs, and sizes of fixed dimensions, near those for which a search finds nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput
from railyard.results.theory.iteration.search import divisors
from railyard.results.theory.step.candidates import DIMENSIONS, MIN_CONTEXT_TOKENS, candidates
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import Recipe
from railyard.workloads.models.transformer import Transformer

MAX_TRIED: Final = 64
"""Products that are tried on either side, since rules beyond divisibility refuse some."""


def check_fixed(model: Transformer, recipe: Recipe, hardware: Hardware, fixed: Mapping[str, int]) -> None:
    """BadInput for the first fixed dimension that no strategy with those before it can have.

    It names the nearest sizes that work. Nothing is raised where the cluster has no strategy at all.
    """
    before: dict[str, int] = {}
    free = candidates(model, recipe, hardware, before)
    for letter, number in fixed.items():
        together = candidates(model, recipe, hardware, {**before, letter: number})
        sizes = np.unique(vars(free)[DIMENSIONS[letter]]).astype(int)
        if len(sizes) and not len(together):
            lower = sizes[sizes < number][-1:]
            higher = sizes[sizes > number][:1]
            nearest = " or ".join(f"{size:,}" for size in (*lower, *higher))
            place = "this model and cluster"
            if before:
                place += " with " + " and ".join(f"{dimension}={size}" for dimension, size in before.items())
            reason = f"divides no strategy of {place}; nearest: {nearest}"
            raise BadInput(f"fix.{letter}", number, reason)
        before[letter] = number
        free = together


def nearest_gpus(model: Transformer, recipe: Recipe, hardware: Hardware, fixed: Mapping[str, int]) -> list[int]:
    """Return the next smaller and the next larger number of GPUs, as many in each HB domain, that has a strategy."""
    # far from a power of two the next cluster that divides may be thousands of domains away, so steps don't find it
    sizes = _products(model, recipe, fixed)
    whole = sizes[np.any(sizes[:, np.newaxis] % hardware.domain_sizes == 0, axis=1)]
    below = whole[whole < hardware.gpus][::-1]
    above = whole[whole > hardware.gpus]
    nearest: list[int] = []
    for side in (below, above):
        for gpus in islice(side.tolist(), MAX_TRIED):
            if len(candidates(model, recipe, replace(hardware, gpus=gpus), fixed)):
                nearest.append(gpus)
                break
    return nearest


def _products(model: Transformer, recipe: Recipe, fixed: Mapping[str, int]) -> NDArray[np.int64]:
    """Return every t c p d of sizes that heads, sequence, layers and batch allow, in order."""
    options: dict[str, Sequence[int]] = {
        "t": divisors(model.heads),
        "c": range(1, max(1, model.sequence // MIN_CONTEXT_TOKENS) + 1),
        "p": range(1, model.layers + 3),
        "d": divisors(recipe.global_batch),
    }
    products = np.ones(1, dtype=np.int64)
    for letter, sizes in options.items():
        factors = np.array((fixed[letter],) if letter in fixed else sizes, dtype=np.int64)
        products = np.unique(np.multiply.outer(products, factors))
    return products
