"""What `run` prints about a run that was killed: it names a folder that `report` can finish, if there is one."""

from pathlib import Path

from railyard.core.safe_files import Folder
from railyard.experiments.commands.run import _killed
from railyard.results.runs.journal import NAME


def test_a_killed_run_names_a_folder_that_report_can_finish(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        assert _killed(folder).endswith("start it again")
        folder.write(NAME, b"{}\n")
        assert _killed(folder).endswith(f"report {tmp_path} finishes its folder")
