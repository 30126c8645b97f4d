"""`record` on the command line: scripts are run with PyTorch on the CPU, and their traffic has the expected bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from railyard.core.installation import PROJECT
from railyard.experiments import cli

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap record")
SCRIPTS = Path(__file__).parents[3] / "training_scripts"
STARTED = "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\nrank = dist.get_rank()\n"


def record(*words: str) -> int:
    return cli.main(["record", *words])


def trace_of(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return data


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(STARTED + text)
    return str(path)


def bytes_by_operation(program: dict[str, Any]) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for operation in program["operations"]:
        if "communicator" in operation:
            key = (operation["communicator"], operation["op"])
            totals[key] = totals.get(key, 0) + operation.get("bytes", 0)
    return totals


def test_ddp_sends_its_gradients_to_the_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script's defaults: width 64, 2 layers, vocabulary 256, 32 tokens, 2 sequences in each of 2 micro-steps."""
    folder = tmp_path / "gpt"
    status = record("--ranks", "64", "--out", str(folder), "--", "python", str(SCRIPTS / "ddp.py"))
    output = capsys.readouterr().out
    assert status == 0
    block = 2 * 2 * 64 + 64 * 3 * 64 + 64 * 64 + (64 * 256 + 256) + (256 * 64 + 64)
    parameters = 256 * 64 + 32 * 64 + 2 * block + 2 * 64
    data = trace_of(folder)
    (program,) = data["programs"]
    assert program["ranks"] == list(range(64))
    assert data["run"] == [0, 33, 63]
    assert data["communicators"] == {"world": [list(range(64))]}
    # the gradients, and the loss that the script averages
    assert bytes_by_operation(program) == {("world", "all-reduce"): 4 * parameters + 4}
    tokens = 2 * 2 * 32
    products = 2 * (64 * 3 * 64 + 64 * 64 + 2 * 64 * 256) + 64 * 256
    attention = 2 * 2 * (2 * 4 * 32 * 32 * 16) * 2
    flops = sum(operation["flops"] for operation in program["operations"] if operation["op"] == "compute")
    # forward once, backward twice; of attention backward five products in place of two
    assert flops == 3 * 2 * tokens * products + 2 * attention + 5 * attention
    assert f"{4 * parameters + 4:,}" in output
    experiment = str(folder / "replay.yaml")
    assert f"lint {experiment}" in output
    assert cli.main(["lint", experiment]) == 0
    assert "nothing changes rails" in capsys.readouterr().out


def test_fsdp_gathers_and_scatters_parameters_to_the_byte(tmp_path: Path) -> None:
    """The script's defaults, whose large tensors have no contents: width 64, 2 layers, bfloat16, float32 to reduce."""
    folder = tmp_path / "llama"
    words = ["--ranks", "16", "--only", "0", "--steps", "3", "--fake", "--out", str(folder)]
    assert record(*words, "--", "python", str(SCRIPTS / "fsdp.py")) == 0
    block = 2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    root = 2 * 256 * 64 + 64
    (program,) = trace_of(folder)["programs"]
    assert bytes_by_operation(program) == {
        # a layer once more in the backward pass
        ("world", "all-gather"): 2 * (root + 2 * 2 * block),
        ("world", "reduce-scatter"): 4 * (root + 2 * block),
        # the norms of 9 parameters of each layer and 3 others
        ("world", "all-reduce"): 4 * (2 * 9 + 3),
    }
    gathers = [operation for operation in program["operations"] if operation["op"] == "all-gather"]
    computing = [position for position, operation in enumerate(program["operations"]) if operation["op"] == "compute"]
    # the second layer is gathered while the first one computes
    assert computing[0] not in gathers[2]["after"]


def test_pipeline_tensor_and_data_parallelism_to_the_byte(tmp_path: Path) -> None:
    """The script's defaults: 2 stages of 2 layers, 4 micro-batches of 2 rows of 64 numbers, tensors in 2 parts."""
    folder = tmp_path / "mesh"
    words = ["--ranks", "8", "--only", "0,4", "--steps", "3", "--out", str(folder)]
    assert record(*words, "--", "python", str(SCRIPTS / "parallel3d.py")) == 0
    data = trace_of(folder)
    assert data["communicators"] == {
        "pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "dp": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
    }
    first, last = data["programs"]
    assert first["ranks"] == [0, 1, 2, 3]
    assert last["ranks"] == [4, 5, 6, 7]
    rows = 2 * 64 * 4
    gradients = 2 * 2 * (64 * 256 // 2) * 4
    messages = {("pp", "send"): 4 * rows, ("pp", "recv"): 4 * rows, ("dp", "all-reduce"): gradients}
    # forward for each layer, backward but for the layer whose input needs no gradient
    assert bytes_by_operation(first) == {**messages, ("tp", "all-reduce"): 4 * (2 + 1) * rows}
    assert bytes_by_operation(last) == {**messages, ("tp", "all-reduce"): 4 * (2 + 2) * rows}


def test_balanced_experts_exchange_tokens_to_the_byte(tmp_path: Path) -> None:
    """The script's defaults: 64 tokens of 32 numbers, each for 2 of 8 experts, 2 layers."""
    folder = tmp_path / "moe"
    words = ["--ranks", "16", "--only", "0", "--steps", "2", "--routing", "balanced", "--out", str(folder)]
    assert record(*words, "--", "python", str(SCRIPTS / "moe.py")) == 0
    data = trace_of(folder)
    (program,) = data["programs"]
    pair = 64 * 2 // 8 * 32 * 4
    expert = 2 * (32 * 128) + 128 + 32
    assert data["routing"] == "balanced"
    assert bytes_by_operation(program) == {
        # counts, there and back, and backward but for the tokens of the first layer, which need no gradient
        ("ep", "all-to-all"): 2 * 8 + (4 + 3) * pair,
        ("dp", "all-reduce"): 2 * expert * 4,
        ("world", "all-reduce"): 2 * 32 * 8 * 4,
    }


def test_uneven_routing_is_that_of_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each token goes to one of 4 experts, by the data that all ranks really exchange."""
    folder = tmp_path / "moe"
    words = ["--ranks", "4", "--only", "all", "--steps", "2", "--real", "4", "--out", str(folder)]
    status = record(*words, "--", "python", str(SCRIPTS / "moe.py"), "--top", "1", "--layers", "1")
    output = capsys.readouterr()
    if "needs a network namespace" in output.err:
        pytest.skip(output.err)
    assert status == 0
    assert "operations of 4 ranks recorded are those of a real run over Gloo" in output.out
    splits = [operation for operation in trace_of(folder)["programs"][0]["operations"] if "sends" in operation]
    assert len(splits) == 3
    assert len(set(splits[0]["sends"])) > 1


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
            "trace.json: rank 0: operation 0: 'receive without a send' has no counterpart: 0 sends and 1 receives",
        ),
        ("dist.new_group([0, 5])\n", [], "--ranks: 2 are not what train.py:4 wants: WorldSizeError: the script"),
        ("print(rank)\n", [], "train.py: 'the script' ended after 0 optimizer steps, no two of which send the same"),
    ],
    ids=["gpu-kernel", "deadlock", "deadlock-of-large-tensors", "too-many-ranks", "early-end"],
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
