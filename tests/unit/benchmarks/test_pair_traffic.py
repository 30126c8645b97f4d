"""The benchmark of traffic matrices: what it times. Times themselves are not asserted here."""

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


def test_figures_go_to_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pair_traffic, "SIZES", (1024,))
    file = tmp_path / "x.json"
    with pytest.raises(SystemExit) as end:
        pair_traffic.main(["--repeats", "1", "--json", str(file)])
    assert not end.value.code
    assert '"gpus": 1024' in file.read_text()
