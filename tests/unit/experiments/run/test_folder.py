"""A run's folder: nothing in it is overwritten, and no empty folder is left behind."""

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.run import folder, runner
from railyard.results import run_folder
from railyard.results.views import report
from tests.unit.sample_runs import sample_run


def refusal(out: Path) -> str:
    with pytest.raises(BadInput) as caught, folder.made(out):
        pass
    return str(caught.value)


@pytest.fixture
def refused_paths(tmp_path: Path) -> dict[str, Path]:
    """Paths to which no run can be written."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    return {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "below",
        "a link to nothing": tmp_path / "link",
        "a folder with a file": tmp_path / "full",
        "a folder of the run": Path("/run/x"),
        "a link to a folder of the run": Path("/var/run/x"),
        "a folder of devices": Path("/dev/shm/a/b"),
        "300 letters": Path("x" * 300),
        "a null byte": Path("a\0b"),
    }


def test_refused_folders(
    refused_paths: dict[str, Path], tmp_path: Path, data_regression: DataRegressionFixture
) -> None:
    """What is there stays as it is."""
    messages: dict[str, str] = {}
    for case, out in refused_paths.items():
        with pytest.raises(BadInput) as caught:
            folder.check(out)
        messages[case] = str(caught.value).replace(str(tmp_path), "").replace("x" * 300, "x...")
    with folder.made(tmp_path / "mine") as claimed:
        messages["a folder in use"] = refusal(tmp_path / "mine").replace(str(tmp_path), "")
        claimed.write("results.csv", b"")
        with pytest.raises(BadInput, match="is in use"):
            folder.check(tmp_path / "mine")
    messages["full meanwhile"] = refusal(tmp_path / "full").replace(str(tmp_path), "")
    data_regression.check(messages)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "years"


def test_a_full_disk_is_reported_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*tuple(real)[:4], 1, *tuple(real)[5:10]))
    monkeypatch.setattr("os.statvfs", lambda _: full)
    with pytest.raises(MissingRequirement, match=r"disk is full: .*, 50MB needed"):
        folder.check(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_removed_with_its_new_parents(tmp_path: Path) -> None:
    with folder.made(tmp_path / "a" / "b" / "c") as where:
        assert where.real_path.is_dir()
    assert not list(tmp_path.iterdir())


def test_folders_with_results_and_older_folders_stay(tmp_path: Path) -> None:
    with folder.made(tmp_path / "a" / "b") as where:
        where.write("results.csv", b"")
    assert (tmp_path / "a" / "b" / "results.csv").exists()
    (tmp_path / "mine").mkdir()
    with folder.made(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_of_root_in_a_users_folder_belong_to_the_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 2345)
    with folder.made(tmp_path / "runs" / "one") as where:
        where.write("deep/file", b"")
    one = tmp_path / "runs" / "one"
    written = [tmp_path / "runs", one, one / "deep", one / "deep" / "file"]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in written} == {(1234, 2345)}


def test_two_runs_in_a_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    choices = folder.default_choices("quickstart")
    with folder.made(*choices) as first, folder.made(*choices) as second:
        first.write("results.csv", b"")
        with folder.made(*choices) as third:
            names = [out.path for out in (first, second, third)]
    assert names == list(choices[:3])
    assert all(out.parent == Path("runs") and "Z-quickstart" in out.name for out in names)
    assert folder.default_choices("quickstart")[0] != choices[0]


@pytest.mark.parametrize("exists", [True, False])
def test_of_many_runs_at_once_one_gets_the_folder(exists: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    together = threading.Barrier(8)

    def claim() -> bool:
        together.wait()
        try:
            with folder.made(out):
                together.wait()
            return True
        except BadInput:
            together.wait()
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(run.result() for run in [pool.submit(claim) for _ in range(8)]) == 1


def test_the_claim_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    code = f"""
import time; from pathlib import Path; from railyard.experiments.run import folder
with folder.made(Path({str(tmp_path)!r}, "out")):
    print("claimed", flush=True); time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "claimed\n"
        assert "is in use" in refusal(tmp_path / "out")
        process.kill()
        process.wait()
    with folder.made(tmp_path / "out") as where:
        assert where.real_path.is_dir()


@pytest.mark.parametrize("damage", ["removed", "file in the way"])
def test_records_of_a_folder_that_fails_are_kept_elsewhere(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "render", lambda _: "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = sample_run(2, 2, 1)
    with folder.made(tmp_path / "out") as where, folder.Spare() as spare:
        if damage == "removed":
            where.path.rmdir()
        else:
            (where.path / "flows.parquet").mkdir()
        with folder.Spare(os.dup(spare.fd)) as inherited:  # as in the sandbox
            assert not runner.save(run, where, inherited)[1]
        problem = spare.problem(where)
    kept = Path(problem.rpartition(" ")[2])
    assert kept.parent == tmp_path / "state" / "railyard"
    reason = os.strerror(errno.ENOENT if damage == "removed" else errno.EISDIR)
    assert reason in problem
    assert (kept.parent.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o700)
    assert run_folder.load(kept) == run


def test_a_folder_that_was_moved_is_named(tmp_path: Path) -> None:
    with folder.made(tmp_path / "out") as where, folder.Spare() as spare:
        where.write("results.csv", b"")
        assert spare.problem(where) == ""
        where.path.rename(tmp_path / "moved")
        where.path.mkdir()
        assert spare.problem(where).endswith(f" is in {tmp_path / 'moved'}")


def test_a_removed_folder_is_named_by_its_path(tmp_path: Path) -> None:
    with folder.made(tmp_path / "out") as where, folder.Spare() as spare:
        where.path.rmdir()
        assert where.real_path == where.path
        assert "deleted" not in spare.problem(where)
    with folder.made(tmp_path / "out (deleted)") as where:
        assert where.real_path == where.path
