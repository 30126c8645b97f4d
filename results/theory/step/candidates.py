"""Every strategy of a cluster for a model that breaks no rule.

All GPUs work: t c p d = N. What a strategy must satisfy is a list of rules (`broken_rules`), each with its reason, so
that a strategy that is left out can be explained.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from railyard.results.theory.iteration.search import divisors
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
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
Mask = NDArray[np.bool_]


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


@cache
def default_batch(sequence: int) -> int:
    """Return the sequences of a step of 16 Mi tokens, as Llama 3 405B was trained with.

    The nearest power of two below, so that it divides over GPUs.
    """
    sequences = max(1, 2**24 // sequence)
    return 1 << (sequences.bit_length() - 1)
