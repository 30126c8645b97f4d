"""Shifts that let bursts of jobs alternate, and compatibility of demands that are known."""

import numpy as np
import pytest

from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.shift import (
    POINTS,
    Demand,
    best_interleaving,
    compatibility,
    compatible_shifts,
    scores_of_shifts,
)
from railyard.topologies.spec import FabricSpec
from railyard.workloads.combined import CombinedSchedule, PlacedJob, combined
from railyard.workloads.schedule import Phase, Program
from tests.unit.results.theory.fluid.test_jobs import ONLY, RATES, two_jobs

CAPACITY = np.array([1.0])


def burst(share: float, period_s: float = 1.0) -> Demand:
    """A job that wants a port whole in the first part of each iteration."""
    rate = (np.arange(POINTS) < share * POINTS).astype(float)
    return Demand(period_s, rate[None, :])


@pytest.mark.parametrize(("share", "start_s", "score"), [(0.25, 0.0, 0.75), (0.25, 0.5, 1.0), (0.75, 0.5, 0.5)])
def test_compatibility_falls_by_the_mean_excess(share: float, start_s: float, score: float) -> None:
    placed = [(burst(share), 0.0), (burst(share), start_s)]
    assert compatibility(placed, CAPACITY) == pytest.approx(score, abs=0.02)


def test_a_circle_holds_whole_turns_of_both_jobs() -> None:
    """The second job sends twice in an iteration of the first: once alone, once together."""
    placed = [(burst(0.25, 2.0), 0.0), (burst(0.25, 1.0), 0.0)]
    assert compatibility(placed, CAPACITY) == pytest.approx(1 - 0.125, abs=0.02)


def test_every_shift_beyond_the_burst_is_compatible() -> None:
    scores = scores_of_shifts([(burst(0.25), 0.0)], burst(0.25), 0.0, CAPACITY)
    is_compatible = scores > 1 - 1e-9
    assert np.flatnonzero(is_compatible).tolist() == list(range(POINTS // 4, POINTS - POINTS // 4 + 1))


def test_bursts_alternate_after_the_best_shift() -> None:
    """Bursts of 10 s in iterations of 40 s: the best shift is half an iteration, farthest from both bursts."""
    result = best_interleaving(two_jobs(30.0), RATES, ONLY)
    assert result.before.shared_ports == [Port("d0g1", "rail", True), Port("d1g1", "rail", False)]
    assert result.worst == pytest.approx((1.25, 1.0))
    assert result.shifts_s == pytest.approx((0.0, 20.0))
    assert result.compatibility == pytest.approx((0.75, 1.0), abs=0.01)


def test_jobs_that_always_send_stay_slow() -> None:
    result = best_interleaving(two_jobs(0.0, iterations=6), RATES, ONLY)
    assert result.worst[1] > 1.5
    assert result.compatibility[1] == pytest.approx(0.0, abs=0.01)


def test_a_job_alone_has_nothing_to_shift() -> None:
    result = best_interleaving(two_jobs(30.0).alone(0), RATES, ONLY)
    assert result.shifts_s == (0.0,)


def three_jobs(compute_s: float) -> CombinedSchedule:
    """Jobs of d0g0, d0g1 and d0g2 that compute, then send 10 bytes over the rail of d0g2 to d1g2."""
    jobs: list[PlacedJob] = []
    for src in range(3):
        program = Program(2, 3)
        phase = program.phase(Phase("burst", "collective", "", 2, 3, 10.0))
        program.send(src, 5, 10, phase, ())
        jobs.append(PlacedJob(f"job {src}", program.schedule("job"), (src,), 3, 0.0, compute_s))
    return combined(jobs)


def test_second_of_three_jobs_makes_room_for_the_third() -> None:
    """Bursts of 10 s in iterations of 36 s: half an iteration after the first, the second leaves 8 s on each side."""
    result = best_interleaving(three_jobs(26.0), RATES, FabricSpec(kind="rail-only", domains=2, rails=3))
    assert result.worst == pytest.approx((56 / 36, 1.0))
    assert result.compatibility == pytest.approx((1 - 2 * 10 / 36, 1.0), abs=0.01)
    gaps_s = np.diff([*sorted(result.shifts_s), 36.0])
    assert gaps_s.min() >= 10


@pytest.mark.parametrize("share", [0.2, 0.25, 0.3])
def test_demands_that_fit_get_compatible_shifts(share: float) -> None:
    demands = [burst(share)] * 3
    shifts_s = compatible_shifts(demands, [0.0, 0.4, 0.1], CAPACITY)
    starts_s = np.add([0.0, 0.4, 0.1], shifts_s).tolist()
    assert compatibility(list(zip(demands, starts_s, strict=True)), CAPACITY) == pytest.approx(1)
