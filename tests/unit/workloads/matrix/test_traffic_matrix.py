"""Matrices and ports: where bytes go, by pair and by interface."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import collective_schedule
from railyard.workloads.matrix.traffic_matrix import (
    bytes_by_kind,
    cross_rail_bytes,
    port_bytes,
    traffic_matrix,
)
from railyard.workloads.schedule import Phase, Schedule
from railyard.workloads.tasks import Transfer
from tests.unit.path_choices import gpu_hops

POLICIES: list[str] = ["dr", "rd", "spine", "pxn"]


def fabric(policy: str, domains: int, rails: int) -> FabricSpec:
    kind = "single-switch" if policy in ("spine", "pxn") else "rail-only"
    return FabricSpec(kind=kind, policy=policy, domains=domains, rails=rails)


def one_transfer(src: int, dst: int, size: int = 1000) -> Schedule:
    phase = Phase("p", "PP", "point-to-point", 1, 2, size)
    return Schedule("one", 6, 3, (phase,), (Transfer(src, dst, size, 0),))


@pytest.mark.parametrize(
    ("policy", "dst", "way"),
    [
        ("dr", 2, ((0, 2, "hb"),)),
        ("dr", 3, ((0, 3, "rail"),)),
        ("dr", 5, ((0, 2, "hb"), (2, 5, "rail"))),
        ("pxn", 5, ((0, 2, "hb"), (2, 5, "rail"))),
        ("rd", 5, ((0, 3, "rail"), (3, 5, "hb"))),
        ("spine", 5, ((0, 5, "rail"),)),
    ],
)
def test_ways_of_each_policy(policy: str, dst: int, way: tuple[tuple[int, int, str], ...]) -> None:
    """Two domains of three: d0g0 to d0g2, d1g0, d1g2."""
    assert gpu_hops(0, dst, 3, fabric(policy, 2, 3)) == ((1.0, way),)


def test_a_forwarded_transfer_is_counted_at_the_forwarder() -> None:
    ports = port_bytes(one_transfer(0, 5), fabric("dr", 2, 3))
    assert ports.hb_out.tolist() == [1000, 0, 0, 0, 0, 0]
    assert ports.hb_in.tolist() == ports.rail_out.tolist() == [0, 0, 1000, 0, 0, 0]
    assert ports.rail_in.tolist() == [0, 0, 0, 0, 0, 1000]


@given(domains=st.integers(2, 4), rails=st.integers(2, 4), policy=st.sampled_from(POLICIES))
def test_uniform_all_to_all_loads_ports_as_equations_2_and_3(domains: int, rails: int, policy: str) -> None:
    ports = port_bytes(collective_schedule("all-to-all", domains, rails, 10), fabric(policy, domains, rails))
    forwarded = 0 if policy == "spine" else (rails - 1) * (domains - 1)
    for rail, hb in ((ports.rail_in, ports.hb_in), (ports.rail_out, ports.hb_out)):
        assert set(rail.tolist()) == {10 * rails * (domains - 1)}
        assert set(hb.tolist()) == {10 * (rails - 1 + forwarded)}


def test_crossing_needs_another_rank_and_another_domain() -> None:
    assert [cross_rail_bytes(one_transfer(0, dst)) for dst in (1, 3, 4)] == [0, 0, 1000]


def test_the_matrix_has_rows_that_send_and_adds_up() -> None:
    schedule = collective_schedule("all-gather-hierarchical", 2, 3, 6000)
    matrix = traffic_matrix(schedule)
    assert matrix.dtype == np.int64
    assert {(int(s), int(d)): int(matrix[s, d]) for s, d in np.argwhere(matrix)} == schedule.matrix
    assert bytes_by_kind(schedule) == {"collective": matrix.sum()}
    assert not traffic_matrix(schedule, "TP").any()
