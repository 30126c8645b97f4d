"""A user's test: DistributedDataParallel ends its training although a link fails. `pytest examples`."""

import subprocess
from pathlib import Path

import pytest

import railyard as ry

pytest.importorskip("torch", reason="PyTorch is missing: script/bootstrap gloo")
TRAIN = ["python", str(Path(__file__).with_name("train_ddp.py"))]


@pytest.mark.fabric(kind="rail-only", domains=3, rails=2, rail_rate="50Mbit")
def test_training_ends_although_a_link_failed(ranks: ry.MakeRanks, fault: ry.MakeFault) -> None:
    processes = ranks(TRAIN, gpus=["d0g0", "d1g0", "d2g0"], stdout=subprocess.PIPE)
    assert processes[0].stdout
    assert processes[0].stdout.readline().startswith("step 0: loss")
    with fault("link-down", "d1g0"):
        assert [process.wait(timeout=90) for process in processes] == [0, 0, 0]
