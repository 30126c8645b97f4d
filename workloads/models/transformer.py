"""A transformer of any shape: dense or a mixture of experts, grouped-query or latent attention, gated MLP or not.

A model's layers are of one or more kinds (`layer_kinds`, layer_kind.py): with a dense MLP or experts, attending to all
tokens before or to a window of them. Each kind has its parameters, FLOPs and activation widths; all formulas of time,
memory and traffic count from these. Units: parameters and values are counts, FLOPs count a multiplication and an
addition as two.
"""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from railyard.core.config import ConfigModel, field_error
from railyard.core.errors import nearest_divisors
from railyard.workloads.models.layer_kind import Count, CountOrZero, LatentAttention, LayerKind, StateSpace

Parameters = Annotated[int, Field(ge=1, le=2**60)]
# `layer_sequence` names each
Layers = Annotated[int, Field(ge=1, le=10_000)]
# How far the stated parameters may be from those that the shape counts to. Published totals are rounded to two or three
# digits; a forgotten gate, untied embedding or grouped-query attention is further away.
MAX_PARAMETER_ERROR: Final = 0.02
# bytes of a parameter, an activation or a gradient: 16 bits throughout (Rail-only appendix)
FP16_BYTES: Final = 2


class Transformer(ConfigModel):
    """The shape of a transformer. `parameters` as published; the shape must count to within 2% of them.

    What a job may change is a copy away: `model.model_copy(update={"sequence": 8192})`.
    docs/models.md has every key with its default.
    """

    text: ClassVar[str] = "a transformer"

    kind: Literal["transformer"]
    parameters: Parameters
    layers: Layers
    hidden: Count
    heads: Count
    kv_heads: Count = Field(default_factory=lambda data: data.get("heads", 1))
    head_size: Count = Field(default_factory=lambda data: max(1, data.get("hidden", 1) // data.get("heads", 1)))
    ffn: Count = Field(default_factory=lambda data: 4 * data.get("hidden", 1))
    gated: bool = False
    vocabulary: Count
    tied_embeddings: bool = False
    positions: CountOrZero = 0
    sequence: Count
    biases: bool = False
    norm_biases: bool = False
    qkv_biases: bool = False
    query_key_norms: bool = False
    post_norms: bool = False
    experts: CountOrZero = 0
    experts_per_token: CountOrZero = 0
    expert_ffn: Count = Field(default_factory=lambda data: data.get("ffn", 1))
    shared_experts: CountOrZero = 0
    expert_groups: Count = 1
    groups_per_token: Count = Field(default_factory=lambda data: data.get("expert_groups", 1))
    dense_layers: CountOrZero = 0
    moe_every: Count = 1
    expert_hidden: Count = Field(default_factory=lambda data: data.get("hidden", 1))
    latent_attention: LatentAttention | None = None
    state_space: StateSpace | None = None
    attention_layers: CountOrZero = 0
    window: Count | None = None
    full_attention_every: Count | None = None
    fused_attention: bool = True

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if "head_size" not in self.model_fields_set and self.hidden % self.heads:
            nearest = nearest_divisors(self.heads, self.hidden)
            allowed = f"must divide hidden = {self.hidden} ({nearest}) unless head_size is given"
            raise field_error("heads", self.heads, allowed)
        if self.heads % self.kv_heads:
            allowed = f"must divide the {self.heads} heads: {nearest_divisors(self.kv_heads, self.heads)}"
            raise field_error("kv_heads", self.kv_heads, allowed)
        if self.dense_layers > self.layers:
            raise field_error("dense_layers", self.dense_layers, f"must be at most the {self.layers} layers")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise field_error(
                "experts_per_token", self.experts_per_token, f"must be from 1 to the {self.experts} experts"
            )
        if self.groups_per_token > self.expert_groups:
            allowed = f"must be at most the {self.expert_groups} expert_groups"
            raise field_error("groups_per_token", self.groups_per_token, allowed)
        if max(1, self.experts) % self.expert_groups:
            nearest = nearest_divisors(self.expert_groups, max(1, self.experts))
            raise field_error("expert_groups", self.expert_groups, f"must divide the {self.experts} experts: {nearest}")
        for field in ("experts_per_token", "shared_experts", "dense_layers"):
            if getattr(self, field) and not self.experts:
                raise field_error(field, getattr(self, field), "must be 0 without experts")
        return self

    @model_validator(mode="after")
    def _check_mixers(self) -> Self:
        if self.attention_layers and not self.state_space:
            raise field_error("attention_layers", self.attention_layers, "must be 0 without a state_space")
        if self.attention_layers > self.layers:
            raise field_error("attention_layers", self.attention_layers, f"must be at most the {self.layers} layers")
        if self.full_attention_every and not self.window:
            raise field_error("full_attention_every", self.full_attention_every, "needs a window")
        return self

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding, learned positions included. In the first stage of a pipeline."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def output_parameters(self) -> int:
        """Parameters of the output layer of its own; 0 where it shares the embedding's weights."""
        return 0 if self.tied_embeddings else self.vocabulary * self.hidden

    @property
    def layer_norms(self) -> int:
        """Norms of a layer, those inside of attention left out."""
        return 4 if self.post_norms else 2

    @property
    def final_norm_parameters(self) -> int:
        """Parameters of the norm before the output layer."""
        return self._norm_parameters(self.hidden)

    @property
    def output_flops(self) -> int:
        """FLOPs of one token's forward pass in the output layer (logits). Backward takes twice as many."""
        return 2 * self.hidden * self.vocabulary

    @property
    def outer_parameters(self) -> int:
        """Parameters outside of the layers: embedding, output layer and final norm."""
        return self.embedding_parameters + self.output_parameters + self.final_norm_parameters

    @property
    def all_parameters(self) -> int:
        """Parameters of the whole model as its shape counts to, each counted once."""
        return self.outer_parameters + sum(kind.layers * kind.parameters for kind in self.layer_kinds)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is computed with: routed experts by top-k, and no input embedding (a lookup)."""
        layers = sum(kind.layers * kind.active_parameters for kind in self.layer_kinds)
        return layers + self.final_norm_parameters + self.vocabulary * self.hidden

    @property
    def all_expert_parameters(self) -> int:
        """Parameters of all routed experts of all layers: what expert parallelism splits."""
        return sum(kind.layers * kind.experts * kind.expert_parameters for kind in self.layer_kinds)

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is replaced by experts."""
        return sum(kind.layers for kind in self.layer_kinds if kind.moe)

    @property
    def layer_parameters(self) -> float:
        """Parameters of a layer, on average over all kinds."""
        return sum(kind.layers * kind.parameters for kind in self.layer_kinds) / self.layers

    def gathered_bytes(self, micro_batch: int) -> int:
        """D of one tensor-parallel AllGather or ReduceScatter: 2 b h s (Rail-only, appendix B)."""
        return FP16_BYTES * micro_batch * self.hidden * self.sequence

    def layer_flops(self, micro_batch: int) -> float:
        """FLOPs of a layer, forward and backward, for a micro-batch; on average over all kinds.

        Attention that isn't fused is computed once more, with selective recomputation (Korthikanti et al. 2022).
        """
        matmuls = 0
        attention = 0
        for kind in self.layer_kinds:
            matmuls += kind.layers * kind.matmul_flops
            attention += kind.layers * kind.attention_flops(self.sequence)
        attention_passes = 3 if self.fused_attention else 4
        return micro_batch * (3.0 * self.sequence * matmuls + attention_passes * attention) / self.layers

    def forward_flops(self, sequence: int, causal: bool = False) -> int:
        """FLOPs of one sequence's forward pass in all layers and the output layer; a step takes three times as many."""
        layers = 0
        for kind in self.layer_kinds:
            layers += kind.layers * (sequence * kind.matmul_flops + kind.attention_flops(sequence, causal))
        return layers + sequence * self.output_flops

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Each kind of layer once, with its number of layers, in the order of their first layers."""
        return _count_layers(self)[0]

    @property
    def layer_sequence(self) -> tuple[int, ...]:
        """For each layer from the input on, the index of its kind in `layer_kinds`: for stages that aren't equal."""
        return _count_layers(self)[1]

    def kind_of(self, layer: int) -> tuple[bool, int | None, bool]:
        """Return whether a layer (counted from 0) has experts, its window, and whether it is attention alone."""
        # spread evenly over all layers
        before = layer * self.attention_layers // self.layers
        if (layer + 1) * self.attention_layers // self.layers > before:
            return False, self.window, True
        moe_number = layer - self.dense_layers + 1
        moe = self.experts > 0 and moe_number > 0 and moe_number % self.moe_every == 0
        attends_to_all = self.full_attention_every is not None and (layer + 1) % self.full_attention_every == 0
        return moe, None if attends_to_all else self.window, False

    def count_layer(self, moe: bool, window: int | None, alone: bool, layers: int) -> LayerKind:
        """Count a layer of a kind. `alone`: attention without an MLP, in a model with state spaces."""
        kind = self._count_attention_layer(moe, window, layers)
        projections, _ = self._attention_parameters()
        if alone:
            norms = kind.norm_parameters // 2
            return replace(
                kind,
                name="attention",
                mlp_width=0,
                mlp_parameters=0,
                norm_parameters=norms,
                replicated_parameters=kind.replicated_parameters - norms,
                matmul_parameters=projections,
            )
        space = self.state_space
        if space is None:
            return kind
        space_projections = self.hidden * (space.projected + space.width)
        return replace(
            kind,
            name=f"{kind.name}, state space",
            window=None,
            heads=space.heads,
            query_width=space.projected,
            key_width=0,
            value_width=0,
            attention_width=space.width,
            latent_width=0,
            score_size=0,
            value_size=0,
            attention_parameters=space_projections + space.small_parameters,
            matmul_parameters=kind.matmul_parameters - projections + space_projections,
            scan_flops=space.scan_flops,
            kept_values=space.kept_values,
        )

    def _count_attention_layer(self, moe: bool, window: int | None, layers: int) -> LayerKind:
        """Count a layer with attention and an MLP."""
        latent = self.latent_attention
        score_size = self.head_size + (latent.rope_size if latent else 0)
        value_size = latent.value_size if latent else self.head_size
        kv_heads = self.heads if latent else self.kv_heads
        attention_width = self.heads * value_size
        projections, replicated = self._attention_parameters()
        expert_matrices = self._mlp_matrices(self.expert_ffn) * self.expert_hidden // self.hidden
        name = "moe" if moe else "dense"
        if moe:
            static_matrices = self.shared_experts * self._mlp_matrices(self.expert_ffn)
            if self.expert_hidden != self.hidden:
                static_matrices += 2 * self.hidden * self.expert_hidden
            static_biases = self.shared_experts * self._mlp_biases(self.expert_ffn)
            router = self.hidden * self.experts
            active_matrices = static_matrices + router + self.experts_per_token * expert_matrices
        else:
            static_matrices = self._mlp_matrices(self.ffn)
            static_biases = self._mlp_biases(self.ffn)
            router = 0
            active_matrices = static_matrices
        router_biases = self.experts if moe and self.biases else 0
        norms = self.layer_norms * self._norm_parameters(self.hidden)
        return LayerKind(
            name=f"{name}, window {window}" if window else name,
            layers=layers,
            moe=moe,
            window=window,
            heads=self.heads,
            query_width=self.heads * score_size,
            key_width=kv_heads * score_size,
            value_width=kv_heads * value_size,
            attention_width=attention_width,
            latent_width=latent.kv_rank + latent.rope_size if latent else 0,
            score_size=score_size,
            value_size=value_size,
            mlp_width=(self.experts_per_token + self.shared_experts) * self.expert_ffn if moe else self.ffn,
            gated=self.gated,
            attention_parameters=projections + self._small_attention_parameters(),
            mlp_parameters=static_matrices + static_biases,
            router_parameters=router + router_biases,
            norm_parameters=norms,
            expert_parameters=expert_matrices + self._mlp_biases(self.expert_ffn) if moe else 0,
            experts=self.experts if moe else 0,
            experts_per_token=self.experts_per_token if moe else 0,
            replicated_parameters=replicated + norms + router + router_biases,
            matmul_parameters=projections + active_matrices,
        )

    def _attention_parameters(self) -> tuple[int, int]:
        """Return the weights of attention's projections, and how many of them tensor parallelism does not split."""
        latent = self.latent_attention
        if latent is None:
            query_and_output = 2 * self.hidden * self.heads * self.head_size
            return query_and_output + 2 * self.hidden * self.kv_heads * self.head_size, 0
        query_width = self.heads * (self.head_size + latent.rope_size)
        output = self.heads * latent.value_size * self.hidden
        to_latent = self.hidden * (latent.kv_rank + latent.rope_size)
        from_latent = latent.kv_rank * self.heads * (self.head_size + latent.value_size)
        if latent.query_rank is None:
            return self.hidden * query_width + output + to_latent + from_latent, to_latent
        to_latent += self.hidden * latent.query_rank
        return latent.query_rank * query_width + output + to_latent + from_latent, to_latent

    def _small_attention_parameters(self) -> int:
        """Return the biases of attention's projections, and the norms inside of attention."""
        latent = self.latent_attention
        small = 0
        if self.biases or self.qkv_biases:
            small += (self.heads + 2 * self.kv_heads) * self.head_size
        if self.biases:
            small += self.hidden
        if self.query_key_norms:
            small += 2 * self._norm_parameters(self.head_size)
        if latent:
            small += self._norm_parameters(latent.kv_rank) + self._norm_parameters(latent.query_rank or 0)
        return small

    def _mlp_matrices(self, width: int) -> int:
        """Return the weights of an MLP whose inner layer has `width` values."""
        return (3 if self.gated else 2) * self.hidden * width

    def _mlp_biases(self, width: int) -> int:
        """Return the biases of an MLP whose inner layer has `width` values."""
        if not self.biases:
            return 0
        return (2 if self.gated else 1) * width + self.hidden

    def _norm_parameters(self, values: int) -> int:
        """Return the parameters of a norm of `values` values."""
        return 2 * values if self.norm_biases else values


# not a cached property: `model_copy` would take its value along
@lru_cache(maxsize=64)
def _count_layers(model: Transformer) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Return the kinds of a model's layers, and the index of each layer's kind."""
    kinds = list(map(model.kind_of, range(model.layers)))
    counts = Counter(kinds)
    order = list(counts)
    layer_kinds = tuple(model.count_layer(*kind, layers) for kind, layers in counts.items())
    return layer_kinds, tuple(map(order.index, kinds))
