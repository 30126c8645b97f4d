"""What a step of a mixture of experts needs of its model, whichever kind of model file it is from.

Units: parameters and FLOPs of the whole model; bytes of 16-bit values.
"""

from dataclasses import dataclass
from typing import Final

from railyard.core.errors import BadInput, nearest_divisors, nearest_multiples
from railyard.workloads.models.catalogue import FP16_BYTES, MoeModel, load_model
from railyard.workloads.models.transformer import Transformer
from railyard.workloads.placement.layout import Parallelism

# forward, and twice as much backward
PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class Mixture:
    """A transformer of which `moe_layers` of the layers send each token to `experts_per_token` of `experts` experts.

    `expert_hidden`: values of a token that are sent to an expert.
    `static_parameters`: what every data-parallel rank has a copy of: all but the routed experts.
    `expert_parameters`: of one routed expert, in all MoE layers together.
    `token_flops`: of one token, forward and backward, without recomputation.
    """

    layers: int
    moe_layers: int
    hidden: int
    heads: int
    expert_hidden: int
    sequence: int
    experts: int
    experts_per_token: int
    static_parameters: int
    expert_parameters: int
    token_flops: float

    @property
    def all_to_alls(self) -> int:
        """All-to-alls of a micro-batch: dispatch and combine, forward and backward, in every MoE layer."""
        return 4 * self.moe_layers

    def exchanged_bytes(self, tokens: int) -> int:
        """Bytes that a GPU with `tokens` tokens has for its group in one all-to-all, those for itself included.

        A token is sent once to each of its experts, also where one GPU has two of them.
        """
        return FP16_BYTES * tokens * self.experts_per_token * self.expert_hidden


def mixture_of(model: MoeModel | Transformer) -> Mixture:
    """Return the figures of a mixture of experts. ValueError for a dense model."""
    if isinstance(model, MoeModel):
        return Mixture(
            layers=model.layers,
            moe_layers=model.moe_layers,
            hidden=model.hidden,
            heads=model.heads,
            expert_hidden=model.hidden,
            sequence=model.sequence,
            experts=model.experts,
            experts_per_token=model.experts_per_token,
            static_parameters=model.static_parameters,
            expert_parameters=model.expert_parameters,
            token_flops=model.gpu_flops / model.tokens_per_gpu,
        )
    if not model.experts:
        raise ValueError("a dense model has no experts")
    return Mixture(
        layers=model.layers,
        moe_layers=model.moe_layers,
        hidden=model.hidden,
        heads=model.heads,
        expert_hidden=model.expert_hidden,
        sequence=model.sequence,
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        static_parameters=model.all_parameters - model.all_expert_parameters,
        expert_parameters=model.all_expert_parameters // model.experts,
        token_flops=PASSES * model.forward_flops(model.sequence) / model.sequence,
    )


def load_mixture(name: str, field: str = "model", sequence: int | None = None) -> Mixture:
    """Return the mixture of experts of a model of the catalogue or a file; `sequence`: in place of its own.

    BadInput for a model without experts.
    """
    model = load_model(name, field)
    if isinstance(model, MoeModel) or (isinstance(model, Transformer) and model.experts):
        return mixture_of(model.model_copy(update={"sequence": sequence or model.sequence}))
    raise BadInput(field, name, f"is {model.text} without experts; it must be a mixture of experts")


def check_experts(mixture: Mixture, parallelism: Parallelism, field: str = "parallelism") -> None:
    """BadInput unless every GPU of an expert-parallel group gets as many experts, and each chunk of a stage a layer."""
    expert = parallelism.expert
    if mixture.experts % expert:
        allowed = f"must divide the {mixture.experts} experts of the model: {nearest_divisors(expert, mixture.experts)}"
        raise BadInput(f"{field}.expert", expert, allowed)
    if expert % parallelism.tensor:
        allowed = (
            f"must be a multiple of tensor = {parallelism.tensor}, since an expert isn't split: "
            f"{nearest_multiples(expert, parallelism.tensor)}"
        )
        raise BadInput(f"{field}.expert", expert, allowed)
    if mixture.heads % parallelism.tensor:
        nearest = nearest_divisors(parallelism.tensor, mixture.heads)
        allowed = f"must divide the {mixture.heads} attention heads of the model: {nearest}"
        raise BadInput(f"{field}.tensor", parallelism.tensor, allowed)
    chunks = parallelism.pipeline * parallelism.virtual_stages
    if chunks > mixture.moe_layers:
        most = mixture.moe_layers // parallelism.virtual_stages
        allowed = (
            f"must be at most {most}, so that each of pipeline * virtual_stages = {chunks} chunks has one of the "
            f"{mixture.moe_layers} layers with experts"
        )
        raise BadInput(f"{field}.pipeline", parallelism.pipeline, allowed)
