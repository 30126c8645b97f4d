"""The catalogue against what its sources publish."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.matrix.pair_traffic import shares
from railyard.workloads.models.catalogue import (
    CATALOGUE,
    GptModel,
    LayersModel,
    MoeModel,
    check_heads,
    load_model,
    model_names,
)
from railyard.workloads.placement.layout import place
from tests.unit.workloads.messages import CheckMessages
from tests.unit.workloads.volumes import gpt_volumes, moe_volumes

PAPER = ("gpt-145.6b", "gpt-310.1b", "gpt-529.6b", "gpt-1008b")


@pytest.mark.parametrize("name", model_names())
def test_every_model_names_its_source_on_line_1(name: str) -> None:
    first = (CATALOGUE / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert re.search(r"\b20[0-9]{2}\b", first)


@pytest.mark.parametrize("name", [name for name in model_names() if re.match("gpt3?-[0-9]", name)])
def test_published_parameters_and_cluster_fit_the_shape(name: str) -> None:
    """Narayanan Eq. 2, within the rounding of what is published: Megatron's to 0.1B, others' to a digit or two."""
    model = GptModel.load(name)
    counted = model.layers * model.layer_parameters + model.embedding_parameters
    to_a_tenth = re.fullmatch(r"gpt-[0-9]+\.[0-9]b|gpt-1008b", name) and model.parameters > 1e10
    assert counted == pytest.approx(model.parameters, rel=0.003 if to_a_tenth else 0.03)
    placement = place(model.training, model.training.gpus // model.domain_gpus, model.domain_gpus)
    assert placement.parallelism.tensor <= model.domain_gpus


@pytest.mark.parametrize(
    ("name", "gpus", "data", "micro_batches"),
    [
        ("gpt-145.6b", 1536, 24, 48),
        ("gpt-310.1b", 1920, 15, 144),
        ("gpt-529.6b", 2520, 9, 280),
        ("gpt-1008b", 3072, 6, 512),
    ],
)
def test_table_1_of_megatron(name: str, gpus: int, data: int, micro_batches: int) -> None:
    training = GptModel.load(name).training
    assert (training.gpus, training.data, training.micro_batches) == (gpus, data, micro_batches)


@pytest.mark.parametrize(
    ("name", "tensor", "pipeline", "micro_batches", "micro_batch", "virtual_stages"),
    [
        ("gpt-22b", 8, 1, 1, 4, 1),
        ("gpt-175b", 8, 8, 64, 1, 3),
        ("gpt-530b", 8, 35, 280, 1, 3),
        ("gpt-1t", 8, 64, 512, 1, 1),
    ],
)
def test_table_3_and_5_of_korthikanti(
    name: str, tensor: int, pipeline: int, micro_batches: int, micro_batch: int, virtual_stages: int
) -> None:
    training = GptModel.load(name).training
    assert (training.tensor, training.pipeline, training.data) == (tensor, pipeline, 1)
    assert (training.micro_batches, training.micro_batch) == (micro_batches, micro_batch)
    assert training.virtual_stages == virtual_stages


@pytest.mark.parametrize(
    ("name", "parameters", "convolutions", "connected"),
    [
        (
            "alexnet",
            61_100_840,
            [23_232, 307_200, 663_552, 884_736, 589_824],
            [37_748_736, 16_777_216, 4_096_000],
        ),
        (
            "vgg-11",
            132_863_336,
            [1_728, 73_728, 294_912, 589_824, 1_179_648, 2_359_296, 2_359_296, 2_359_296],
            [102_760_448, 16_777_216, 4_096_000],
        ),
    ],
)
def test_layer_by_layer_models_add_up_biases_included(
    name: str, parameters: int, convolutions: list[int], connected: list[int]
) -> None:
    model = LayersModel.load(name)
    assert sum(layer.parameters for layer in model.layers) == model.parameters == parameters
    assert [layer.weights for layer in model.layers] == convolutions + connected
    assert [layer.name[:2] for layer in model.layers] == ["co"] * len(convolutions) + ["fc"] * len(connected)
    assert model.gradient_bytes == 4 * parameters


def test_heads_are_shared_out_evenly() -> None:
    model = GptModel.load("gpt-145.6b")
    check_heads(model, model.training)
    with pytest.raises(BadInput, match=r"workloads\.0\.parallelism\.tensor: 10 must divide the 96 "):
        check_heads(model, model.training.model_copy(update={"tensor": 10}), "workloads.0.parallelism")


EDITS: Final[dict[str, tuple[str, str, str]]] = {
    "heads that tensor parallelism doesn't divide": ("gpt-145.6b", "heads: 96", "heads: 161"),
    "heads that don't divide hidden": ("gpt-145.6b", "heads: 96", "heads: 104"),
    "stages that don't divide the layers": ("gpt-145.6b", "pipeline: 8", "pipeline: 7"),
    "layers that stages don't divide": ("gpt-145.6b", "layers: 80", "layers: 81"),
    "parameters below the shape's": ("gpt-145.6b", "parameters: 145600000000", "parameters: 1"),
    "shape above its parameters": ("gpt-145.6b", "layers: 80", "layers: 800"),
    "no number": ("gpt-145.6b", "layers: 80", "layers: eighty"),
    "unknown key": ("gpt-145.6b", "hidden: 12288", "width: 12288"),
    "unknown kind": ("gpt-145.6b", "kind: gpt", "kind: gtp"),
    "parameters of one expert": ("moe-1.3b-128", "parameters: 52000000000", "parameters: 1300000000"),
    "heads of a mixture": ("moe-1.3b-128", "heads: 16", "heads: 17"),
    "GPUs in parts of a domain": ("moe-1.3b-128", "\ngpus: 128", "\ngpus: 5"),
    "transformer with an unknown key": ("llama3-8b", "kv_heads: 8", "kv_head: 8"),
    "transformer without its GQA": ("llama3-70b", "kv_heads: 8", "kv_heads: 64"),
    "transformer without its gate": ("nemotron4-15b", "hidden: 6144", "hidden: 6144\ngated: true"),
    "heads that KV heads don't divide": ("llama3-8b", "kv_heads: 8", "kv_heads: 7"),
    "heads of a transformer that don't divide hidden": ("llama3-8b", "\nheads: 32", "\nheads: 48"),
    "more experts a token than experts": ("mixtral-8x7b", "per_token: 2", "per_token: 9"),
    "shared experts of a dense model": ("llama3-8b", "gated: true", "gated: true\nshared_experts: 1"),
    "groups that don't divide the experts": ("deepseek-v3", "expert_groups: 8", "expert_groups: 7"),
    "more groups a token than groups": ("deepseek-v3", "groups_per_token: 4", "groups_per_token: 9"),
    "attention alone without a state space": ("llama3-8b", "gated: true", "gated: true\nattention_layers: 2"),
    "more attention layers than layers": ("nemotron3-nano", "attention_layers: 6", "attention_layers: 30"),
    "full attention of a model without a window": ("gpt-oss-120b", "window: 128\n", ""),
    "latent attention without its rank": ("deepseek-v3", "kv_rank: 512, ", ""),
    "more dense layers than layers": ("deepseek-v3", "dense_layers: 3", "dense_layers: 62"),
    "too many layers": ("llama3-8b", "layers: 32", "layers: 1000000000000"),
    "key twice": ("moe-1.3b-128", "heads: 16", "heads: 16\nheads: 16"),
    "a layer without its biases": ("alexnet", "biases: 192", "biases: 0"),
}
"""By case: the model, and the change of its file."""


def test_messages_of_impossible_models(tmp_path: Path, check_messages: CheckMessages) -> None:
    calls: dict[str, Callable[[], object]] = {}
    for number, (case, (name, before, after)) in enumerate(EDITS.items()):
        path = tmp_path / f"{number}.yaml"
        path.write_text((CATALOGUE / f"{name}.yaml").read_text().replace(before, after))
        calls[case] = partial(load_model, str(path), "workloads.0.model")
    calls["unknown name"] = partial(GptModel.load, "gpt-1008")
    calls["missing file"] = partial(GptModel.load, str(tmp_path / "none.yaml"))
    calls["mixture in place of a dense model"] = partial(GptModel.load, "moe-1.3b-128")
    calls["dense model in place of a mixture"] = partial(MoeModel.load, "gpt-1008b")
    calls["layers in place of a dense model"] = partial(GptModel.load, "alexnet")
    check_messages(calls)


def test_moe_figures_of_deepspeed() -> None:
    model = MoeModel.load("moe-1.3b-128")
    assert model.tokens_per_gpu == 8192
    assert model.all_to_all_bytes == 33_554_432
    assert model.all_to_all_bytes / model.gpus == 262_144
    assert model.all_to_alls == 48
    experts = model.moe_layers * (8 * model.hidden**2 + 5 * model.hidden) * model.experts
    assert model.static_parameters + experts == pytest.approx(model.parameters, rel=0.02)


@pytest.mark.parametrize("name", PAPER)
def test_tensor_parallelism_has_three_quarters_of_the_volume(name: str) -> None:
    """Rail-only section III-A, Fig. 2a."""
    volume = shares(gpt_volumes(GptModel.load(name)))
    assert volume["TP"] > 0.75
    assert sum(volume.values()) == pytest.approx(1)


def test_all_to_all_has_about_the_published_share() -> None:
    """Rail-only section IV-B says 27% (Fig. 5a) and not how it counts; ours is 30.6%, as `moe_volumes` says."""
    assert shares(moe_volumes(MoeModel.load("moe-1.3b-128")))["EP"] == pytest.approx(0.306, abs=0.001)


def test_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: {")
    with pytest.raises(BadInput, match=r"mine\.yaml.* is not YAML"):
        load_model(str(mine))
