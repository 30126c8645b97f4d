"""Bytes and floating-point operations of recorded programs are those of closed forms."""

import re
import time
from pathlib import Path

import pytest

from railyard.experiments import cli
from tests.unit.experiments.commands.test_record.recordings import SCRIPTS, bytes_by_operation, record, script, trace_of

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap record")


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


COMMON_CALLS = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import os, subprocess
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 8))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1, pin_memory=True)
with torch.cuda.device(rank):
    torch.zeros(2, device=rank)
started = subprocess.Popen(["sleep", "600"])
print("pid", started.pid)
scaler = torch.amp.GradScaler("cuda", init_scale=1.0)
with torch.profiler.profile() as profiler:
    for (batch,) in loader:
        torch.cuda.nvtx.range_push("step")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch.cuda(non_blocking=True)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        profiler.step()
        losses = [None] * 2
        dist.all_gather_object(losses, loss.item())
        if rank == 0:
            torch.save(model.state_dict(), "checkpoint.pt")
        dist.barrier()
        torch.load("checkpoint.pt", map_location=f"cuda:{rank}")
"""


def test_common_calls_of_scripts_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loaders with workers, checkpoints, mixed precision, a profiler and a program that the script leaves behind."""
    monkeypatch.chdir(tmp_path)
    # a file of the working folder hides no module of Python
    (tmp_path / "queue.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "code").mkdir()
    path = script(tmp_path / "code", COMMON_CALLS)
    assert record("--ranks", "2", "--show", "--out", "out", "--", "python", path) == 0
    program = trace_of(tmp_path / "out")["programs"][0]
    assert bytes_by_operation(program)["world", "all-reduce"] == 4 * (8 * 8 + 8)
    left_behind = re.findall(r"pid (\d+)", capsys.readouterr().err)
    assert len(left_behind) == 2
    deadline = time.monotonic() + 10
    while any(Path("/proc", pid).exists() for pid in left_behind) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path("/proc", pid).exists() for pid in left_behind)
