"""The equations against what the papers say of them, and against one another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory import equations as eq
from railyard.workloads.collectives.algorithm import ALGORITHMS, whole_phase
from railyard.workloads.collectives.all_gather import all_gather_s
from railyard.workloads.collectives.all_reduce import all_reduce_s
from railyard.workloads.collectives.all_to_all_direct import all_to_all_direct_s
from railyard.workloads.collectives.all_to_all_two_phase import all_to_all_two_phase_s, forwarding_share

A100 = {"hb_bytes_per_s": 300e9, "rail_bytes_per_s": 25e9}
H100 = {"hb_bytes_per_s": 450e9, "rail_bytes_per_s": 50e9}
SIDE = st.integers(2, 64)
RATE = st.floats(1e6, 1e12)


@pytest.mark.parametrize(("rates", "nominal", "exact"), [(A100, 0.0833, 0.0778), (H100, 0.1111, 0.1037)])
def test_forwarding_costs_as_much_as_in_the_paper(rates: dict[str, float], nominal: float, exact: float) -> None:
    """Rail-only section IV-B: C_S/C_F, which is Eq. 3 over Eq. 2 on a square grid, and 16 DGX exactly."""
    assert rates["rail_bytes_per_s"] / rates["hb_bytes_per_s"] == pytest.approx(nominal, abs=5e-5)
    assert forwarding_share(8, 8, **rates) == pytest.approx(nominal, abs=5e-5)
    assert forwarding_share(8, 16, **rates) == pytest.approx(exact, abs=5e-5)


@given(d=st.floats(1, 1e9), x=SIDE, y=SIDE, hb=RATE, rail=RATE)
def test_equation_3_exceeds_equation_2_by_the_forwarding_term(d: float, x: int, y: int, hb: float, rail: float) -> None:
    """Where rails decide Eq. 2, as they do unless C_F is far below C_S."""
    direct, two_phase = all_to_all_direct_s(d, x, y, hb, rail), all_to_all_two_phase_s(d, x, y, hb, rail)
    assert direct <= two_phase
    if x * (y - 1) / rail >= (x - 1) / hb:
        assert two_phase - direct == pytest.approx(y * (x - 1) * d / hb, rel=1e-6, abs=1e-9 * two_phase)
        share = forwarding_share(x, y, hb, rail)
        assert share == pytest.approx(y * (x - 1) * rail / (x * (y - 1) * hb), rel=1e-6, abs=1e-9)


def test_one_moe_all_to_all_on_128_a100s() -> None:
    """262,144 bytes a pair, 16 x 8: 1.258 ms direct and 1.356 ms in two phases, by hand."""
    assert all_to_all_direct_s(262_144, 8, 16, **A100) == pytest.approx(8 * 15 * 262_144 / 25e9)
    assert all_to_all_two_phase_s(262_144, 8, 16, **A100) == pytest.approx(1.3562e-3, rel=1e-4)
    in_rail = whole_phase("a2a", "EP", "all-to-all-in-rail", 1, 16, 8 * 262_144)
    in_rail_s = ALGORITHMS["all-to-all-in-rail"].closed_form_s(in_rail, 1.0, 25e9)
    assert in_rail_s == all_to_all_direct_s(262_144, 8, 16, **A100)


@given(d=st.floats(1, 1e9), n=SIDE, hb=RATE, rail=RATE)
def test_equation_1_of_one_row_or_column_is_a_ring(d: float, n: int, hb: float, rail: float) -> None:
    assert all_gather_s(d, 1, n, hb, rail) == pytest.approx((n - 1) / n * d / rail)
    assert all_gather_s(d, n, 1, hb, rail) == pytest.approx((n - 1) / n * d / hb)
    assert all_gather_s(d, 1, 1, hb, rail) == 0
    assert all_reduce_s(d, n, n, hb, rail) == 2 * all_gather_s(d, n, n, hb, rail)


def test_530b_with_data_parallelism_follows_equation_11() -> None:
    """530B (h 20480, 105 layers, t 8, p 35) 8-way on rails of 25 GB/s: 0.27 s in fp16, 0.53 s with fp32 gradients."""
    parameters = 3 * (12 * 20480**2 + 13 * 20480) / 8
    assert all_reduce_s(2 * parameters, 1, 8, **A100) == pytest.approx(0.265, abs=0.005)
    assert all_reduce_s(4 * parameters, 1, 8, **A100) == pytest.approx(0.53, abs=0.005)


def test_the_bubble_in_stages() -> None:
    """Eq. 7 and 8 by hand; p = 6 as 3 domains of 2 stages each."""
    assert eq.bubble_compute_s(6, 2, 4.0) == 10.0
    assert eq.bubble_network_s(100.0, 3, 2, hb_bytes_per_s=10.0, rail_bytes_per_s=1.0) == 2 * 2 * 100 + 2 * 3 * 1 * 10


def test_the_last_stage() -> None:
    """Eq. 9 and 10 by hand."""
    assert eq.last_stage_compute_s(5, 2.0) == 10.0
    assert eq.last_stage_network_s(5, 0.5, 2, 100.0, 50.0) == 5 * 0.5 + 2 * 5 * 2 * 2
