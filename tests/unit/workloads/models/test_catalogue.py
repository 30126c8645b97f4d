"""The catalogue against what its sources publish."""

import re
from pathlib import Path

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
from tests.unit.workloads.volumes import gpt_volumes, moe_volumes

PAPER = ("gpt-145.6b", "gpt-310.1b", "gpt-529.6b", "gpt-1008b")


@pytest.mark.parametrize("name", model_names())
def test_every_model_names_its_source_on_line_1(name: str) -> None:
    first = (CATALOGUE / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert re.search(r"\b20[0-9]{2}\b", first)


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith("gpt")])
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


def test_a_layer_too_few_is_noticed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOGUE / "alexnet.yaml").read_text().replace("biases: 192", "biases: 0"))
    with pytest.raises(BadInput, match=r"mine.yaml.parameters: 61100840 must be what the layers add up to, 61100648"):
        LayersModel.load(str(mine))


def test_heads_are_shared_out_evenly(tmp_path: Path) -> None:
    model = GptModel.load("gpt-145.6b")
    check_heads(model, model.training)
    with pytest.raises(BadInput) as caught:
        check_heads(model, model.training.model_copy(update={"tensor": 10}), "workloads.0.parallelism")
    expected = "workloads.0.parallelism.tensor: 10 must divide the 96 attention heads of the model"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("gpt-145.6b", ("heads: 96", "heads: 161"), "training.tensor: 8 must divide the 161 attention heads"),
        ("gpt-145.6b", ("heads: 96", "heads: 104"), "heads: 104 must divide hidden = 12288"),
        (
            "gpt-145.6b",
            ("pipeline: 8", "pipeline: 7"),
            "training.pipeline: 7 must be such that pipeline * virtual_stages = 14 divides the 80 layers",
        ),
        (
            "gpt-145.6b",
            ("parameters: 145600000000", "parameters: 1"),
            "parameters: 1 must be within 30% of what layers, hidden and the rest count to: 145622237184",
        ),
        ("gpt-145.6b", ("layers: 80", "layers: 800"), "parameters: 145600000000 must be within 30%"),
        ("moe-1.3b-128", ("parameters: 52000000000", "parameters: 1300000000"), "parameters: 1300000000 must be"),
        ("moe-1.3b-128", ("heads: 16", "heads: 17"), "heads: 17 must divide hidden = 2048"),
        ("moe-1.3b-128", ("\ngpus: 128", "\ngpus: 5"), "gpus: 5 must be a multiple of domain_gpus, 8"),
        ("moe-1.3b-128", ("heads: 16", "heads: 16\nheads: 16"), "line 8, column 1: the key 'heads' is given twice"),
    ],
)
def test_a_model_that_cannot_be_is_reported_by_the_field(
    name: str, edit: tuple[str, str], message: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOGUE / f"{name}.yaml").read_text().replace(*edit))
    with pytest.raises(BadInput) as caught:
        load_model(str(mine), "workloads.0.model")
    assert message in str(caught.value)
    assert "{" not in str(caught.value)


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


def test_a_file_of_your_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    text = (CATALOGUE / "gpt-145.6b.yaml").read_text()
    mine.write_text(text.replace("hidden: 12288", "hidden: 6144").replace("145600000000", "36600000000"))
    model = load_model(str(mine))
    assert isinstance(model, GptModel)
    assert model.hidden == 6144


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("layers: 80", "layers: eighty"), "layers: 'eighty' must be a whole number"),
        (("layers: 80", "layers: 81"), "pipeline * virtual_stages = 16 divides the 81 layers"),
        (("hidden: 12288", "width: 12288"), "width: 12288 is not a known key"),
        (("kind: gpt", "kind: gtp"), "kind: 'gtp' is not known: did you mean 'gpt'?"),
        (("kind: gpt", "kind: {"), "is not YAML"),
    ],
)
def test_bad_file_is_named_with_its_error(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOGUE / "gpt-145.6b.yaml").read_text().replace(*edit))
    with pytest.raises(BadInput) as caught:
        load_model(str(mine))
    assert message in str(caught.value)
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_missing_and_wrong_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'gpt-1008b'"):
        GptModel.load("gpt-1008")
    with pytest.raises(BadInput, match="can't be read: No such file"):
        GptModel.load(str(tmp_path / "none.yaml"))
    with pytest.raises(BadInput, match="mixture of experts"):
        GptModel.load("moe-1.3b-128")
    with pytest.raises(BadInput, match="dense model"):
        MoeModel.load("gpt-1008b")
    with pytest.raises(BadInput, match="list of layers; kind gpt takes a model of kind gpt"):
        GptModel.load("alexnet")
