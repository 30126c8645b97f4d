"""A user's script for stock Mininet: how it ends."""

from pathlib import Path

import pytest

from railyard.experiments.run.mininet_script import run_script


def test_error_of_a_script_is_one_line_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [""])
    script = tmp_path / "rates.py"
    script.write_text("from railyard.core.errors import RailyardError\n\nraise RailyardError('iperf3: no route')\n")
    assert run_script(str(script), []) == 1
    assert capsys.readouterr().err == "error: rates.py: line 3: RailyardError: iperf3: no route\n"
