"""The catalogue against what its sources publish."""

from pathlib import Path

import pytest

from topologies.errors import BadInput
from workloads.catalogue import CATALOGUE, GptModel, load_gpt, load_model, load_moe, model_names
from workloads.parallelism import place
from workloads.volumes import gpt_volumes, moe_volumes, shares

PAPER = ("gpt-145.6b", "gpt-310.1b", "gpt-529.6b", "gpt-1008b")


@pytest.mark.parametrize("name", model_names())
def test_every_model_names_its_source_on_line_1(name: str) -> None:
    first = (CATALOGUE / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert "et al. 20" in first


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith("gpt")])
def test_published_parameters_and_cluster_fit_the_shape(name: str) -> None:
    """Narayanan Eq. 2, within the rounding of Table 1 (3% at the smallest)."""
    model = load_gpt(name)
    counted = model.layers * model.layer_parameters + model.embedding_parameters
    assert counted == pytest.approx(model.parameters, rel=0.03 if model.parameters < 1e10 else 0.003)
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
    training = load_gpt(name).training
    assert (training.gpus, training.data, training.micro_batches) == (gpus, data, micro_batches)


def test_moe_figures_of_deepspeed() -> None:
    model = load_moe("moe-1.3b-128")
    assert model.tokens_per_gpu == 8192
    assert model.all_to_all_bytes == 33_554_432
    assert model.all_to_all_bytes / model.gpus == 262_144
    assert model.all_to_alls == 48
    experts = model.moe_layers * (8 * model.hidden**2 + 5 * model.hidden) * model.experts
    assert model.static_parameters + experts == pytest.approx(model.parameters, rel=0.02)


@pytest.mark.parametrize("name", PAPER)
def test_tensor_parallelism_has_over_three_quarters_of_the_volume(name: str) -> None:
    """Rail-only section III-A, Fig. 2a."""
    volume = shares(gpt_volumes(load_gpt(name)))
    assert volume["TP"] > 0.75
    assert sum(volume.values()) == pytest.approx(1)


def test_all_to_all_has_about_the_published_share() -> None:
    """Rail-only section IV-B says 27% (Fig. 5a) and not how it counts; ours is 30.6%, as `moe_volumes` says."""
    assert shares(moe_volumes(load_moe("moe-1.3b-128")))["EP"] == pytest.approx(0.306, abs=0.001)


def test_a_file_of_your_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOGUE / "gpt-145.6b.yaml").read_text().replace("hidden: 12288", "hidden: 64"))
    model = load_model(str(mine))
    assert isinstance(model, GptModel)
    assert model.hidden == 64


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("layers: 80", "layers: eighty"), "layers: 'eighty' must be a whole number"),
        (("layers: 80", "layers: 81"), "pipeline * virtual_stages = 16 must divide the 81 layers"),
        (("hidden: 12288", "width: 12288"), "width: 12288 is not a known key"),
        (("kind: gpt", "kind: gtp"), "kind: 'gtp' is not known: did you mean 'gpt'?"),
        (("kind: gpt", "kind: {"), "is not YAML"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOGUE / "gpt-145.6b.yaml").read_text().replace(*edit))
    with pytest.raises(BadInput) as caught:
        load_model(str(mine))
    assert message in str(caught.value)
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_missing_and_wrong_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'gpt-1008b'"):
        load_gpt("gpt-1008")
    with pytest.raises(BadInput, match="can't be read: No such file"):
        load_gpt(str(tmp_path / "none.yaml"))
    with pytest.raises(BadInput, match="mixture of experts"):
        load_gpt("moe-1.3b-128")
    with pytest.raises(BadInput, match="dense model"):
        load_moe("gpt-1008b")
