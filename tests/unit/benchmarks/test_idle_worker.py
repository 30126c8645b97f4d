"""The benchmark of an idle worker: what pairs of runs say, and a count that is too small."""

from pathlib import Path

import pytest

from benchmarks import idle_worker, pairs
from tests.unit.results.analysis.test_comparison import repeated, save

pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
PAIRS = 5


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "same"), (1.01, "slower")])
def test_worker_changes_medians_by_the_pairs_difference(tmp_path: Path, ratio: float, verdict: str) -> None:
    for number in range(PAIRS):
        drift = 1 + number / 10  # of the machine, which falls on both runs of a pair
        for side, own in zip(pairs.SIDES, (drift, drift * ratio), strict=True):
            save(repeated(own, repeats=3), tmp_path / f"{number:02}-{side}")
    found = pairs.paired(tmp_path, PAIRS)
    assert found.counts.keys() == {verdict}


def test_fewer_than_five_pairs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert idle_worker.main(["--pairs", "4"]) == 2
    assert "--pairs: 4 must be 5 or more" in capsys.readouterr().err
