"""The catalogue of models: a YAML file each in `workloads/models`, its source on line 1; yours is a path away.

A path that ends in .json is the config.json of a model on Hugging Face.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from railyard.core.config import ConfigModel, field_error, is_path, parse_by_kind, parse_model, parse_yaml, read_yaml
from railyard.core.errors import BadInput, nearest_divisors, nearest_multiples, unknown_name_hint
from railyard.core.installation import data_file
from railyard.workloads.models import transformer
from railyard.workloads.models.hugging_face import read_config
from railyard.workloads.models.transformer import Transformer
from railyard.workloads.placement.layout import Count, Parallelism

CATALOGUE: Final = data_file("workloads/models")
# How far published parameters may be from what a GPT's shape counts to: the rounding of two digits. A model with
# grouped-query attention, gated MLPs or untied embeddings is further away, and would get FLOPs that it doesn't have.
MAX_PARAMETER_ERROR: Final = 0.03
FP16_BYTES: Final = transformer.FP16_BYTES


class _Model(ConfigModel):
    text: ClassVar[str]  # what it is, in messages

    @classmethod
    def load(cls, name: str, field: str = "model") -> Self:
        """Return a model as `load_model` does. BadInput for one of another kind."""
        model = load_model(name, field)
        if not isinstance(model, cls):
            kinds = [kind for kind, model_class in KINDS.items() if model_class is cls]
            raise BadInput(field, name, f"is {model.text}; kind {kinds[0]} takes a model of kind {kinds[0]}")
        return model


class _Transformer(_Model):
    """Layers l, hidden size h, sequence length s, as in Rail-only Table III; vocabulary V. `parameters` as published.

    `domain_gpus`: GPUs in an HB domain of the cluster that it was trained on.
    """

    parameters: Count
    layers: Count
    hidden: Count
    heads: Count
    sequence: Count
    vocabulary: Count
    domain_gpus: Count

    @property
    def transformer(self) -> Transformer:
        """The same shape as a `Transformer`: a GPT of 2022, with biases, learned positions and unfused attention.

        BadInput for a size beyond a `Transformer`'s limits.
        """
        sizes = ("parameters", "layers", "hidden", "heads", "vocabulary", "sequence")
        shape = {
            "kind": "transformer",
            **{size: getattr(self, size) for size in sizes},
            "tied_embeddings": True,
            "positions": self.sequence,
            "biases": True,
            "norm_biases": True,
            "fused_attention": False,
        }
        return parse_model(Transformer, shape, "model")

    @property
    def all_parameters(self) -> int:
        """Parameters of the whole model, each counted once (Narayanan Eq. 2)."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def layer_parameters(self) -> int:
        """S_T, of a dense transformer block: 12 h^2 + 13 h (Narayanan Eq. 2)."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """(V + s) h (Narayanan Eq. 2)."""
        return (self.vocabulary + self.sequence) * self.hidden


class GptModel(_Transformer):
    """A dense GPT, and how it was trained."""

    text = "a dense model"
    kind: Literal["gpt"]
    training: Parallelism

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        try:
            check_layers(self, self.training, "training")
            check_heads(self, self.training, "training")
            check_dense(self.training, "training")
        except BadInput as error:
            raise field_error(error.field, error.value, error.allowed) from error
        return self

    def gathered_bytes(self, micro_batch: int) -> int:
        """D of one tensor-parallel AllGather or ReduceScatter: 2 b h s (Rail-only, appendix B)."""
        return FP16_BYTES * micro_batch * self.hidden * self.sequence

    def layer_flops(self, micro_batch: int) -> float:
        """FLOPs of one layer, forward and backward, for a micro-batch, with selective recomputation.

        Source: Korthikanti et al. 2022 Eq. 8, 72 B l s h^2 (1 + s/(3h) + V/(12 h l)).
        """
        # without the last term: the output layer is the last stage's alone, and Eq. 6-11 take all stages as equal
        return 72.0 * micro_batch * self.sequence * self.hidden**2 * (1 + self.sequence / (3 * self.hidden))


class MoeModel(_Transformer):
    """A GPT in which `moe_layers` of the layers have `experts` expert MLPs, one a GPU; the rest is data-parallel."""

    text = "a mixture of experts"
    kind: Literal["moe"]
    moe_layers: Count
    experts: Count
    experts_per_token: Count
    gpus: Count
    global_batch: Count

    @model_validator(mode="after")
    def _check_gpus(self) -> Self:
        if self.gpus % self.domain_gpus:
            nearest = nearest_multiples(self.gpus, self.domain_gpus)
            raise field_error("gpus", self.gpus, f"must be a multiple of domain_gpus, {self.domain_gpus}: {nearest}")
        return self

    @property
    def transformer(self) -> Transformer:
        """The same shape as a `Transformer`, with the experts in the last layer of as many equal parts."""
        experts: dict[str, int] = {"experts": self.experts, "experts_per_token": self.experts_per_token}
        if self.layers % self.moe_layers:
            experts["dense_layers"] = self.layers - self.moe_layers
        else:
            experts["moe_every"] = self.layers // self.moe_layers
        return super().transformer.model_copy(update=experts)

    @property
    def all_parameters(self) -> int:
        return self.static_parameters + self.experts * self.expert_parameters

    @property
    def all_to_alls(self) -> int:
        """All-to-alls of a step: dispatch and combine, forward and backward, in every MoE layer."""
        return 4 * self.moe_layers

    @property
    def tokens_per_gpu(self) -> int:
        return self.global_batch * self.sequence // self.gpus

    @property
    def all_to_all_bytes(self) -> int:
        """Bytes that one GPU has for all GPUs together (itself included) in one all-to-all: its tokens' activations."""
        return self.exchanged_bytes(self.tokens_per_gpu)

    def exchanged_bytes(self, tokens: int) -> int:
        """Bytes that a GPU with `tokens` tokens has for the experts of its group in one all-to-all."""
        return FP16_BYTES * tokens * self.experts_per_token * self.hidden

    @property
    def static_parameters(self) -> int:
        """Parameters of which every GPU has a copy: all but the MLPs that experts take the place of."""
        return self.layers * self.layer_parameters + self.embedding_parameters - self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert in all MoE layers: an MLP in each."""
        return self.moe_layers * (8 * self.hidden**2 + 5 * self.hidden)

    @property
    def gpu_flops(self) -> float:
        """FLOPs of a GPU in a step without recomputation: Korthikanti Eq. 7 without vocabulary, for its own tokens."""
        dense = 1 + self.sequence / (6 * self.hidden)
        # a token goes through `experts_per_token` expert MLPs, each of 16 of the 24 h^2 multiply-adds of a layer
        extra_experts = (self.experts_per_token - 1) * 16 / 24 * self.moe_layers / self.layers
        return 72.0 * self.tokens_per_gpu * self.layers * self.hidden**2 * (dense + extra_experts)


class Layer(ConfigModel):
    """Trainable parameters of a layer: two tensors, and so two gradients."""

    name: str
    weights: Count
    biases: Annotated[int, Field(ge=0)] = 0

    @property
    def parameters(self) -> int:
        return self.weights + self.biases


class LayersModel(_Model):
    """A network layer by layer from its input on, trained by data parallelism alone; `parameters` as published."""

    text = "a list of layers"
    kind: Literal["layers"]
    parameters: Count
    bytes_per_parameter: Count = 4
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _check_parameter_sum(self) -> Self:
        computed = sum(layer.parameters for layer in self.layers)
        if computed != self.parameters:
            raise field_error("parameters", self.parameters, f"must be what the layers add up to, {computed}")
        return self

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one AllReduce of all gradients."""
        return self.bytes_per_parameter * self.parameters


Model = GptModel | MoeModel | LayersModel | Transformer
KINDS: Final[dict[str, type[Model]]] = {
    "transformer": Transformer,
    "gpt": GptModel,
    "moe": MoeModel,
    "layers": LayersModel,
}


def model_names() -> list[str]:
    """Names of the models that come with Railyard."""
    return sorted(path.stem for path in CATALOGUE.glob("*.yaml"))


def model_title(name: str) -> str:
    """Return the name of a model for people. A file is called without its folder and suffix."""
    return Path(name).stem if is_path(name) else name


def load_model(name: str, field: str = "model") -> Model:
    """Return a model of the catalogue by its name, or any by the path of its file (.yaml, or Hugging Face's .json).

    BadInput unless the heads share out `hidden` evenly, and the published parameters may be those of the shape.
    """
    if name.endswith(".json"):
        return read_config(Path(name), field)
    if is_path(name):
        return _checked(read_yaml(Path(name), field), f"{field} {Path(name).name}")
    if name not in model_names():
        raise BadInput(
            field, name, f"{unknown_name_hint(name, model_names())}, or the path of a .yaml file or config.json"
        )
    return _of_the_catalogue(name)


def load_transformer(name: str, field: str = "model") -> Transformer:
    """Return the shape of a model as `load_model` does, whichever kind of transformer it is. BadInput for another."""
    return as_transformer(load_model(name, field), name, field)


def as_transformer(model: Model, name: str, field: str = "model") -> Transformer:
    """Return the shape of a loaded model. BadInput for a list of layers, by the model's name."""
    if isinstance(model, Transformer):
        return model
    if isinstance(model, LayersModel):
        raise BadInput(field, name, f"is {model.text}; it must be a transformer: kind transformer, gpt or moe")
    return model.transformer


@cache
def _of_the_catalogue(name: str) -> Model:
    """Return a model of the catalogue."""
    # kept: a figure of a paper weighs strategies for the same few models hundreds of times
    path = CATALOGUE / f"{name}.yaml"
    return _checked(parse_yaml(path.read_text("utf-8"), "model", str(path)), f"model {path.name}")


def _checked(data: object, where: str) -> Model:
    """Return the model that a file has. `where`: field and file, for messages."""
    model = parse_by_kind(data, KINDS, where)
    if isinstance(model, LayersModel):
        return model
    if not isinstance(model, Transformer) and model.hidden % model.heads:
        allowed = f"must divide hidden = {model.hidden}: {nearest_divisors(model.heads, model.hidden)}"
        raise BadInput(f"{where}.heads", model.heads, allowed)
    computed = model.all_parameters
    tolerance = MAX_PARAMETER_ERROR
    hint = "; a model with grouped-query attention, gates or untied embeddings is of kind transformer"
    if isinstance(model, Transformer):
        tolerance = transformer.MAX_PARAMETER_ERROR
        hint = ""
    if abs(model.parameters / computed - 1) > tolerance:
        allowed = f"must be within {tolerance:.0%} of what layers, hidden and the rest count to: {computed:,}{hint}"
        raise BadInput(f"{where}.parameters", model.parameters, allowed)
    return model


Dense = GptModel | Transformer
"""A model without experts."""


def load_dense(name: str, field: str = "model") -> Dense:
    """Return a dense model as `load_model` does. BadInput for another."""
    model = load_model(name, field)
    if isinstance(model, GptModel) or (isinstance(model, Transformer) and not model.experts):
        return model
    text = "a mixture of experts" if isinstance(model, Transformer) else model.text
    raise BadInput(field, name, f"is {text}; kind gpt takes a model of kind gpt or transformer without experts")


def check_layers(model: Dense, parallelism: Parallelism, field: str = "parallelism") -> None:
    """BadInput unless every chunk of every stage gets as many layers."""
    chunks = parallelism.pipeline * parallelism.virtual_stages
    if model.layers % chunks:
        product = f"pipeline * virtual_stages = {chunks}"
        allowed = (
            f"must be such that {product} divides the {model.layers} layers: {nearest_divisors(chunks, model.layers)}"
        )
        raise BadInput(f"{field}.pipeline", parallelism.pipeline, allowed)


def check_heads(model: Dense, parallelism: Parallelism, field: str = "parallelism") -> None:
    """BadInput unless every rank of a tensor-parallel group gets as many attention heads (Megatron-LM section 2.3)."""
    if model.heads % parallelism.tensor:
        nearest = nearest_divisors(parallelism.tensor, model.heads)
        allowed = f"must divide the {model.heads} attention heads of the model: {nearest}"
        raise BadInput(f"{field}.tensor", parallelism.tensor, allowed)


def check_dense(parallelism: Parallelism, field: str = "parallelism") -> None:
    """BadInput if a model without experts should share out experts."""
    if parallelism.expert > 1:
        raise BadInput(f"{field}.expert", parallelism.expert, "must be 1 for a model without experts")
