"""Every strategy of a cluster for a model, and the fastest.

All GPUs work: t c p d = N. What a strategy must satisfy is a list of rules (`broken_rules`), each with its reason, so
that a strategy that is left out can be explained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput
from railyard.results.theory.iteration.search import divisors
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.memory import gpu_memory, usable_bytes
from railyard.results.theory.step.step_time import StepTime, step_time
from railyard.results.theory.step.strategy import RECOMPUTE, FloatArray, Recipe, Recompute, Strategies
from railyard.workloads.models.transformer import Transformer

DIMENSIONS: Final = {
    "t": "tensor",
    "c": "context",
    "p": "pipeline",
    "d": "data",
    "e": "expert",
    "v": "virtual_stages",
    "b": "micro_batch",
}
"""Names of dimensions on the command line."""
MAX_UNEVEN: Final = 1.1
"""Layers of a stage that has most, over the mean: strategies beyond waste too many GPUs to be looked at."""
MIN_CONTEXT_TOKENS: Final = 4096
"""Tokens of a sequence that each context-parallel rank has at least, as in all recipes of measured.csv."""
MAX_MICRO_BATCH: Final = 64
FSDP: Final = 3
ZERO: Final = (1, FSDP)
"""ZeRO's stages that are searched: the optimizer state split, and FSDP."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Space:
    """The space that is searched. fixed: dimensions that are given, by the names of `DIMENSIONS`."""

    fixed: Mapping[str, int]
    recompute: tuple[Recompute, ...] = RECOMPUTE
    zero: tuple[int, ...] = ZERO


@dataclass(frozen=True)
class Weighed:
    """Strategies side by side, with their recipes, times and bytes of a GPU."""

    strategies: Strategies
    recipes: tuple[Recipe, ...]
    recipe_of: NDArray[np.int64]
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

    def recipe(self, index: int) -> Recipe:
        """Return the recipe of one of them."""
        return self.recipes[int(self.recipe_of[index])]

    def strategy(self, index: int) -> Strategies:
        """Return one of them, as arrays of length 1."""
        return self.strategies.select(np.array([index]))


def broken_rules(model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies) -> dict[str, Mask]:
    """Return for each rule, by its text, the strategies that break it. Memory is not among the rules."""
    layers = model.layers
    gpus = s.tensor * s.context * s.pipeline * s.data
    chunks = s.pipeline * s.virtual_stages
    most_layers = chunks * np.ceil(layers / chunks)
    samples = s.data * s.micro_batch
    micro_batches = recipe.global_batch / samples
    experts = max(1, model.experts)
    uneven = (model.kv_heads % s.tensor != 0) & (s.tensor % model.kv_heads != 0)
    return {
        f"t c p d must be the {hardware.gpus:,} GPUs": gpus != hardware.gpus,
        f"t must divide the {model.heads} attention heads": model.heads % s.tensor != 0,
        f"t must divide the {model.kv_heads} key and value heads, or be a multiple of them": uneven,
        f"each of c ranks must have a multiple of 2 and at least {MIN_CONTEXT_TOKENS:,} of the {model.sequence:,} "
        "tokens": (s.context > 1)
        & ((model.sequence % (2 * s.context) != 0) | (model.sequence / s.context < MIN_CONTEXT_TOKENS)),
        f"no stage may have over {MAX_UNEVEN:.0%} of the mean of the {layers} layers, with a layer's room for the "
        "embedding and for the output layer": most_layers > np.maximum(MAX_UNEVEN * layers, layers + 2),
        "v > 1 needs p > 1": (s.virtual_stages > 1) & (s.pipeline == 1),
        f"d b must divide the batch of {recipe.global_batch:,}": recipe.global_batch % samples != 0,
        "v > 1 needs a number of micro-batches that is a multiple of p": (s.virtual_stages > 1)
        & (micro_batches % s.pipeline != 0),
        f"e must divide the {experts} experts": experts % s.expert != 0,
        "e must divide t c d, the ranks of a stage": s.tensor * s.replicas % s.expert != 0,
    }


def candidates(model: Transformer, recipe: Recipe, hardware: Hardware, fixed: Mapping[str, int]) -> Strategies:
    """Return all strategies that break no rule, whether they fit memory or not; always in the same order."""
    options = _options(model, recipe, hardware)
    for letter, number in fixed.items():
        options[DIMENSIONS[letter]] = (number,)
    columns = {name: np.ones(1) for name in options}
    # dimension by dimension, and each time only what can still become a strategy is kept
    for name, values in options.items():
        columns = _crossed(columns, name, values)
        keep = _can_become_a_strategy(model, recipe, hardware, Strategies(**columns), name)
        columns = {column: values_of[keep] for column, values_of in columns.items()}
    return Strategies(**columns)


def _options(model: Transformer, recipe: Recipe, hardware: Hardware) -> dict[str, Sequence[int]]:
    """Return the sizes that each dimension may have, in the order in which dimensions are added."""
    sizes = divisors(hardware.gpus)
    return {
        "tensor": [size for size in sizes if model.heads % size == 0],
        "context": [size for size in sizes if size == 1 or model.sequence >= size * MIN_CONTEXT_TOKENS],
        "pipeline": [size for size in sizes if size <= model.layers + 2],
        "data": sizes,
        "virtual_stages": range(1, model.layers + 1),
        "micro_batch": [size for size in divisors(recipe.global_batch) if size <= MAX_MICRO_BATCH],
        "expert": divisors(max(1, model.experts)),
    }


def _can_become_a_strategy(
    model: Transformer, recipe: Recipe, hardware: Hardware, partial: Strategies, added: str
) -> Mask:
    """Return which strategies break no rule that later dimensions can't change. `added`: the last dimension."""
    keep: Mask = hardware.gpus % (partial.tensor * partial.context * partial.pipeline * partial.data) == 0
    if added not in ("tensor", "context", "pipeline"):
        for mask in broken_rules(model, recipe, hardware, partial).values():
            keep &= ~mask
    # sequences of a micro-batch are split by data parallelism before one sequence is
    keep &= (partial.context == 1) | (partial.micro_batch == 1)
    return keep


def _crossed(columns: dict[str, FloatArray], name: str, values: Sequence[int]) -> dict[str, FloatArray]:
    """Return every strategy with each of `values` in the column `name`."""
    count = len(columns[name])
    crossed = {column: np.repeat(array, len(values)) for column, array in columns.items()}
    crossed[name] = np.tile(np.array(values, dtype=np.float64), count)
    return crossed


def weigh(model: Transformer, recipe: Recipe, hardware: Hardware, space: Space) -> Weighed:
    """Return all candidates that fit memory, with every recomputation and ZeRO stage of the space.

    BadInput if there is none: it names the nearest numbers of GPUs that have one, or what the leanest takes and the
    GPUs on which it fits.
    """
    s = candidates(model, recipe, hardware, space.fixed)
    if not len(s):
        _check_fixed(model, recipe, hardware, space.fixed)
        raise BadInput("gpus", hardware.gpus, f"no strategy divides {_nearest(model, recipe, hardware, space)}")
    recipes: list[Recipe] = []
    chosen: list[Strategies] = []
    seconds: list[FloatArray] = []
    sizes: list[FloatArray] = []
    leanest = np.inf
    for recompute in space.recompute:
        for zero in space.zero:
            variant = replace(recipe, recompute=recompute, zero=zero)
            total_bytes = _gpu_bytes(model, variant, hardware, space, s)
            leanest = min(leanest, float(total_bytes.min(initial=np.inf)))
            fits = total_bytes <= usable_bytes(hardware)
            fitting = s.select(fits)
            recipes.append(variant)
            chosen.append(fitting)
            seconds.append(step_time(model, variant, hardware, fitting).total_s)
            sizes.append(total_bytes[fits])
    counts = [len(strategies) for strategies in chosen]
    if not sum(counts):
        reason = (
            f"can't train this model: no strategy fits the {usable_bytes(hardware) / 1e9:,.0f} GB that a training can "
            f"take of a GPU's memory; the leanest takes {leanest / 1e9:,.1f} GB"
        )
        enough = _gpus_that_fit(model, recipe, hardware, space)
        if enough:
            reason += f", and on {enough:,} GPUs it fits"
        raise BadInput("gpus", hardware.gpus, reason)
    return Weighed(
        strategies=_joined(chosen),
        recipes=tuple(recipes),
        recipe_of=np.repeat(np.arange(len(recipes)), counts),
        seconds=np.concatenate(seconds),
        gpu_bytes=np.concatenate(sizes),
    )


def _gpu_bytes(model: Transformer, recipe: Recipe, hardware: Hardware, space: Space, s: Strategies) -> FloatArray:
    """Return the bytes of a GPU for each strategy; infinite where frameworks don't offer it."""
    total_bytes = gpu_memory(model, recipe, s, hardware.precision).total_bytes
    # frameworks offer FSDP in place of pipelines, not with them
    offered = (s.pipeline == 1) | (recipe.zero < FSDP) | ("p" in space.fixed and space.zero == (FSDP,))
    return np.where(offered, total_bytes, np.inf)


def _gpus_that_fit(model: Transformer, recipe: Recipe, hardware: Hardware, space: Space) -> int | None:
    """Return the first doubling of the cluster with a strategy that fits memory; None up to 1,024 times its GPUs."""
    for doublings in range(1, 11):
        larger = replace(hardware, gpus=hardware.gpus * 2**doublings)
        s = candidates(model, recipe, larger, space.fixed)
        for recompute, zero in product(space.recompute, space.zero):
            variant = replace(recipe, recompute=recompute, zero=zero)
            if np.any(_gpu_bytes(model, variant, larger, space, s) <= usable_bytes(larger)):
                return larger.gpus
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


def _check_fixed(model: Transformer, recipe: Recipe, hardware: Hardware, fixed: Mapping[str, int]) -> None:
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


def _nearest(model: Transformer, recipe: Recipe, hardware: Hardware, space: Space) -> str:
    """Return what heads, layers and batch don't allow, and the nearest numbers of GPUs that they do."""
    text = f"the {model.heads} heads, {model.layers} layers and batch of {recipe.global_batch:,}"
    nearest: list[str] = []
    for step in (-1, 1):
        gpus = _first_that_divides(model, recipe, hardware, space, step * hardware.domain_gpus)
        if gpus:
            nearest.append(f"{gpus:,}")
    if nearest:
        text += f"; {' or '.join(nearest)} GPUs have one"
    return text


def _first_that_divides(model: Transformer, recipe: Recipe, hardware: Hardware, space: Space, step: int) -> int | None:
    """Return the first number of GPUs, in steps from the cluster's, that has a candidate; None after 64 of them."""
    for count in range(1, 65):
        gpus = hardware.gpus + count * step
        if gpus < 1:
            return None
        if len(candidates(model, recipe, replace(hardware, gpus=gpus), space.fixed)):
            return gpus
    return None


@cache
def default_batch(sequence: int) -> int:
    """Return the sequences of a step of 16 Mi tokens, as Llama 3 405B was trained with.

    The nearest power of two below, so that it divides over GPUs.
    """
    sequences = max(1, 2**24 // sequence)
    return 1 << (sequences.bit_length() - 1)
