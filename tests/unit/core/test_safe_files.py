"""Root writes below folders that an ordinary user controls: only what the user could write alone."""

import os
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from railyard.core import safe_files
from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments import cli
from railyard.experiments.live.launch import opened_page
from railyard.experiments.run import folder
from railyard.results import run_folder
from tests.unit.sample_runs import sample_run

pytestmark = pytest.mark.usefixtures("figures_as_text")

USER = 1234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for others")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of root's which others can reach; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # tests on packets watch what comes in /tmp
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def theirs(place: Path) -> Path:
    """A user's folder."""
    (place / "theirs").mkdir()
    os.chown(place / "theirs", USER, USER)
    return place / "theirs"


@pytest.fixture
def secret(place: Path) -> Iterator[Path]:
    """A file of root's in a folder of root's, which stay as they are."""
    place = place / "roots"
    place.mkdir()
    place.chmod(0o700)
    file = place / "secret"
    file.write_text("root's")
    file.chmod(0o600)
    yield file
    assert file.read_text() == "root's"
    assert list(place.iterdir()) == [file]
    assert file.stat().st_uid == 0


def link(path: Path, target: Path) -> None:
    """A symbolic link of the user's."""
    path.symlink_to(target)
    os.chown(path, USER, USER, follow_symlinks=False)


def test_a_file_is_written_whole_in_place_of_the_old(tmp_path: Path) -> None:
    with Folder(tmp_path / "a" / "b", make=True) as where:
        where.write("deep/er/file", b"1")
        where.write("deep/er/file", b"22")
        assert where.read("none") is None
        assert where.real_path == tmp_path / "a" / "b"
    assert (tmp_path / "a/b/deep/er/file").read_bytes() == b"22"
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "deep", "er", "file"]


def test_links_and_dots_lead_where_they_should(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/../real/below")
    (tmp_path / "loop").symlink_to("loop")
    with Folder(tmp_path / "link" / ".." / "below") as where:
        assert where.real_path == tmp_path / "real" / "below"
    with pytest.raises(OSError, match="Too many levels"):
        Folder(tmp_path / "loop")
    with pytest.raises(NotADirectoryError):
        Folder(Path("/etc/passwd"))
    with pytest.raises(FileNotFoundError):
        Folder(tmp_path / "none")


def test_path_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    with Folder(tmp_path) as where:
        for name in ("pipe", "folder", "link"):
            with pytest.raises(IsADirectoryError):
                where.read(name)


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    with Folder(tmp_path / "in") as where:
        for name in ("../x", "/x", "out/x"):
            with pytest.raises((ValueError, OSError)):
                where.write(name, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@needs_root
def test_a_part_file_that_is_a_link_is_not_followed(
    theirs: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user guesses the name of the temporary file, at worst rightly."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    for name in (".file.part", ".file.guessed.part"):
        link(theirs / name, secret)
    with Folder(theirs) as where, pytest.raises(FileExistsError):
        where.write("file", b"mine")


@needs_root
def test_a_file_that_is_a_link_is_replaced(theirs: Path, secret: Path) -> None:
    link(theirs / "file", secret)
    with Folder(theirs) as where:
        where.write("file", b"mine")
    found = (theirs / "file").lstat()
    assert stat.S_ISREG(found.st_mode)
    assert found.st_uid == USER


@needs_root
def test_a_link_on_the_way_gives_no_more_than_its_owner_has(theirs: Path, secret: Path) -> None:
    link(theirs / "out", secret.parent)
    for path in (theirs / "out", theirs / "out/deep"):
        with pytest.raises(BadInput, match=r"--out: .* can't be used: "), folder.made(path):
            pass
    # all users may look into this one, so that only the last check refuses it
    secret.parent.chmod(0o755)
    with pytest.raises(BadInput, match=f"is not writable by {USER}"), folder.made(theirs / "out"):
        pass


@needs_root
def test_saved_clicks_stay_in_the_file_that_was_made(theirs: Path, secret: Path) -> None:
    (theirs / "in").mkdir()
    os.chown(theirs / "in", USER, USER)
    renamed = os.rename

    def rename_and_swap(*args: Any, **options: Any) -> None:
        renamed(*args, **options)
        renamed(theirs / "in", theirs / "moved")
        (theirs / "in").symlink_to(secret.parent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", rename_and_swap)
        with opened_page("control", theirs / "in" / "secret") as page:
            assert page.task
            os.pwrite(page.task["script"], b"clicks", 0)
    assert (theirs / "moved" / "secret").read_bytes() == b"clicks"
    assert (theirs / "moved" / "secret").stat().st_uid == USER


@needs_root
def test_a_folder_swapped_for_a_link_is_not_followed(theirs: Path, secret: Path) -> None:
    """It is open already: what is written lands in the folder that was opened, wherever it is now."""
    with folder.made(theirs / "out") as where:
        identity, path = where.identity, where.real_path
        (theirs / "out").rename(theirs / "moved")
        link(theirs / "out", secret.parent)
        where.write("file", b"mine")
        with pytest.raises(OSError, match=r"another folder|Permission denied"):
            Folder(path, identity=identity)
    assert (theirs / "moved" / "file").stat().st_uid == USER


def test_another_folder_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    with folder.made(tmp_path / "out") as where:
        where.real_path.rename(tmp_path / "moved")
        (tmp_path / "out").mkdir()
        with pytest.raises(OSError, match="another folder"):
            Folder(where.real_path.with_name("out"), identity=where.identity)


@needs_root
def test_a_sub_folder_swapped_for_a_link_is_not_followed(theirs: Path, secret: Path) -> None:
    link(theirs / "traces", secret.parent)
    with Folder(theirs) as where, pytest.raises(NotADirectoryError):
        where.write("traces/secret", b"mine")


@needs_root
def test_report_writes_and_runs_no_more_than_the_owner_can(
    theirs: Path, secret: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Behind symbolic links, and behind hard links, which a user may make where the kernel doesn't protect them."""
    sample(theirs)
    for name in (".report.html.part", ".summary.json.part"):
        link(theirs / name, secret)
    for name in ("report.html", "summary.json", "timeline.pftrace"):
        (theirs / name).unlink()
        (theirs / name).hardlink_to(secret)
    assert reported(theirs) == 0, capfd.readouterr().err
    assert (theirs / "report.html").stat().st_uid == USER
    assert secret.stat().st_nlink == 1
    assert not (theirs / "ran").exists()


@needs_root
def test_report_reads_no_more_than_the_owner_can(theirs: Path, secret: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Else a link would show the user a file of root's, in a report that the user can read; a pipe would hold it up."""
    sample(theirs)
    for name in ("spec.yaml", "events.jsonl", "flows.parquet"):
        (theirs / name).unlink()
    link(theirs / "spec.yaml", secret)
    os.mkfifo(theirs / "events.jsonl")
    os.mkfifo(theirs / "flows.parquet")
    assert reported(theirs) == 1
    shown = capfd.readouterr()
    damaged = [line.split()[1] for line in shown.err.splitlines()]
    assert sorted(damaged) == ["events.jsonl", "flows.parquet", "spec.yaml"]
    assert "root's" not in shown.out


@needs_root
def test_a_prediction_is_written_as_the_folders_owner(
    theirs: Path, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", "table2", "--out", str(theirs)]) == 0
    assert {path.stat().st_uid for path in theirs.iterdir()} == {USER}
    (theirs / "table2.csv").unlink()
    link(theirs / "table2.csv", secret)
    assert cli.main(["predict", "table2", "--out", str(theirs)]) == 2
    assert "table2.csv' is there already" in capsys.readouterr().err


@needs_root
def test_root_is_root_again_afterwards(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (os.getresuid(), os.getresgid(), os.getgroups())

    def broken(fd: int, data: bytes) -> None:
        assert os.geteuid() == USER
        raise OSError("broken")

    monkeypatch.setattr(safe_files, "_write_all", broken)
    with Folder(theirs) as where, pytest.raises(OSError, match="broken"):
        where.write("file", b"")
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
    assert list(theirs.iterdir()) == []


@cache
def sample_files(place: Path) -> dict[str, bytes]:
    """Return the files of a run's folder, which take seconds to write; its plugin would make the file "ran"."""
    run = sample_run(2, 2, 1)
    run.spec["plugins"] = [str(place / "plugins/code.py")]
    run.files["plugins/code.py"] = f"import pathlib; pathlib.Path({str(place / 'ran')!r}).touch()".encode()
    with tempfile.TemporaryDirectory() as name:
        run_folder.save(run, Path(name))
        files = filter(Path.is_file, Path(name).rglob("*"))
        return {str(file.relative_to(name)): file.read_bytes() for file in files}


def sample(place: Path) -> None:
    """Write a run's folder of the user's."""
    with Folder(place) as where:
        for name, content in sample_files(place).items():
            where.write(name, content)


def reported(place: Path) -> int:
    """The status of `report`, in a process of its own: it gives up root for good."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = cli.main(["report", str(place)])
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
