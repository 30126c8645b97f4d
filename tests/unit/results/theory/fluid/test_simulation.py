"""The simulation of a job alone equals closed forms, and what several transfers share follows from max-min fairness."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.simulation import Conditions, FluidRun, RateChange, simulate
from railyard.results.theory.path_seconds import PathSeconds
from railyard.results.theory.predict import predict_phase
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import collective_schedule
from railyard.workloads.schedule import Phase, Program, Rates, Schedule

ONLY = FabricSpec(kind="rail-only", domains=2, rails=2)
RATES = Rates(hb=8.0, rail=1.0)
RATE = st.floats(1e3, 1e9)
PLAIN = Phase("a", "collective", "", 2, 2, 1.0)
RINGS = ["all-gather-hierarchical", "reduce-scatter-hierarchical", "all-reduce-hierarchical", "all-reduce-ring"]


def sent(*transfers: tuple[int, int, int], compute_s: float = 0.0) -> Schedule:
    """(source, destination, bytes) on 2 x 2 GPUs, that all begin when their GPUs have computed for so long."""
    program = Program(2, 2)
    phase = program.phase(PLAIN)
    for gpu in sorted({src for src, _, _ in transfers}):
        program.compute(gpu, compute_s, phase)
    for src, dst, size in transfers:
        program.send(src, dst, size, phase, program.last(src))
    return program.schedule("sent")


def ends(run: FluidRun) -> list[float]:
    transfers = run.end_s[~run.schedule.columns.is_compute]
    return list(map(float, transfers))


@given(size=st.integers(1, 10**9), rail=RATE, compute_s=st.floats(0, 10))
def test_a_lone_flow_takes_its_bytes_at_line_rate(size: int, rail: float, compute_s: float) -> None:
    run = simulate(sent((0, 2, size), compute_s=compute_s), Rates(10 * rail, rail), ONLY)
    assert ends(run) == pytest.approx([compute_s + size / rail])


@given(sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=3))
def test_flows_of_a_port_end_in_the_order_of_their_sizes(sizes: list[int]) -> None:
    """Each waits for all bytes of smaller ones, and for as many of larger ones as it has itself."""
    program = Program(2, 2)
    phase = program.phase(PLAIN)
    for stripe, size in enumerate(sizes):
        program.send(0, 2, size, phase, (), stripe)
    run = simulate(program.schedule("stripes"), RATES, ONLY)
    expected = [sum(min(size, other) for other in sizes) / RATES.rail for size in sizes]
    assert ends(run) == pytest.approx(expected)


def test_a_connection_carries_transfers_in_order() -> None:
    run = simulate(sent((0, 2, 4), (0, 2, 6)), RATES, ONLY)
    assert ends(run) == pytest.approx([4, 10])
    assert run.start_s.tolist() == pytest.approx([0, 4])


def test_a_forwarded_flow_shares_the_rail_of_another_gpu() -> None:
    """d0g0 -> d1g1 is forwarded by d0g1, whose own transfer to d1g1 is on the same rail links."""
    run = simulate(sent((0, 3, 10), (1, 3, 10)), RATES, ONLY)
    assert ends(run) == pytest.approx([20, 20])
    assert simulate(sent((0, 3, 10), (1, 3, 5)), RATES, ONLY).end_s.tolist() == pytest.approx([15, 10])


def test_latency_delays_receipt_and_not_the_next_departure() -> None:
    latency = PathSeconds(hb=0.5, rail=2.0, cross_rail=3.0)
    run = simulate(sent((0, 2, 4), (0, 2, 6)), RATES, ONLY, Conditions(one_way=latency))
    assert ends(run) == pytest.approx([6, 12])


def test_a_degraded_port_slows_flows_from_its_change_on() -> None:
    change = RateChange(3.0, Port("d0g0", "rail", True), 0.5)
    assert ends(simulate(sent((0, 2, 10)), RATES, ONLY, Conditions(changes=(change,)))) == pytest.approx([17])


def test_a_dead_port_leaves_flows_without_an_end_until_repair() -> None:
    port = Port("d1g0", "rail", False)
    dead = RateChange(3.0, port, 0.0)
    run = simulate(sent((0, 2, 10), (1, 3, 4)), RATES, ONLY, Conditions(changes=(dead,)))
    assert ends(run) == [inf, 4.0]
    assert list(run.spans()) == [1]
    repaired = Conditions(changes=(dead, RateChange(5.0, port, 1.0)))
    assert ends(simulate(sent((0, 2, 10)), RATES, ONLY, repaired)) == pytest.approx([12])


def test_pairs_without_a_path_never_begin() -> None:
    isolated = FabricSpec(kind="rail-only", domains=2, rails=2, policy="isolated")
    run = simulate(sent((0, 3, 10), (0, 2, 10)), RATES, isolated)
    assert run.start_s.tolist() == [inf, 0.0]


def simulated_and_predicted(name: str, x: int, y: int, data_bytes: float) -> tuple[float, float]:
    rates = Rates(hb=9e8, rail=1e8)
    fabric = FabricSpec(kind="rail-only", domains=y, rails=x)
    schedule = collective_schedule(name, y, x, data_bytes)
    return simulate(schedule, rates, fabric).seconds, predict_phase(schedule.phases[0], rates, fabric)


@pytest.mark.parametrize("name", RINGS)
@settings(max_examples=10)
@given(x=st.integers(2, 4), y=st.integers(2, 4))
def test_rings_take_the_time_of_their_equations(name: str, x: int, y: int) -> None:
    seconds, predicted_s = simulated_and_predicted(name, x, y, 1e9)
    assert seconds == pytest.approx(predicted_s, rel=1e-6)


@pytest.mark.parametrize(("x", "y"), [(2, 2), (2, 3), (4, 4)])
def test_all_to_all_takes_its_bound(x: int, y: int) -> None:
    seconds, predicted_s = simulated_and_predicted("all-to-all", x, y, 1e5)
    assert seconds == pytest.approx(predicted_s, rel=1e-6)


@given(data=st.data())
def test_bytes_of_pieces_are_the_bytes_of_their_transfers(data: st.DataObject) -> None:
    pair = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 1000)).filter(lambda row: row[0] != row[1])
    run = simulate(sent(*data.draw(st.lists(pair, min_size=1, max_size=8))), RATES, ONLY)
    moved = np.zeros(len(run.flow))
    np.add.at(moved, run.pieces.task, run.pieces.rate * (run.pieces.end_s - run.pieces.start_s))
    assert moved == pytest.approx(run.schedule.columns.bytes)
