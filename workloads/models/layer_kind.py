"""Layers of a transformer: the shapes that attention may have, and what a layer of each kind counts to.

Units: parameters and values are counts, FLOPs count a multiplication and an addition as two.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from railyard.core.config import ConfigModel

# beyond any model, and products of several still fit in a float
_MOST: Final = 2**40
Count = Annotated[int, Field(ge=1, le=_MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=_MOST)]


class LatentAttention(ConfigModel):
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): keys and values from a small vector.

    query_rank: values of a token's compressed query; None if queries aren't compressed
    kv_rank: values of the compressed keys and values
    rope_size: values of a head's query and key that carry the position; the key's are shared by all heads
    value_size: values of a head's value
    """

    query_rank: Count | None = None
    kv_rank: Count
    rope_size: Count
    value_size: Count


class StateSpace(ConfigModel):
    """State-space mixers in place of attention (Dao and Gu 2024, Transformers are SSMs: Mamba-2).

    heads, head_size: heads, and the values of each
    groups: groups of heads with the same input and output matrices
    state_size: values of the state for each value of a head
    kernel: tokens of the convolution before the scan
    chunk: tokens that are scanned by matmuls at once
    """

    heads: Count
    head_size: Count
    groups: Count = 1
    state_size: Count
    kernel: Count = 4
    chunk: Count = 128

    @property
    def width(self) -> int:
        """Values of a token, all heads together."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> int:
        """Values of a token that are convolved: of the heads, and of the input and output matrices."""
        return self.width + 2 * self.groups * self.state_size

    @property
    def projected(self) -> int:
        """Values of a token after the first projection: gate, what is convolved, and a time step for each head."""
        return self.width + self.convolved + self.heads

    @property
    def scan_flops(self) -> int:
        """FLOPs of one token's forward scan: in its chunk, into the chunk's state, and from the state before."""
        in_chunk = 2 * self.chunk * (self.groups * self.state_size + self.width)
        return in_chunk + 4 * self.width * self.state_size

    @property
    def kept_values(self) -> int:
        """16-bit values of a token for the backward pass: convolved, scanned, a share of a chunk's 32-bit state."""
        return self.convolved + self.width + 2 * self.width * self.state_size // self.chunk

    @property
    def small_parameters(self) -> int:
        """Parameters outside of the two projections."""
        return (self.kernel + 1) * self.convolved + 3 * self.heads + self.width


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The layers of one kind. Every figure is of one layer, of the whole model (not of a GPU's part).

    name: `dense`, `moe`, `dense, window 128`, `moe, window 128`, `moe, state space` or `attention`
    layers: how many there are
    moe: whether the MLP is replaced by experts
    window: tokens that a token attends to, itself included; None for all before it
    heads: attention heads
    query_width, key_width, value_width: values of a token's queries, keys and values, all heads together. Latent
        attention has them at full size, as they are in training
    attention_width: values that a token's attention gives to the output projection (heads x size of a value)
    latent_width: values of the compressed keys and values, with the shared position part; 0 without latent attention
    score_size: values of a head's query and key; value_size: values of a head's value
    mlp_width: values of the inner layer that a token passes: ffn, or experts_per_token x expert_ffn and the shared ones
    gated: whether the MLP has a gate, so twice `mlp_width` before the activation function
    attention_parameters: of the projections, with their biases and the norms of queries and keys
    mlp_parameters: of the dense MLP; in a MoE layer of the shared experts
    router_parameters: of the router; 0 in a dense layer
    norm_parameters: of the layer's norms before attention and the MLP, and after them where the model has those
    expert_parameters: of ONE routed expert; 0 in a dense layer
    experts, experts_per_token: routed experts, and how many of them a token passes; 0 in a dense layer
    replicated_parameters: those of `static_parameters` that tensor parallelism does not split (norms, router, and
        latent attention's projections to the compressed vectors)
    matmul_parameters: weights that a token is multiplied by, those of its routed experts included
    scan_flops: FLOPs of a token's forward scan where a state space takes attention's place; 0 elsewhere
    kept_values: values of a token that such a mixer keeps beside those of its projections
    """

    name: str
    layers: int
    moe: bool
    window: int | None
    heads: int
    query_width: int
    key_width: int
    value_width: int
    attention_width: int
    latent_width: int
    score_size: int
    value_size: int
    mlp_width: int
    gated: bool
    attention_parameters: int
    mlp_parameters: int
    router_parameters: int
    norm_parameters: int
    expert_parameters: int
    experts: int
    experts_per_token: int
    replicated_parameters: int
    matmul_parameters: int
    scan_flops: int = 0
    kept_values: int = 0

    @property
    def static_parameters(self) -> int:
        """Parameters of a layer without its routed experts: what data-parallel ranks all have, whatever EP is."""
        return self.attention_parameters + self.mlp_parameters + self.router_parameters + self.norm_parameters

    @property
    def parameters(self) -> int:
        """Parameters of a layer, all its experts included."""
        return self.static_parameters + self.experts * self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters of a layer that one token passes."""
        return self.static_parameters + self.experts_per_token * self.expert_parameters

    @property
    def matmul_flops(self) -> int:
        """FLOPs of one token's forward pass in matmuls with parameters. Backward takes twice as many."""
        return 2 * self.matmul_parameters

    def attention_pairs(self, sequence: int) -> int:
        """Pairs of a query and a key in a sequence where the mask lets the query see the key."""
        window = min(self.window or sequence, sequence)
        return window * (window + 1) // 2 + (sequence - window) * window

    def attention_flops(self, sequence: int, causal: bool = False) -> int:
        """FLOPs of the forward pass of a whole sequence in scores and values (QK^T, and their product with V).

        causal: count only the pairs that the mask leaves, as fused kernels compute: about half. Without it both halves
            count, 4 s^2 h for heads x head_size = h, which published model FLOPs do (Narayanan Eq. 3, Korthikanti
            Eq. 7); a window counts on both sides of a token then. Backward takes twice as many; a fused kernel computes
            the scores once more (2.5 times).
        """
        if self.scan_flops:
            return sequence * self.scan_flops
        pairs = self.attention_pairs(sequence)
        if not causal:
            pairs = 2 * pairs - sequence
        return 2 * pairs * self.heads * (self.score_size + self.value_size)
