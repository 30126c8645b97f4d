"""Departures of transfers from their GPUs: before they arrive where a later link is slow, else when they do."""

import numpy as np
import pytest

from railyard.results.theory.fluid.departures import connection_windows
from railyard.results.theory.fluid.simulation import Conditions, simulate
from railyard.workloads.replay.job import Windows
from railyard.workloads.schedule import Phase, Program
from tests.unit.results.theory.fluid.test_jobs import ONLY, RATES

WINDOWS = Windows(hb=4, rail=4, minimum=1)


@pytest.mark.parametrize(
    ("src", "windows", "end_s"), [(0, None, 11), (0, WINDOWS, 7), (1, WINDOWS, 11)], ids=["none", "forwarded", "own"]
)
def test_a_window_of_a_transfer_waits_outside_its_gpu(src: int, windows: Windows | None, end_s: float) -> None:
    """A GPU sends 10 bytes to d1g1 over the rail link of d0g1, 1 byte a second; then it computes for 1 s."""
    program = Program(2, 2)
    phase = program.phase(Phase("burst", "collective", "", 2, 2, 10.0))
    program.wait_for(src, [program.send(src, 3, 10, phase, ())])
    program.compute(src, 1.0, phase)
    run = simulate(program.schedule("job"), RATES, ONLY, Conditions(windows=windows))
    assert run.end_s.tolist() == pytest.approx([10, end_s])


def test_connections_of_a_pair_share_its_window() -> None:
    flows = np.array([(0, 1, 0), (0, 3, 0), (0, 3, 1), (2, 3, 0)])
    assert connection_windows(flows, ONLY, Windows(hb=40, rail=10, minimum=2)).tolist() == [40, 5, 5, 40]
