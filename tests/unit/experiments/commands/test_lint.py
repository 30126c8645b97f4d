"""`lint` on the command line: a placement file, a model, an experiment; one line for what can't be used."""

import re
import time
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.experiments import cli
from railyard.experiments.spec import loading
from railyard.workloads.models.catalogue import CATALOGUE
from tests.unit.experiments.command_errors import command_errors

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


@pytest.mark.parametrize(
    ("name", "more", "status"),
    [("hierarchical", "", 0), ("exchanged-ranks", "ranks: [0, 1, 2, 3, 4, 6, 5, 7]", 1)],
)
def test_a_placement_is_printed_as_stored(
    name: str, more: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    file_regression: FileRegressionFixture,
) -> None:  # fmt: skip
    assert cli.main(["lint", write(tmp_path, PLACED + more)]) == status
    file_regression.check(capsys.readouterr().out.replace("\u00a0", " "))


def test_a_platform_gives_the_rails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PLACED.replace("rails: 4", "platform: gh200").replace("data: 2", "data: 128").replace("64}", "128}")
    assert cli.main(["lint", write(tmp_path, text)]) == 0
    assert "512 GPUs, 2 domains x 256 rails" in wording(capsys)


@pytest.mark.parametrize(("name", "status"), [("gpt-1008b", 0), ("moe-1.3b-128", 1), ("moe-slowdown", 1)])
def test_a_model_as_published_or_an_experiment(name: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", name]) == status
    assert ("between rails; DP" in wording(capsys)) == (name != "moe-slowdown")


@pytest.mark.parametrize(("placement", "status"), [("rail-aligned", 0), ("spread", 1)])
def test_jobs_are_checked_on_their_gpus_of_the_fabric(
    placement: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = loading.FOLDER.joinpath("job-placements.yaml").read_text()
    file = write(tmp_path, text.replace("domains: 3\n", f"domains: 3\n    placement: {placement}\n"))
    assert cli.main(["lint", file]) == status
    printed = wording(capsys)
    assert "job first on rail-only, 4 x 4" in printed
    assert ("change domain and rail" in printed) == bool(status)
    # ranks are those of the job, and not the GPU's numbers
    assert ("job second on rail-only, 4 x 4 collective" in printed) == bool(status)
    assert ("(ranks 0 on d0g2, 4 on d0g3" in printed) == bool(status)


@pytest.mark.parametrize(
    ("keys", "status", "volume"),
    [
        ("model: mixtral-8x7b\ndomains: 8", 0, "EP 3.848 TB, none"),
        (
            "model: deepseek-v3\nparallelism: "
            "{tensor: 1, pipeline: 2, data: 32, expert: 32, micro_batch: 1, global_batch: 64}",
            1,
            "EP 6.757 TB, 67.7%",
        ),
        (
            "model: llama3-70b\nparallelism: {tensor: 8, pipeline: 4, data: 8, micro_batch: 1, global_batch: 128}",
            0,
            "TP 76.97 TB, none",
        ),
    ],
    ids=["8 experts", "32 GPUs a group", "dense"],
)
def test_modern_model_as_a_placement(
    keys: str, status: int, volume: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lint", write(tmp_path, f"{keys}\nrails: 8")]) == status
    assert volume in wording(capsys)


IMPOSSIBLE = {
    "tensor that doesn't divide the heads": PLACED.replace("tensor: 2", "tensor: 5"),
    "pipeline that doesn't divide the layers": PLACED.replace("pipeline: 2", "pipeline: 3"),
    "ranks that fill no domains": PLACED.replace("rails: 4", "rails: 3"),
    "order without pipeline": PLACED + "order: [tensor, data]",
    "order with an unknown dimension": PLACED + "order: [tensor, data, pipe]",
    "ranks beside an order": PLACED + "ranks: [0, 1]\norder: [tensor, data, pipeline]",
    "unknown platform": PLACED + "platform: h300",
    "unknown key": PLACED + "rail: 4",
    "model without a placement": "model: alexnet",
    "unknown model": "model: gpt-2",
    "mixture of experts with parallelism": PLACED.replace("gpt-145.6b", "moe-1.3b-128"),
    "mixture of experts without a cluster": "model: mixtral-8x7b\ndomains: 8",
    "mixture of experts without a job": "model: mixtral-8x7b\nrails: 8",
    "dense model without a job": "model: llama3-8b\nrails: 8",
    "too many GPUs by data": PLACED.replace("data: 2", "data: 40000000").replace("64}", "40000000}"),
    "too many GPUs by domains": "model: moe-1.3b-128\ndomains: 8193",
    "published model with fewer heads": (CATALOGUE / "gpt-145.6b.yaml").read_text().replace("heads: 96", "heads: 12"),
    "empty file": "",
    "list": "- model",
    "file of no known type": "colour: red",
    "number": "12",
}


def test_a_file_that_cannot_be_checked_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    """A layout of too many GPUs would fill the memory: it is refused before it is made."""
    started = time.process_time()
    cases: dict[str, list[str]] = {"unknown name": ["lint", "gpt-145b"], "faults alone": ["lint", "recovery"]}
    for number, (case, text) in enumerate(IMPOSSIBLE.items()):
        (tmp_path / str(number)).mkdir()
        cases[case] = ["lint", write(tmp_path / str(number), text)]
    errors = command_errors(capsys, cases)
    assert time.process_time() - started < 10
    data_regression.check({case: re.sub(r"'/\S*mine.yaml'", "FILE", error) for case, error in errors.items()})


def test_published_model_file_is_checked_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", write(tmp_path, (CATALOGUE / "gpt-145.6b.yaml").read_text())]) == 0
    assert "1,536 GPUs, 192 domains x 8 rails" in wording(capsys)
