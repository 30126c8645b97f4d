"""Predictions where GPUs share NICs: half the rate while both send, all of it for one."""

from dataclasses import replace
from math import inf

import pytest

from railyard.results.theory.bottleneck import bottleneck_s
from railyard.results.theory.predict import equation, explained_ratios, predict_phase
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.collectives.algorithm import ALGORITHMS, Sizes, collective_schedule, run
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s, port_bytes
from railyard.workloads.schedule import Phase, Program, Rates

RATES = Rates(hb=1e9, rail=1e8)
SIZE = 1e8
WITH_EQUATION = [name for name, algorithm in ALGORITHMS.items() if algorithm.equation and algorithm.collective]


def fabric(kind: str = "rail-only", **more: object) -> FabricSpec:
    return parse_fabric({"kind": kind, "domains": 2, "rails": 4, "gpus_per_nic": 2, **more})


def pairs_s(pairs: dict[tuple[int, int], float], spec: FabricSpec) -> float:
    return bottleneck_s([Sizes.of(pairs)], spec.rails, spec.domains, RATES, spec)


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
def test_gpus_of_a_nic_share_its_rate(kind: str) -> None:
    spec = fabric(kind)
    alone = pairs_s({(0, 4): SIZE}, spec)
    assert alone == pytest.approx(1.0)
    assert pairs_s({(0, 4): SIZE, (1, 5): SIZE}, spec) == pytest.approx(2.0)
    assert pairs_s({(0, 4): SIZE, (2, 6): SIZE}, spec) == pytest.approx(1.0), "two NICs"
    assert pairs_s({(0, 5): SIZE}, spec) == alone, "another rank, but the same rail"


@pytest.mark.parametrize("name", WITH_EQUATION)
def test_collectives_of_all_gpus_have_half_the_rail_rate(name: str) -> None:
    algorithm = ALGORITHMS[name]
    spec = fabric("rail-optimized")
    phase = Phase("a", "collective", name, 1 if algorithm.per_rail else 4, 2, SIZE)
    closed = algorithm.closed_form_s(phase, RATES.hb, RATES.rail / 2)
    assert predict_phase(phase, RATES, spec) == pytest.approx(closed)
    assert equation(phase, RATES, spec) == f"{algorithm.equation}, 2 GPUs a NIC"


def test_groups_that_fill_the_fabric_are_compared_and_others_not() -> None:
    """Which other groups send by a NIC at the same time depends on a group's place."""
    spec = fabric()
    rings = collective_schedule("all-reduce-ring", 2, 4, SIZE)
    (name,) = {phase.name for phase in rings.phases}
    assert explained_ratios(rings, RATES, spec)[name] == (1.0, 1.0)
    program = Program(2, 4)
    run(program, replace(rings.phases[0], name="group"), ((0,), (4,)))
    assert explained_ratios(program.schedule("group"), RATES, spec)["group"] == (0.0, inf)


def test_line_rate_and_bytes_follow_the_nics() -> None:
    program = Program(2, 4)
    phase = program.phase(Phase("pairs", "p2p", "", 4, 2, 0.0))
    for src, dst in ((0, 5), (1, 4)):
        program.send(src, dst, 1_000_000, phase, ())
    schedule = program.schedule("pairs")
    assert line_rate_duration_s(schedule, RATES, fabric()) == pytest.approx(0.02)
    ports = port_bytes(schedule, fabric())
    assert ports.rail_out.tolist() == [1_000_000, 1_000_000, 0, 0, 0, 0, 0, 0]
    assert not ports.hb_out.any()
