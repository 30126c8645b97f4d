"""Times of collectives: their parts by hand, and laws for any size and group."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.collectives.times import (
    OPERATIONS,
    ROOTED,
    CollectiveConstants,
    Links,
    bus_factor,
    collective_s,
    ideal_s,
    link_times,
)
from railyard.workloads.collectives.all_reduce import all_reduce_s

LINKS = Links(400e9, 50e9)
PLAIN = CollectiveConstants(
    base_s=0, step_s=0, hb_efficiency=1, ring_efficiency=1, small_group=0, hb_pipeline=0, rail_base_s=0,
    rail_efficiency=1, rail_pipeline=0,
)  # fmt: skip
REAL = CollectiveConstants(
    base_s=1e-5, step_s=1e-6, hb_efficiency=1.2, ring_efficiency=0.8, small_group=0.5, hb_pipeline=5e-3,
    rail_base_s=5e-5, rail_efficiency=0.9, rail_pipeline=1e-2,
)  # fmt: skip
groups = st.tuples(st.integers(1, 72), st.integers(1, 64)).filter(lambda group: group[0] * group[1] > 1)


def test_bytes_of_an_all_reduce_on_both_tiers() -> None:
    times = link_times("all-reduce", 8e9, 8, 4, LINKS)
    assert float(times.hb_s) == pytest.approx(2 * 8e9 * 7 / 8 / 400e9)
    assert float(times.rail_s) == pytest.approx(2 * 1e9 * 3 / 4 / 50e9)
    assert float(times.steps) == 14


def test_forwarded_all_to_all_sends_all_into_the_domain() -> None:
    """Rail-only Eq. 2 has the bytes of the own domain there, Eq. 3 those of all domains."""
    direct = link_times("all-to-all", 32e9, 8, 4, LINKS)
    forwarded = link_times("all-to-all", 32e9, 8, 4, LINKS, forwarding=True)
    assert float(direct.hb_s) == pytest.approx(7e9 / 400e9)
    assert float(forwarded.hb_s) == pytest.approx(28e9 / 400e9)
    assert float(direct.rail_s) == float(forwarded.rail_s) == pytest.approx(24e9 / 50e9)


def test_broadcast_passes_all_bytes_along_a_chain() -> None:
    for operation in ROOTED:
        times = link_times(operation, 8e9, 8, 4, LINKS)
        assert float(times.hb_s) == pytest.approx(8e9 / 400e9)
        # each of 8 NICs takes its part to the next domain
        assert float(times.rail_s) == pytest.approx(1e9 / 50e9)
        assert float(bus_factor(operation, 32)) == 1


@given(group=groups, operation=st.sampled_from(OPERATIONS), size=st.floats(1e3, 1e12))
def test_plain_constants_give_the_ideal(group: tuple[int, int], operation: str, size: float) -> None:
    x, y = group
    ideal = float(ideal_s(operation, size, x, y, LINKS))  # type: ignore[arg-type]
    assert float(collective_s(operation, size, x, y, LINKS, PLAIN)) == pytest.approx(ideal)  # type: ignore[arg-type]


@given(group=groups, size=st.floats(1e3, 1e12))
def test_ideal_is_at_most_the_sum_of_both_tiers(group: tuple[int, int], size: float) -> None:
    """Rail-only Eq. 11 does one tier after the other; NCCL does both at the same time."""
    in_turn = all_reduce_s(size, group[0], group[1], LINKS.hb_bytes_per_s, LINKS.rail_bytes_per_s)
    ideal = float(ideal_s("all-reduce", size, *group, LINKS))
    assert ideal <= in_turn * (1 + 1e-9)
    assert ideal >= in_turn / 2 * (1 - 1e-9)


@given(group=groups, operation=st.sampled_from(OPERATIONS), size=st.floats(1e3, 1e11), more=st.floats(1.01, 10))
def test_more_bytes_take_longer(group: tuple[int, int], operation: str, size: float, more: float) -> None:
    small = float(collective_s(operation, size, *group, LINKS, REAL))  # type: ignore[arg-type]
    large = float(collective_s(operation, size * more, *group, LINKS, REAL))  # type: ignore[arg-type]
    assert small < large < small * more


@pytest.mark.parametrize("name", ["base_s", "step_s", "small_group", "hb_pipeline", "rail_base_s", "rail_pipeline"])
def test_each_constant_adds_time(name: str) -> None:
    longer = replace(REAL, **{name: 2 * getattr(REAL, name)})
    assert collective_s("all-gather", 1e6, 8, 2, LINKS, longer) > collective_s("all-gather", 1e6, 8, 2, LINKS, REAL)


def test_only_an_all_reduce_is_added_by_switches() -> None:
    faster = replace(REAL, hb_efficiency=2.4)
    assert collective_s("all-reduce", 1e9, 8, 1, LINKS, faster) < collective_s("all-reduce", 1e9, 8, 1, LINKS, REAL)
    assert collective_s("all-gather", 1e9, 8, 1, LINKS, faster) == collective_s("all-gather", 1e9, 8, 1, LINKS, REAL)


def test_arrays_are_each_number_alone() -> None:
    sizes = np.array([1e6, 1e9])
    times = collective_s("all-reduce", sizes, 8, np.array([1, 4]), LINKS, REAL)
    assert times.tolist() == [
        float(collective_s("all-reduce", 1e6, 8, 1, LINKS, REAL)),
        float(collective_s("all-reduce", 1e9, 8, 4, LINKS, REAL)),
    ]
    assert float(collective_s("all-reduce", 1e9, 1, 1, LINKS, REAL)) == 0
    assert float(bus_factor("all-reduce", 4)) == 1.5
