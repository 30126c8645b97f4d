"""A user's test: the sums of Open MPI are right although a rail switch fails. `pytest examples`."""

import shutil
import subprocess
from pathlib import Path

import pytest

import railyard as ry

pytest.importorskip("mpi4py", reason="mpi4py is missing: script/bootstrap mpi")
TRAIN = ["python", str(Path(__file__).with_name("train_mpi.py"))]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI is missing: script/bootstrap mpi")
@pytest.mark.fabric(kind="rail-only", domains=3, rails=2, rail_rate="50Mbit")
def test_sums_are_right_although_a_switch_failed(fabric: ry.Fabric, fault: ry.MakeFault) -> None:
    mpirun = fabric.mpirun(TRAIN, gpus=["d0g0", "d1g0", "d2g0"], stdout=subprocess.PIPE)
    assert mpirun.stdout
    assert "summed 0" in mpirun.stdout.readline()
    with fault("rail-switch-crash", "rail0"):
        assert mpirun.wait(timeout=90) == 0
