"""`list`, `describe`, `dry-run` and `predict` of every shipped experiment print what their golden files have."""

import re
from functools import cache
from pathlib import Path

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.experiments.commands import describe
from railyard.experiments.commands import list as list_command
from railyard.experiments.commands import predict as predict_command
from railyard.experiments.predict import output
from railyard.experiments.spec import loading
from railyard.experiments.spec.experiment import ExperimentSpec
from tests import figures, golden


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in a folder of their own, and write the words of a figure, drawn once, in place of its pixels."""
    monkeypatch.chdir(tmp_path)
    words: dict[str, bytes] = {}

    def words_as_png(prediction: output.Predicted) -> bytes:
        if prediction.name not in words:
            words[prediction.name] = figures.words_as_png(prediction)
        return words[prediction.name]

    monkeypatch.setattr(output.Predicted, "to_png", words_as_png)


@pytest.fixture(autouse=True)
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse an experiment and compute its prediction once in a test, and print both in every width."""
    load_any = cache(loading.load_any)
    monkeypatch.setattr(describe, "load_any", load_any)
    predictions: dict[str, output.Predicted] = {}

    def load_for_prediction(name: str, *_: object) -> ExperimentSpec:
        return load_any(name)

    def predicted(spec: ExperimentSpec) -> output.Predicted:
        if spec.name not in predictions:
            predictions[spec.name] = compute(spec)
        return predictions[spec.name]

    compute = predict_command.predicted
    monkeypatch.setattr(predict_command, "load_any", load_for_prediction)
    monkeypatch.setattr(predict_command, "predicted", predicted)


@pytest.fixture
def definitions_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """List definitions by name, as those of a kind are in the order in which earlier tests imported them.

    Their files are listed, but not the lines, which any change of a file moves.
    """
    rows = [(*row, re.sub(r":\d+$", "", source)) for *row, source in list_command.definitions()]
    monkeypatch.setattr(list_command, "definitions", lambda: sorted(rows))


@pytest.mark.usefixtures("definitions_in_order")
@pytest.mark.parametrize("name", golden.LISTS)
def test_list_is_as_stored(name: str, file_regression: FileRegressionFixture) -> None:
    text = "\n".join(golden.printed(golden.LISTS[name], width) for width in golden.WIDTHS)
    file_regression.check(text, fullpath=golden.FOLDER / "list" / f"{name}.txt", encoding="utf-8")


@pytest.mark.parametrize("command", ["describe", "dry-run"])
@pytest.mark.parametrize("experiment", loading.names())
def test_printed_text_is_as_stored(command: str, experiment: str, file_regression: FileRegressionFixture) -> None:
    texts = [golden.printed([command, experiment], width) for width in golden.WIDTHS]
    if command == "describe":
        texts.append(golden.printed([command, experiment, "--keys"], golden.WIDTHS[0]))
    path = golden.FOLDER / command / f"{experiment}.txt"
    file_regression.check("\n".join(texts), fullpath=path, encoding="utf-8")


@pytest.mark.parametrize("experiment", loading.names())
def test_prediction_is_as_stored(experiment: str, file_regression: FileRegressionFixture, tmp_path: Path) -> None:
    texts = [golden.printed(["predict", experiment], width) for width in golden.WIDTHS]
    written = sorted(tmp_path.iterdir())  # the table and the figure; none of an experiment without a formula
    texts += [f"{path.name}:\n{path.read_text(encoding='utf-8')}" for path in written]
    path = golden.FOLDER / "predict" / f"{experiment}.txt"
    file_regression.check("\n".join(texts), fullpath=path, encoding="utf-8")
