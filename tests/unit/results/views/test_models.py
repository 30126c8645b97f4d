"""Tables of models and platforms, by figures of their files."""

import json
from pathlib import Path

import pytest

from railyard.experiments import cli
from railyard.results.views import models
from railyard.topologies.platforms import PLATFORMS, SYSTEMS
from railyard.workloads.models.catalogue import CATALOGUE, model_names


def test_every_model_and_platform_has_a_row() -> None:
    rows = {row[0]: row for row in models.model_rows()}
    assert list(rows) == model_names()
    assert rows["deepseek-v3"][1:] == ("671.0 B", "36.63 B", "61", "7,168", "128", "128", "2,048", "8 of 256")
    assert {len(row) for row in rows.values()} == {len(models.MODEL_COLUMNS)}
    platforms = {row[0]: row for row in models.platform_rows()}
    assert list(platforms) == list(PLATFORMS)
    assert platforms["h800"][1:] == ("8", "1.6Tbit", "400Gbit", "80 GB", "3.35 TB/s", "989", "1,979", "–", "–")


@pytest.mark.parametrize("name", ["deepseek-v3", "moe-1.3b-128", "alexnet", "h100", "gb200"])
def test_each_is_described_with_its_source(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["describe", name]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}\n")
    assert models.source_of(name) in printed


def test_files_of_models_and_platforms_are_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, name in ((CATALOGUE, "llama3-8b"), (SYSTEMS, "h200")):
        path = tmp_path / "mine.yaml"
        path.write_text((folder / f"{name}.yaml").read_text())
        assert cli.main(["describe", str(path)]) == 0
        (expected, *_) = models.facts_of_model(name) if folder == CATALOGUE else models.facts_of_platform(name)
        assert expected[1] in capsys.readouterr().out


def test_config_is_described_by_its_kinds_of_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"vocab_size": 1000, "max_position_embeddings": 256, "num_local_experts": 8, "num_experts_per_tok": 2}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "sliding_window": 16}))
    assert cli.main(["describe", str(path)]) == 0
    assert "4 layers" in capsys.readouterr().out
    columns, rows = models.layer_rows(str(path))
    assert columns == models.LAYER_COLUMNS
    assert [row[:2] for row in rows] == [("2", "moe, window 16"), ("2", "moe")]
