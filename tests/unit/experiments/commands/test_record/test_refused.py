"""Scripts and options that `record` refuses in one line, and what is left of a recording that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from railyard.core.installation import PROJECT
from tests.unit.experiments.commands.test_record.recordings import record, script

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap record")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("import triton_kernels_of_flash_attn\n", [], "train.py:4: \"ModuleNotFoundError: No module named"),
        (
            "dist.recv(torch.zeros(1), src=1 - rank)\n",
            [],
            "train.py: 'ranks' wait for each other for ever: rank 0 waits in recv of the communicator of ranks 0, 1 "
            "for rank 1; rank 1 waits in recv of the communicator of ranks 0, 1 for rank 0",
        ),
        (
            "dist.recv(torch.zeros(100_000), src=1 - rank)\n",
            ["--whole"],
            "trace.json: rank 0: operation 0 (recv in world): 'receive without a send' has no counterpart: 0 sends",
        ),
        ("dist.new_group([0, 5])\n", [], "--ranks: 2 are not what train.py:4 wants: WorldSizeError: the script"),
        ("print(rank)\n", [], "train.py: 'the script' ended after 0 optimizer steps, no two of which send the same"),
        ("torch.cuda.CUDAGraph()\n", [], "train.py:4: 'RuntimeError: Tried to instantiate dummy base class CUDAGraph'"),
        ("torch.multiprocessing.spawn(print, nprocs=2)\n", [], "train.py:4: 'NotImplementedError: the script starts"),
        ("while rank == 1:\n    pass\ndist.barrier()\n", ["--limit", "4s"], "--limit: '4 s' was reached when rank "),
    ],
    ids=["gpu-kernel", "deadlock", "large-deadlock", "too-many-ranks", "early-end", "graph", "spawn", "loop"],
)  # fmt: skip
def test_a_script_that_fails_is_refused_in_one_line(
    text: str, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    status = record("--ranks", "2", "--out", str(folder), *words, "--", "python", script(tmp_path, text))
    error = capsys.readouterr().err.splitlines()[-1]
    assert status == 2
    assert error.startswith(f"error: {message}")
    assert not folder.exists()


def test_a_recording_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, "print('begun', flush=True)\nimport time\ntime.sleep(600)\n")
    argv = [
        sys.executable,
        str(PROJECT / "run_experiment.py"),
        "record",
        "--show",
        "--ranks",
        "2",
        "--",
        "python",
        path,
    ]
    mark = f"RAILYARD_TEST_{os.getpid()}"
    environment = {**os.environ, "TMPDIR": str(tmp_path), mark: "1"}
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "begun" in line:
                break
        assert len(processes_with(mark)) >= 3
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_with(mark) == []
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


def processes_with(mark: str) -> list[str]:
    """Return the processes that have a variable in their environment."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{mark}=".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "python", "SCRIPT"], "--ranks: '' is missing: how many ranks has the job?"),
        (["--ranks", "2", "--only", "0,2", "--", "python", "SCRIPT"], "--only: '0,2' must be all, or ranks from 0"),
        (["--ranks", "2", "--platform", "h1000", "--", "python", "SCRIPT"], "--platform: 'h1000' is not known"),
        (["--ranks", "2", "--limit", "soon", "--", "python", "SCRIPT"], "--limit: 'soon' "),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, "")
    assert record(*[path if word == "SCRIPT" else word for word in words]) == 2
    assert f"error: {message}" in capsys.readouterr().err
