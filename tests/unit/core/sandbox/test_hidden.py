"""Paths that are made visible in a run's /tmp, and paths that are refused."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.core.sandbox.hidden import check_all_visible, check_visible, files_meant, needed, sockets


@pytest.fixture
def below_tmp() -> Iterator[Path]:
    """A folder in /var/tmp itself, wherever pytest's own are; tests on packets watch what comes in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


def test_only_paths_below_tmp_are_put_back(below_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", ["", str(below_tmp / "none")])
    (below_tmp / "in" / "deep").mkdir(parents=True)
    more = [below_tmp / "in", below_tmp / "in" / "deep", Path("/etc"), Path("/tmp")]
    assert [path for path in needed(more) if path.startswith(str(below_tmp))] == [str(below_tmp / "in")]
    assert "/etc" not in needed(more)
    assert "/tmp" not in needed(more)


def test_the_working_folder_and_python_are_put_back(below_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "python", "library"):
        (below_tmp / name).mkdir()
    monkeypatch.chdir(below_tmp / "here")
    monkeypatch.setattr(sys, "prefix", str(below_tmp / "python"))
    monkeypatch.setattr(sys, "path", [str(below_tmp / "library")])
    assert {str(below_tmp / name) for name in ("here", "python", "library")} <= set(needed([]))


def test_files_of_an_experiment_are_found(below_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (below_tmp / "traces").mkdir()
    (below_tmp / "gpt.yaml").touch()
    data = {"workloads": [{"model": f"{below_tmp}/gpt.yaml"}, {"path": f"{below_tmp}/traces"}, {"kind": "moe"}], "n": 1}
    assert set(files_meant(data)) == {below_tmp, below_tmp / "traces"}
    assert list(files_meant(["/etc/passwd", "x\0y", "x" * 5000, "/tmp", ""])) == []


def test_a_trace_in_var_tmp_itself_brings_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    stem = f"railyard-test-{os.getpid()}"
    files = [Path("/var/tmp", f"{stem}.{rank}.et") for rank in range(2)]
    try:
        for file in files:
            file.touch()
        assert set(files_meant(f"/var/tmp/{stem}")) == set(files_meant(f"/var/tmp/{stem}.0.et")) == set(files)
    finally:
        for file in files:
            file.unlink()


@pytest.mark.parametrize("path", ["/tmp", "/var/tmp", "/tmp/../tmp"])
def test_a_run_cannot_have_the_whole_of_tmp(path: str) -> None:
    with pytest.raises(BadInput, match=r"must be a folder below /(var/)?tmp"):
        check_visible("--out", Path(path))


def test_files_that_a_sandbox_covers_are_refused_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    check_all_visible({"name": "run", "workloads": [{"model": "/etc/gpt.yaml"}], "seed": 1})
    with pytest.raises(BadInput, match=r"^workloads.0.model: '/run/gpt.yaml' .* under /run"):
        check_all_visible({"workloads": [{"model": "/run/gpt.yaml"}]})
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.chdir(folder)
        Path("gpt.yaml").touch()
        with pytest.raises(BadInput, match=r"^path: 'gpt.yaml' .* under /dev"):
            check_all_visible({"path": "gpt.yaml"})
        monkeypatch.setattr(sys, "prefix", folder)
        with pytest.raises(BadInput, match=r"^the Python environment: "):
            check_all_visible({})


@pytest.mark.parametrize("name", [b"\0x\n/", b"\0x\n \n/\n1 / 2", b"\0\x1c/\x85/", b"\0\n1 1 1 1 1 1 1\n/"])
def test_no_name_of_a_socket_ends_a_run(name: bytes) -> None:
    """Any user can make a socket with the end of a line in its name, which the kernel lists as it is."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(name)
        assert "/" not in sockets()
        assert all(path.startswith("/") for path in sockets())


def test_a_socket_with_odd_characters_is_found(below_tmp: Path) -> None:
    path = str(below_tmp / "a b\x0c\x1c\x85\u2028 ")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        assert path in sockets()


def test_a_loop_of_links_is_a_path(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    check_visible("--out", loop)
    check_all_visible({"path": f"{loop}/x"}, "workloads.0")
    assert str(loop) not in needed(files_meant(f"{loop}/x.yaml"))
