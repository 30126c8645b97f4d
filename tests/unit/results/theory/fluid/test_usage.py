"""Bytes, busy intervals and shared times of ports, by job."""

import numpy as np
import pytest

from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.simulation import simulate
from railyard.results.theory.fluid.usage import Sharing, port_uses, shared_times
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Phase, Program, Rates

ONLY = FabricSpec(kind="rail-only", domains=2, rails=2)
RAIL = Port("d0g1", "rail", True)


def test_jobs_share_a_rail_until_the_shorter_job_ends() -> None:
    """Job 0 sends 10 bytes d0g0 -> d1g1, forwarded by d0g1; job 1 sends 5 on d0g1's own rail, and 5 more after 20 s."""
    program = Program(2, 2)
    phase = program.phase(Phase("a", "collective", "", 2, 2, 1.0))
    program.send(0, 3, 10, phase, ())
    first = program.send(1, 3, 5, phase, ())
    program.wait_for(1, [first])
    program.compute(1, 20.0, phase)
    program.send(1, 3, 5, phase, program.last(1))
    run = simulate(program.schedule("two jobs"), Rates(hb=8.0, rail=1.0), ONLY)
    uses = port_uses(run, np.array([0, 1, 1, 1]))
    on_rail = [use for use in uses if use.port == RAIL]
    assert [use.job for use in on_rail] == [0, 1]
    assert [use.bytes for use in on_rail] == pytest.approx([10, 10])
    assert on_rail[0].intervals == ((0.0, 15.0),)
    assert on_rail[1].intervals == ((0.0, 10.0), (30.0, 35.0))
    assert set(shared_times(uses)) == {
        Sharing(RAIL, (0, 1), 0.0, 10.0),
        Sharing(Port("d1g1", "rail", False), (0, 1), 0.0, 10.0),
    }
