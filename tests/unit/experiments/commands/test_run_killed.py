"""What `run` prints about a run that was killed: it names a folder that `report` can finish, if there is one."""

from pathlib import Path

from railyard.core.safe_files import Folder
from railyard.experiments.commands.run import _killed
from railyard.experiments.live.recorded import RECORD
from railyard.results.runs.journal import NAME


def test_a_killed_run_names_a_folder_that_report_can_finish(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        folder.write(RECORD, b"{}\n")
        assert _killed(folder).endswith("start it again")
        assert folder.names() == [], "so that the folder can be used again"
        for name in (RECORD, NAME):
            folder.write(name, b"{}\n")
        assert _killed(folder).endswith(f"report {tmp_path} finishes its folder")
        assert sorted(folder.names()) == sorted([RECORD, NAME])
