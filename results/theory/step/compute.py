"""Time that a GPU computes on a micro-batch: matmuls, fused attention, bytes of all other kernels, and launches.

Kernels run one after the other, so the parts add up. All times are of forward and backward passes, with what is
computed again, for one micro-batch on one GPU of a stage with its share of the layers: the slowest of the job's GPUs,
since all others wait for it in a step.
"""

from dataclasses import dataclass
from typing import Final

from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
from railyard.workloads.models.layer_kind import LayerKind
from railyard.workloads.models.transformer import Transformer

BYTES: Final = 2
"""Bytes of an activation or a parameter in bf16."""
QUANTIZATION_BYTES: Final = 6
"""Bytes that quantizing a value moves: read for the largest value, read again, written row-wise and column-wise."""


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of a micro-batch in the layers of one stage (stages taken as equal), and in the whole output layer."""

    matmul_s: FloatArray
    attention_s: FloatArray
    memory_s: FloatArray
    launch_s: FloatArray
    output_s: FloatArray

    @property
    def layers_s(self) -> FloatArray:
        """All parts but the output layer."""
        return self.matmul_s + self.attention_s + self.memory_s + self.launch_s


def compute_time(model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies) -> ComputeTime:
    """Return the parts, for each strategy."""
    tokens = s.micro_batch * model.sequence / s.context
    # forward, and two of backward: gradients of inputs and of parameters
    passes = 4 if recipe.recompute == "full" else 3
    matmul = 0 * tokens
    attention = 0 * tokens
    moved_bytes = 0 * tokens
    launch_s = 0.0
    moe_s = hardware.moe_graph_s if recipe.cuda_graphs else hardware.moe_layer_s
    for kind in model.layer_kinds:
        share = kind.layers / s.pipeline
        matmul = matmul + share * passes * tokens * _matmul_s(kind, hardware) / s.tensor
        attention = attention + share * _attention_s(model, kind, recipe, hardware, s)
        moved_bytes = moved_bytes + share * tokens * _moved_bytes(model, kind, recipe, hardware, s)
        launch_s += kind.layers * (passes * hardware.pass_s + (moe_s if kind.moe else 0.0))
    # never computed again, and in bf16 whatever the layers are in, since losses need the digits
    output_flops = 3 * tokens * model.output_flops / s.tensor
    waiting = hardware.waiting
    return ComputeTime(
        matmul_s=waiting * matmul,
        attention_s=waiting * attention,
        memory_s=waiting * moved_bytes / (hardware.memory_bytes_per_s * hardware.memory_share),
        launch_s=waiting * launch_s / s.pipeline,
        output_s=waiting * output_flops / (hardware.bf16_flops * hardware.bf16_share),
    )


def _matmul_s(kind: LayerKind, hardware: Hardware) -> float:
    """Return the time of one token's forward pass through a layer's matmuls with parameters, s."""
    rate = hardware.precise_flops * hardware.matmul_share
    expert_flops = 2 * kind.experts_per_token * kind.expert_parameters
    return (kind.matmul_flops - expert_flops) / rate + expert_flops / (rate * hardware.expert_share)


def _attention_s(model: Transformer, kind: LayerKind, recipe: Recipe, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of scores and values of a layer.

    A fused kernel skips what the mask hides, and computes the scores once more in its backward pass (Dao et al. 2022):
    3.5 forward passes together. Unfused, the backward pass takes two, and selective recomputation one more.
    """
    sequences = s.micro_batch / (s.tensor * s.context)
    flops = sequences * kind.attention_flops(model.sequence, causal=model.fused_attention)
    if model.fused_attention:
        passes = 4.5 if recipe.recompute == "full" else 3.5
        share = hardware.attention_share_2022 if recipe.kernels_of_2022 else hardware.attention_share
        return passes * flops / (hardware.bf16_flops * share)
    passes = 3 if recipe.recompute == "none" else 4
    return passes * flops / (hardware.bf16_flops * hardware.bf16_share)


def _moved_bytes(model: Transformer, kind: LayerKind, recipe: Recipe, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the bytes that kernels other than matmuls move for a token in a layer, all passes together.

    Proportional to the activations that they store: a stored byte is written by a kernel and read by the next, and
    backward moves twice that, as with FLOPs.
    """
    stored = stored_bytes(model, kind, recipe, s)
    # what selective recomputation saves has no matmul, so all that it costs are these bytes
    again = {"none": 0 * stored.other, "selective": stored.cheap + stored.scores, "full": stored.other + stored.scores}
    moved = 2 * (3 * (stored.other + stored.scores) + again[recipe.recompute])
    if hardware.precision != "bf16":
        moved = moved + QUANTIZATION_BYTES * _quantized_values(model, kind) / s.tensor
    return moved


def _quantized_values(model: Transformer, kind: LayerKind) -> int:
    """Return the values of a token that are quantized: inputs of matmuls, and the gradients of their outputs."""
    attention = model.hidden + kind.query_width + kind.key_width + kind.value_width
    projection = kind.attention_width + model.hidden
    # a token's copy for each expert is quantized on its own
    copied = kind.experts_per_token * model.expert_hidden or model.hidden
    inner = (3 if kind.gated else 2) * kind.mlp_width
    return attention + projection + 2 * copied + inner


@dataclass(frozen=True)
class StoredBytes:
    """Bytes of a token that a layer keeps for its backward pass, at one GPU.

    scores: attention's inner part, 0 where attention is fused
    other: everything else
    cheap: those of `other` that kernels without a matmul can compute again: outputs of norms and of the activation
        function
    inputs: those of `other` that are inputs of matmuls alone, and are kept in the number format of matmuls: outputs
        of norms, of attention and of the activation function
    """

    scores: FloatArray
    other: FloatArray
    cheap: FloatArray
    inputs: FloatArray


def stored_bytes(model: Transformer, kind: LayerKind, recipe: Recipe, s: Strategies) -> StoredBytes:
    """Count them by widths; a GPT with dropout gives the 34 + 5 a s/h of Korthikanti et al. 2022, section 4.1.

    Without sequence parallelism norms, the residual's inputs and dropout masks aren't split (their Eq. 2 and 4).
    """
    h = model.hidden
    # models with fused attention are trained without dropout
    masks = 0 if model.fused_attention else 2 * h
    # inputs of the norms, of attention and of the MLP
    replicated = BYTES * (model.layer_norms + 2) * h + masks
    projected = kind.query_width + kind.key_width + kind.value_width + kind.attention_width
    attention = BYTES * (projected + kind.kept_values)
    # inputs of the projections to attention and of the MLP
    inner = BYTES * (3 if kind.gated else 2) * kind.mlp_width
    permuted = BYTES * 2 * kind.experts_per_token * model.expert_hidden
    if recipe.sequence_parallel:
        other = (replicated + attention + inner + permuted) / s.tensor
    else:
        other = replicated + (attention + inner + permuted) / s.tensor
    scores = 0 * s.tensor
    cheap = 0 * s.tensor
    if model.fused_attention:
        cheap = BYTES * (kind.mlp_width + 2 * h) / s.tensor
    else:
        scores = 5 * kind.heads * model.sequence / s.tensor
    inputs = BYTES * (kind.attention_width + kind.mlp_width + 2 * h) / s.tensor
    return StoredBytes(scores, other, cheap, inputs)
