"""Memory of a GPU as frameworks count it: parameters, gradients, Adam's state, activations, logits, a reserve."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from railyard.results.theory.step.compute import BYTES, stored_bytes
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
from railyard.topologies.platforms import Precision
from railyard.workloads.models.transformer import Transformer

ADAM_BYTES: Final = 12
"""Bytes of a parameter's fp32 copy and both moments."""
RESERVE_SHARE: Final = 0.1
"""Share of a GPU's memory that fragmentation, CUDA's context and NCCL's buffers take."""
INPUT_SAVING: Final[dict[Precision, float]] = {"bf16": 0.0, "fp8": 0.5, "mxfp8": 0.5, "nvfp4": 0.75}
"""Share of 16 bits that a matmul's quantized input, which Transformer Engine keeps for backward, doesn't take."""
LOGIT_BYTES: Final = 6
"""Bytes of a logit: in bf16, and in fp32 for the loss."""


@dataclass(frozen=True)
class GpuParameters:
    """Parameters of a GPU of the stage that has most: outside of experts, and its experts."""

    static: FloatArray
    experts: FloatArray


@dataclass(frozen=True)
class Memory:
    """Bytes of a GPU of the first stage, which holds most micro-batches."""

    state_bytes: FloatArray
    activation_bytes: FloatArray

    @property
    def total_bytes(self) -> FloatArray:
        """All of them, without the reserve."""
        return self.state_bytes + self.activation_bytes


def usable_bytes(hardware: Hardware) -> float:
    """Return what a training can take of a GPU's memory."""
    return (1 - RESERVE_SHARE) * hardware.memory_bytes


def gpu_parameters(model: Transformer, s: Strategies) -> GpuParameters:
    """Count the parameters of a GPU, split over tensor, pipeline and expert parallelism."""
    static_layers = sum(kind.layers * kind.static_parameters for kind in model.layer_kinds)
    # the first stage has the embedding, the last the output layer; a single stage has both
    outer = np.where(s.pipeline > 1, model.embedding_parameters, model.outer_parameters)
    static = (static_layers / s.pipeline + outer) / s.tensor
    return GpuParameters(static, model.all_expert_parameters / (s.pipeline * s.expert))


def gpu_memory(model: Transformer, recipe: Recipe, s: Strategies, precision: Precision = "bf16") -> Memory:
    """Return the bytes of state and of activations, for each strategy.

    precision: number format of matmuls with parameters
    """
    parameters = gpu_parameters(model, s)
    state = _state_bytes(recipe, parameters.static, s.replicas)
    state = state + _state_bytes(recipe, parameters.experts, s.expert_replicas)
    if recipe.zero == 3:
        # two layers are whole at a time: the one that is computed, and the next
        static = max(kind.static_parameters for kind in model.layer_kinds)
        experts = max(kind.experts * kind.expert_parameters for kind in model.layer_kinds)
        state = state + 2 * BYTES * (static / s.tensor + experts / s.expert)
    return Memory(state, _activation_bytes(model, recipe, s, INPUT_SAVING[precision]))


def _state_bytes(recipe: Recipe, parameters: FloatArray, replicas: FloatArray) -> FloatArray:
    """Return the bytes of parameters, gradients and Adam's state, by how ZeRO splits them over replicas."""
    parameter_bytes = BYTES / (replicas if recipe.zero == 3 else 1)
    gradient_bytes = recipe.gradient_bytes / (replicas if recipe.zero >= 2 else 1)
    adam_bytes = ADAM_BYTES / (replicas if recipe.zero >= 1 else 1)
    return np.asarray(parameters * (parameter_bytes + gradient_bytes + adam_bytes))


def _activation_bytes(model: Transformer, recipe: Recipe, s: Strategies, saving: float) -> FloatArray:
    """Return the bytes of the micro-batches that the first stage holds in 1F1B: p, or all where there are fewer.

    Interleaving multiplies by 1 + (p - 1)/(p v) (Korthikanti et al. 2022). Full recomputation keeps a layer's input,
    and one layer's activations while it is computed again. `saving`: share of matmuls' inputs that isn't kept.
    """
    tokens = s.micro_batch * model.sequence / s.context
    kept = 0 * tokens
    largest = 0 * tokens
    for kind in model.layer_kinds:
        stored = stored_bytes(model, kind, recipe, s)
        everything = stored.other + stored.scores
        layer_input = BYTES * model.hidden / (s.tensor if recipe.sequence_parallel else 1)
        kept_layer = {
            "none": everything - saving * stored.inputs,
            "selective": everything - stored.cheap - stored.scores - saving * (stored.inputs - stored.cheap),
            "full": layer_input + 0 * everything,
        }[recipe.recompute]
        kept = kept + kind.layers * kept_layer
        if recipe.recompute != "none":
            largest = np.maximum(largest, everything - kept_layer)
    p = s.pipeline
    interleaving = np.where(s.virtual_stages > 1, 1 + (p - 1) / (p * s.virtual_stages), 1.0)
    in_flight = np.minimum(s.micro_batches(recipe.global_batch), p) / p * interleaving
    # with one stage the output layer is on the same GPU; the first of several stages has none
    logits = np.where(p > 1, 0.0, LOGIT_BYTES * model.vocabulary / s.tensor)
    return np.asarray(tokens * (kept * in_flight + largest + logits))
