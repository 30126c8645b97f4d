"""`lint` on the command line: a placement file, a model, an experiment; one line for what can't be used."""

import time
from pathlib import Path

import pytest

from railyard.experiments import cli
from railyard.workloads.models.catalogue import CATALOGUE

PLACED = """
model: gpt-145.6b
parallelism: {tensor: 2, pipeline: 2, data: 2, micro_batch: 1, global_batch: 64}
rails: 4
"""


def write(folder: Path, text: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(text)
    return str(file)


def wording(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.replace("\u00a0", " ").split())


def test_a_placement_that_needs_no_spines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", write(tmp_path, PLACED)]) == 0
    out = wording(capsys)
    assert "8 GPUs, 2 domains x 4 rails" in out
    assert "ranks in HB domains x across them: tensor 2 x 1, data 2 x 1, pipeline 1 x 2" in out
    assert "nothing changes rails: no spines are needed" in out


def test_cross_rail_placement_names_groups_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", write(tmp_path, PLACED + "ranks: [0, 1, 2, 3, 4, 6, 5, 7]")]) == 1
    out = wording(capsys)
    assert "PP, stage 0 to 1 (ranks 1 on d0g1, 2 on d0g2, 5 on d1g2, 6 on d1g1): 2 of 4 pipelines" in out
    assert "TP 2.062 TB, none between rails; PP 6.442 GB, 50.0% between rails" in out
    assert "without order and ranks, nothing changes rails" in out


def test_a_platform_gives_the_rails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PLACED.replace("rails: 4", "platform: gh200").replace("data: 2", "data: 128").replace("64}", "128}")
    assert cli.main(["lint", write(tmp_path, text)]) == 0
    assert "512 GPUs, 2 domains x 256 rails" in wording(capsys)


@pytest.mark.parametrize(("name", "status"), [("gpt-1008b", 0), ("moe-1.3b-128", 1), ("moe-slowdown", 1)])
def test_a_model_as_published_or_an_experiment(name: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", name]) == status
    assert ("between rails; DP" in wording(capsys)) == (name != "moe-slowdown")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PLACED.replace("tensor: 2", "tensor: 5"),
            "placement.parallelism.tensor: 5 must divide the 96 attention heads",
        ),
        (PLACED.replace("pipeline: 2", "pipeline: 3"), "placement.parallelism.pipeline: 3 must be such that"),
        (PLACED.replace("rails: 4", "rails: 3"), "placement.parallelism.data: 2 must be such that tensor * pipeline"),
        (
            PLACED + "order: [tensor, data]",
            "placement.order: ['tensor', 'data'] must name each of tensor, data, pipeline",
        ),
        (PLACED + "order: [tensor, data, pipe]", "placement.order.2: 'pipe' is not known: did you mean 'pipeline'?"),
        (PLACED + "ranks: [0, 1]\norder: [tensor, data, pipeline]", "can't be given together with order"),
        (PLACED + "platform: h200", "placement.platform: 'h200' is not known: did you mean 'gh200'?"),
        (PLACED + "rail: 4", "placement.rail: 4 is not a known key: did you mean 'rails'?"),
        ("model: alexnet", "placement.model: 'alexnet' is only data-parallel"),
        ("model: gpt-2", "placement.model: 'gpt-2' is not known"),
        (
            PLACED.replace("gpt-145.6b", "moe-1.3b-128"),
            "is not for a mixture of experts: all its GPUs are data-parallel",
        ),
    ],
)
def test_impossible_placement_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lint", write(tmp_path, text)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PLACED.replace("data: 2", "data: 40000000").replace("64}", "40000000}"),
            "placement.parallelism.data: 40000000 makes 160,000,000 GPUs: 65,536 or fewer can be looked at",
        ),
        (
            "model: moe-1.3b-128\ndomains: 8193",
            "placement.domains: 8193 makes 65,544 GPUs: 65,536 or fewer can be looked at",
        ),
    ],
)
def test_too_many_gpus_are_refused_at_once(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.process_time()
    assert cli.main(["lint", write(tmp_path, text)]) == 2
    assert time.process_time() - started < 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_published_model_file_is_checked_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (CATALOGUE / "gpt-145.6b.yaml").read_text()
    assert cli.main(["lint", write(tmp_path, text)]) == 0
    assert "1,536 GPUs, 192 domains x 8 rails" in wording(capsys)
    assert cli.main(["lint", write(tmp_path, text.replace("heads: 96", "heads: 12"))]) == 2
    assert "mine.yaml.training.tensor: 8 must divide the 12 attention heads" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "- model", "colour: red", "12"])
def test_file_of_no_known_type_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, text)
    assert cli.main(["lint", file]) == 2
    assert capsys.readouterr().err == (
        f"error: FILE: {file!r} must have the keys and values of a placement (model, order, ...), "
        "a model (kind, layers, ...) or an experiment (name, fabrics, ...)\n"
    )


def test_a_name_nobody_has_gets_a_near_miss(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "gpt-145b"]) == 2
    assert "did you mean 'gpt-145.6b'?" in capsys.readouterr().err
