"""Latency and idle credit of phases: they grow with those of any link, and latency counts at each step of a ring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.latency import idle_credit, latency
from railyard.results.theory.path_seconds import PathSeconds
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, collective_schedule
from railyard.workloads.spec import build, parse_workload

MOE, *_ = build(parse_workload({"kind": "moe"}), FabricSpec(kind="rail-only"), 100_000_000, 1_200_000_000)
ALL = [name for name, algorithm in ALGORITHMS.items() if algorithm.collective]


@given(st.floats(0, 1), st.floats(0, 1))
def test_idle_credit_grows_with_that_of_any_link(hb: float, rail: float) -> None:
    saved, more = (idle_credit(MOE, PathSeconds(hb + x, rail + x, rail + x)) for x in (0.0, 0.1))
    assert saved["moe-a2a"] == pytest.approx(hb + rail)  # a stage in HB domains, then one on rails
    assert saved[WHOLE] == pytest.approx(4 * saved["moe-a2a"] + saved["dp-all-reduce"])
    assert all(more[name] > saved[name] for name in saved)


@pytest.mark.parametrize("name", ALL)
@given(one_way=st.tuples(*[st.floats(0, 1)] * 3), more=st.floats(0, 1))
def test_latency_adds_nothing_at_zero_and_grows(name: str, one_way: tuple[float, float, float], more: float) -> None:
    schedule = collective_schedule(name, 2, 3, 6000)
    assert set(latency(schedule, PathSeconds(0, 0, 0)).values()) == {0}
    (alpha,), (longer,) = (
        latency(schedule, PathSeconds(*(x + plus for x in one_way))).values() for plus in (0.0, more)
    )
    assert longer >= alpha


def test_ring_waits_for_latency_at_each_step() -> None:
    steps = PathSeconds(0.001, 0.1, 9.0)
    assert latency(collective_schedule("all-gather-hierarchical", 4, 3, 12_000), steps) == {
        "all-gather-hierarchical": pytest.approx(3 * 0.1 + 2 * 0.001)
    }
    large = collective_schedule("all-gather-hierarchical", 4, 3, 12_000_000)  # in slices: one travels, one is sent
    assert latency(large, steps)["all-gather-hierarchical"] == pytest.approx(0.1 + 0.001)
