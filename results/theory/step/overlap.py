"""Tensor-parallel communication that runs beside matmuls, and what of it they don't hide."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from railyard.results.theory.step.communication import tensor_collectives
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
from railyard.workloads.models.layer_kind import LayerKind
from railyard.workloads.models.transformer import Transformer

MATMULS: Final = 4
"""Matmuls of a layer that a collective is beside: queries, keys and values; output projection; both of the MLP."""


def exposed_tensor_s(
    model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies, tensor_s: FloatArray
) -> FloatArray:
    """Return the time of a micro-batch's tensor-parallel collectives that isn't hidden.

    Each collective runs beside the matmul that it feeds or that feeds it, in t pieces. The first piece has nothing to
    run beside, and a collective is never hidden by the matmul of another one (Wang et al. 2023, Overlap Communication
    with Dependent Computation via Decomposition, section 3). Smaller matmuls are taken to be as fast as whole ones.

    tensor_s: time of all collectives of a micro-batch in one stage
    """
    if not recipe.overlap_tensor:
        return tensor_s
    # in the forward and the backward pass, and once more where the forward pass is done again
    passes = 3 if recipe.recompute == "full" else 2
    collective_s = tensor_s * s.pipeline / (passes * MATMULS * model.layers)
    token_share = s.micro_batch * model.sequence / (s.context * s.tensor)
    pieces_share = 1 - 1 / s.tensor
    hidden_s = 0 * tensor_s
    for kind in model.layer_kinds:
        layers = kind.layers / s.pipeline
        for flops in _matmul_flops(kind, model.hidden):
            matmul_s = token_share * flops / (hardware.precise_flops * hardware.matmul_share)
            hidden = np.minimum(recipe.overlap_tensor * collective_s, pieces_share * matmul_s)
            hidden_s = hidden_s + layers * passes * hidden
    return np.asarray(tensor_s - hidden_s)


def beside_weight_gradients_s(recipe: Recipe, tensor_s: FloatArray, weight_gradients_s: FloatArray) -> FloatArray:
    """Return the time of tensor-parallel collectives that the matmuls of weight gradients don't hide.

    They may hide the reduction of the gradients of the inputs of a layer's two column-parallel matmuls: ReduceScatters,
    or without sequence parallelism AllReduces, which take as long as two.

    tensor_s: time of all collectives of a micro-batch in one stage
    weight_gradients_s: time of the matmuls of a micro-batch there that compute gradients of weights
    """
    if not recipe.overlap_input_gradients:
        return tensor_s
    reductions = 2 if recipe.sequence_parallel else 4
    reductions_s = tensor_s * reductions / tensor_collectives(recipe)
    return tensor_s - np.minimum(reductions_s, weight_gradients_s)


def _matmul_flops(kind: LayerKind, hidden: int) -> Iterator[float]:
    """Yield the FLOPs of a token in the matmuls of a layer that have a collective beside them.

    Experts have all-to-alls between the collective and their matmuls.
    """
    projection = 2 * kind.attention_width * hidden
    yield 2 * kind.attention_parameters - projection
    yield projection
    if not kind.moe:
        # a gate doubles the matmul before the activation function
        mlp = 2 * kind.mlp_parameters
        first_share = 2 / 3 if kind.gated else 1 / 2
        yield first_share * mlp
        yield (1 - first_share) * mlp
