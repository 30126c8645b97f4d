"""`claims --run` on packets: a claim is measured by its experiment, kept, and not measured twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from railyard.experiments import cli
from railyard.results.published.claims import definition, measured
from tests.emulation.runs import ALL_TO_ALL, small_spec, written


@pytest.fixture
def one_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A paper with one claim, that an all-to-all takes less than a minute."""
    spec = small_spec(workloads=[{**ALL_TO_ALL, "duration": "300ms"}])
    how = {
        "experiment": written(spec, tmp_path),
        "rows": {"metric": "completion_time", "phase": ""},
        "unit": "s",
        "expected": 60,
        "bound": "at most",
        "why": "a minute is enough",
    }
    claim = {"id": "quick", "claim": "It is quick.", "where": "I", "published": "a minute", "measured": how}
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "paper.yaml").write_text(yaml.safe_dump({"title": "A paper", "claims": [claim]}))
    monkeypatch.setattr(definition, "FOLDER", folder)
    definition.papers.cache_clear()
    yield "quick"
    definition.papers.cache_clear()


def test_a_claim_is_measured_and_kept(one_claim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid run on a busy machine changes no mark, and is named."""
    out = tmp_path / "claims"
    status = cli.main(["claims", one_claim, "--run", "--out", str(out), "--json"])
    printed = capsys.readouterr()
    (claim,) = json.loads(printed.out)
    runs = list((out / "sweep" / "runs").iterdir())
    assert len(runs) == 1
    if status:
        assert "invalid run" in printed.err
        assert (claim["mark"], measured.read(out / measured.NAME)) == ("not measured", {})
        return
    assert claim["mark"] == "reproduced"
    assert claim["measured"]["rows"] == 1
    before = (runs[0] / "summary.json").stat().st_mtime_ns
    assert cli.main(["claims", one_claim, "--run", "--out", str(out), "--json"]) == 0
    assert (runs[0] / "summary.json").stat().st_mtime_ns == before
