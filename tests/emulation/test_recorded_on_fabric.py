"""`record --real --fabric`: a script runs over Gloo at the GPUs of a fabric, whose NICs carry what was recorded."""

import re
from pathlib import Path

import pytest

from railyard.experiments import cli

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap record")
SCRIPT = Path(__file__).parents[1] / "training_scripts" / "ddp.py"
ROW = re.compile(r"^(d\dg\d) +(hb0|rail0) +([\d,]+) +([\d,]+)", re.MULTILINE)


def test_nics_carry_the_recorded_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ring over d0g0, d0g1, d1g0, d1g1: ranks 0 and 2 send to another domain, by the GPU of the same rail there."""
    words = ["--real", "4", "--fabric", "2x2", "--steps", "4", "--out", str(tmp_path / "out")]
    status = cli.main(["record", *words, "--", "python", str(SCRIPT)])
    output = capsys.readouterr().out
    assert status == 0
    assert re.search(r"^\d+ operations of 4 ranks ", output, re.MULTILINE)
    rows = {(gpu, nic): (expected, sent) for gpu, nic, expected, sent in ROW.findall(output)}
    assert len(rows) == 8
    busy = 0
    for texts in rows.values():
        expected, sent = (int(text.replace(",", "")) for text in texts)
        if expected > 1_000_000:
            busy += 1
            # headers, acknowledgements, and the connections of the ranks
            assert expected < sent < 1.15 * expected
    assert busy >= 4
