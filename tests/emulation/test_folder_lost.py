"""A run's folder that another run asks for, and that is gone at the end: the records are kept elsewhere."""

import shutil
from pathlib import Path

from tests.emulation.fabrics import eventually
from tests.emulation.programs import Program
from tests.emulation.runs import RUN_S, Stored, run_command, small_spec


def test_a_lost_folder_costs_no_records(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    command = run_command(small_spec(), tmp_path, "--quiet")
    with Program(command, home=home) as run:
        eventually(out.exists, 60)
        with Program(command, home=home) as second:
            assert second.end(RUN_S) == 2
        assert f"{out}" in second.output
        # the run has the folder open
        eventually((out / "journal.jsonl").exists, 60)
        shutil.rmtree(out)
        assert run.end(RUN_S) == 1, run.output
    assert "fidelity" in run.output  # the figures, in spite of --quiet
    last = run.output.strip().splitlines()[-1]
    assert last.startswith(f"error: {out} can't be written"), run.output
    kept = Stored(Path(last.rpartition(" ")[2]))
    assert kept.folder.parent == home / ".local/state/railyard"
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert kept.summary["complete"] is True
    assert not kept.run.damaged
    kept.assert_no_byte_is_missing()
