"""Rates in arrays equal those of the plain progressive filling of the health oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.health import oracle
from railyard.results.theory.fluid.routes import Port, Routes
from railyard.results.theory.fluid.sharing import max_min

PORTS = 6
RATE = st.floats(1e3, 1e12)
FLOWS = st.lists(st.lists(st.integers(0, PORTS - 1), min_size=1, max_size=PORTS, unique=True), min_size=1, max_size=12)


def routes(flows: list[list[int]], rates: list[float]) -> Routes:
    """Flows that cross these ports with all of their bytes."""
    ports = tuple(Port(f"d0g{number}", "hb", True) for number in range(PORTS))
    crossed = np.full((len(flows), PORTS), PORTS)
    shares = np.zeros((len(flows), PORTS))
    for row, numbers in enumerate(flows):
        crossed[row, : len(numbers)] = numbers
        shares[row, : len(numbers)] = 1.0
    return Routes(ports, np.array([*rates, np.inf]), crossed, shares)


@given(flows=FLOWS, rates=st.lists(RATE, min_size=PORTS, max_size=PORTS))
def test_rates_equal_plain_progressive_filling(flows: list[list[int]], rates: list[float]) -> None:
    links = [oracle.Link(number, "own", True) for number in range(PORTS)]
    paths = [tuple(links[number] for number in flow) for flow in flows]
    plain = oracle.max_min(paths, dict(zip(links, rates, strict=True)))
    fluid = routes(flows, rates)
    assert max_min(fluid, np.arange(len(flows)), fluid.rates) == pytest.approx(plain, rel=1e-6)


def test_a_dead_port_stops_only_its_flows() -> None:
    fluid = routes([[0], [0, 1], [1]], [1.0] * PORTS)
    rates = fluid.rates.copy()
    rates[0] = 0.0
    assert max_min(fluid, np.arange(3), rates).tolist() == [0.0, 0.0, 1.0]


def test_half_of_a_flow_takes_half_of_a_port() -> None:
    fluid = routes([[0, 1], [0]], [1.0] * PORTS)
    fluid.shares[0] = [0.5, 0.5, 0, 0, 0, 0]
    assert max_min(fluid, np.arange(2), fluid.rates) == pytest.approx([2 / 3, 2 / 3])
