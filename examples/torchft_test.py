"""A user's test: torchft's replica groups agree on their weights after a link has failed. `pytest examples`."""

import subprocess

import pytest

import railyard as ry

pytest.importorskip("torchft", reason="torchft is missing: script/bootstrap torchft")
SCRIPTS = "railyard.workloads.training.scripts"
LIGHTHOUSE = ["python", "-m", f"{SCRIPTS}.lighthouse", "--min-groups=3"]
TRAIN = ["python", "-m", f"{SCRIPTS}.torchft_groups", "--steps=30"]


@pytest.mark.fabric(kind="rail-only", domains=3, rails=2, rail_rate="50Mbit")
def test_groups_agree_after_a_link_failed(
    fabric: ry.Fabric, ranks: ry.MakeRanks, fault: ry.MakeFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", f"http://{fabric.addresses['d0g0']}:29510")
    fabric.processes("d0g0").popen(LIGHTHOUSE)
    groups = ranks(TRAIN, gpus=["d0g0", "d1g0", "d2g0"], stdout=subprocess.PIPE)
    assert groups[0].stdout
    assert groups[0].stdout.readline().startswith("step 1 ")
    with fault("link-down", "d1g0"):
        last = {group.communicate(timeout=90)[0].splitlines()[-1] for group in groups}
    assert len(last) == 1, last  # the same hash of all weights after step 30
    assert next(iter(last)).startswith("step 30 ")
