"""`predict moe-cost` with options: other models, platforms, HB domains, groups and number formats."""

import json
from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments import cli
from tests.unit.experiments.command_errors import command_errors

MOE_COST = ["predict", "moe-cost"]
CONFIG = {
    "model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 1000, "max_position_embeddings": 4096,
    "num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
}  # fmt: skip


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert cli.main([*MOE_COST, "--json", *arguments]) == 0
    loaded: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return loaded


def test_options_choose_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = rows(capsys, "--model", "deepseek-v3,mixtral-8x7b", "--platform", "h200", "--ep", "8,128")
    assert [(row["model"], row["platform"], row["K"], row["EP"]) for row in chosen] == [
        ("deepseek-v3", "h200", 8, 8),
        ("deepseek-v3", "h200", 8, 128),
        ("mixtral-8x7b", "h200", 8, 8),
    ]
    assert chosen[0]["cost_pct"] == 0 < chosen[1]["cost_pct"]
    (wide,) = rows(capsys, "--model", "deepseek-v3", "--ep", "128", "--domain-gpus", "128")
    assert wide["cost_pct"] == 0


def test_faster_format_makes_all_to_alls_cost_more(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "deepseek-v3", "--ep", "64", "--platform", "h100")
    (bf16,) = rows(capsys, *options)
    (fp8,) = rows(capsys, *options, "--precision", "fp8")
    assert fp8["compute_s"] < bf16["compute_s"]
    assert fp8["a2a_rail_only_s"] == bf16["a2a_rail_only_s"]
    assert fp8["cost_pct"] > bf16["cost_pct"]


def test_own_config_json_has_a_group_for_its_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    (row,) = rows(capsys, "--model", str(config), "--platform", "h100")
    assert (row["model"], row["EP"]) == ("config", 12)


def test_bad_options_are_one_line(capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture) -> None:
    cases = {
        "dense model": [*MOE_COST, "--model", "llama3-8b"],
        "unknown model": [*MOE_COST, "--model", "mixtral"],
        "unknown platform": [*MOE_COST, "--platform", "h1000"],
        "unknown number format": [*MOE_COST, "--precision", "fp9"],
        "number format of another platform": [*MOE_COST, "--platform", "a100", "--precision", "fp8"],
        "group that doesn't divide the experts": [*MOE_COST, "--model", "deepseek-v3", "--ep", "48"],
        "group that is no number": [*MOE_COST, "--ep", "8,many"],
        "group of thousands of digits": [*MOE_COST, "--ep", 5000 * "9"],
        "option of another prediction": [*MOE_COST, "--gpus", "64"],
        "override": [*MOE_COST, "-o", "domains=3"],
        "its option for a figure": ["predict", "fig8", "--ep", "64"],
    }
    data_regression.check(command_errors(capsys, cases))
