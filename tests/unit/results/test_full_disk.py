"""A disk that fills while a run's records are written, streamed or drawn: one line, no lost record, and no traceback.

The disk is a real one: a tmpfs of 1 MB in a mount namespace of its own.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railyard.core.host import USER_NAMESPACE_OPTIONS
from tests.emulation.programs import ROOT

FULL = os.strerror(errno.ENOSPC)
SIZE_KB = 1024
MOUNTED = f'mount -n -t tmpfs -o size={SIZE_KB}k tmpfs "$0" && exec "$@"'
BEGIN = """
import json, os, shutil, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from railyard.core.safe_files import Folder
from railyard.experiments import cli
from railyard.experiments.run.folder import Spare
from railyard.experiments.run.runner import save
from railyard.results.plots import style
from railyard.results import run_folder
from railyard.results.runs import journal
from tests import figures
from tests.unit.sample_runs import sample_run

style.finish = figures.as_text
disk, ballast = Path(sys.argv[1]), Path(sys.argv[1], "ballast")
run = sample_run(domains=2, rails=2, repeats=1)
answers = {}

def clear():
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()

def fill(free_kb):
    '''Leave so much of the disk free.'''
    ballast.unlink(missing_ok=True)
    status = os.statvfs(disk)
    ballast.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - 1024 * free_kb)))

def command(*words):
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = cli.main([str(word) for word in words])
    return status, errors.getvalue()
"""
REPORT = """
run_folder.save(run, disk / "run")
results = []
for free_kb in (0, 60):
    (disk / "run" / "report.html").unlink(missing_ok=True)
    fill(free_kb)
    results.append(command("report", disk / "run"))
ballast.unlink()
results.append(command("report", disk / "run"))
answers["report"] = results
clear()
"""
SAVE = """
results = []
for number, free_kb in enumerate((0, 60)):
    folder = disk / f"run{number}"
    folder.mkdir()
    fill(free_kb)
    with Folder(folder) as opened, Spare() as inside:
        analysis, is_saved = save(run, opened, inside)
        if inside._tar:
            inside._tar.close()
            inside._tar = None
        problem = inside.problem(opened)
    kept = Path(problem.rpartition(" ")[2])
    loaded = run_folder.load(kept) if problem else None
    again = sorted(path.name for path in kept.iterdir()) if problem else []
    whole = [loaded.damaged == [], len(loaded.loads) == len(run.loads), "report.html" in again] if loaded else []
    results.append([is_saved, problem.partition(": the records")[0].partition("(")[2], whole])
    for path in folder.iterdir():
        path.unlink()
answers["save"] = results
clear()
"""
JOURNAL = """
(disk / "run").mkdir()
fill(0)
with Folder(disk / "run") as opened:
    kept = journal.Journal(run, opened)
    kept.flush(has_ended=True)
    kept.close(remove=False)
events = [event.detail["text"] for event in run.events if event.what == "journal-failed"]
ballast.unlink()
status, _ = command("report", disk / "run")
answers["journal"] = events, status, json.loads((disk / "run/summary.json").read_text())
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Any]:
    """What each program found on a disk of `SIZE_KB`; one process runs them all, since its imports take seconds."""
    disk = folder / "disk"
    disk.mkdir()
    user = () if os.geteuid() == 0 else USER_NAMESPACE_OPTIONS
    code = BEGIN + REPORT + SAVE + JOURNAL
    argv = ["unshare", *user, "--mount", "sh", "-c", MOUNTED, str(disk), sys.executable, "-c", code, str(disk)]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if "Operation not permitted" in done.stderr and os.geteuid():
        pytest.skip("this machine refuses user namespaces to ordinary users")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_report_on_a_full_disk_is_one_line_and_loses_nothing(folder: Path, answers: dict[str, Any]) -> None:
    *full, after = answers["report"]
    assert [status for status, _ in full] == [3, 3]
    for _, line in full:
        assert f"disk is full: {folder}/disk/run " in line
        assert line.count("\n") == 1
    assert after == [0, ""]


def test_records_are_kept_elsewhere_at_whatever_file_it_fills(answers: dict[str, Any]) -> None:
    results = answers["save"]
    assert [is_saved for is_saved, _, _ in results] == [False, False]
    assert all(reason.endswith(f": {FULL})") for _, reason, _ in results), results
    assert len({reason for _, reason, _ in results}) > 1, "the disk was full at the same file each time"
    assert [whole for _, _, whole in results] == [[True, True, True]] * 2


def test_journal_on_a_full_disk_ends_and_its_run_is_never_ok(answers: dict[str, Any]) -> None:
    events, status, summary = answers["journal"]
    (event,) = events
    assert event.startswith(f"journal.jsonl can't be written ({FULL})")
    assert status == 0
    assert (summary["verdict"], summary["complete"], summary["passed"]) == ("invalid", False, False)
