"""The benchmark of traffic matrices: what it times, and what it refuses. Times themselves are not asserted here."""

from pathlib import Path

import pytest

from benchmarks import pair_traffic


@pytest.mark.parametrize("model", pair_traffic.MODELS)
def test_benchmark_times_every_repeat_and_counts_pairs(model: str) -> None:
    result = pair_traffic.timed(model, 1024, 2)
    assert len(result.seconds) == 2
    traffic = pair_traffic.MODELS[model](1024)
    assert traffic.gpus == 1024
    assert result.pairs == sum(kind.src.size for kind in traffic.pairs.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "error: --repeats: 0 must be 1 or more"),
        (["--json", __file__], f"error: --json: '{__file__}' must be a new file, in a folder that exists"),
        (["--json", "/nowhere/x.json"], "error: --json: '/nowhere/x.json' must be a new file, in a folder that exists"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pair_traffic.main(arguments) == 2
    assert capsys.readouterr().err == message + "\n"


def test_figures_go_to_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pair_traffic, "SIZES", (1024,))
    file = tmp_path / "x.json"
    with pytest.raises(SystemExit) as end:
        pair_traffic.main(["--repeats", "1", "--json", str(file)])
    assert not end.value.code
    assert '"gpus": 1024' in file.read_text()
