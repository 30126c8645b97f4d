"""Simulated fail-slow: a slow part slows the job as it should, and the detector names it in spite of noise."""

import numpy as np
import pytest

from railyard.failure.diagnosis.cases import Case
from railyard.failure.diagnosis.definition import DETECTORS, Culprit
from railyard.results.published.predictions.stragglers import simulated
from railyard.results.theory.fluid.fail_slow import LEAST_SLOWDOWN, SimulatedJob, SlowFabric
from railyard.results.theory.fluid.noise import measured_noise
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Phase, Program

PLAN = make_plan(FabricSpec(kind="rail-only", domains=4, rails=2), 100_000_000)
CALM = np.zeros(1)


def job() -> SimulatedJob:
    """Return a job that computes for 10 ms, then sends around a ring on each rail, then within domains."""
    program = Program(4, 2)
    data = program.phase(Phase("dp", "DP", "", 1, 4, 0.0))
    for gpu in range(8):
        program.compute(gpu, 0.01, data)
        program.send(gpu, (gpu + 2) % 8, 100_000, data, program.last(gpu))
    return SimulatedJob(PLAN, program.schedule("job"))


@pytest.mark.parametrize(("part", "share"), [("gpu", 0.01), ("rail", None)])
def test_slow_part_prolongs_its_share_of_an_iteration(part: str, share: float | None) -> None:
    healthy_s = job().healthy.max()
    part_s = share or healthy_s - 0.01
    culprit = Culprit("gpu" if part == "gpu" else "rail", "d1g1", 3.0)
    assert job().slowdown(culprit) == pytest.approx(1 + 2 * part_s / healthy_s)


def test_link_without_traffic_slows_nothing() -> None:
    assert job().slowdown(Culprit("hb", "d1g1", 3.0)) == pytest.approx(1)
    with pytest.raises(ValueError, match="no slow hb"):
        job().felt_case("hb", 24, (0,))


def test_felt_case_slows_the_job_enough() -> None:
    case = job().felt_case("rail", 24, (0,))
    assert job().slowdown(case.culprit) >= LEAST_SLOWDOWN
    assert case == job().felt_case("rail", 24, (0,))


def test_noise_changes_durations_alone() -> None:
    fabric = SlowFabric(PLAN, None, np.array([0.1]))
    spans = fabric.noisy(np.array([(1.0, 2.0)]))
    assert spans.tolist() == [[1.0, pytest.approx(2.1)]]


def test_job_without_noise_gets_the_right_name() -> None:
    culprit = Culprit("rail", "d2g0", 2.0)
    diagnosis = job().diagnosis(Case(culprit, 10), DETECTORS["greyhound"], 20, CALM, seed=0)
    assert diagnosis.is_right(culprit)


def test_first_seeded_cases_are_named_with_measured_noise() -> None:
    assert measured_noise().std() > 0
    for case, slowdown, diagnosis in simulated(3, is_quiet=False):
        assert case.culprit is not None
        assert slowdown >= LEAST_SLOWDOWN
        assert diagnosis.is_right(case.culprit)
    assert all(result.diagnosis.culprits == () for result in simulated(10, is_quiet=True))
