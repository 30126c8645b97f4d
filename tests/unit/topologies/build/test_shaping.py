"""Shapers: the rate is the rate, the idle credit is small, and payload is counted without headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.topologies.build.shaping import (
    BURST_S,
    PACKET_S,
    burst_bytes,
    control_burst_bytes,
    htb_commands,
    max_gso_segments,
    payload_fraction,
    remove_heartbeat_lane_commands,
    shaper_commands,
    shared_htb_commands,
)

rates = st.integers(1_000, 10**12)
mtus = st.integers(1280, 9000)


@pytest.mark.parametrize(
    ("mtu", "fraction"),
    [(1500, 1448 / 1514), (9000, 8948 / 9014)],  # TCP's usual 1,448 bytes in a frame of 1,514
)
def test_payload_of_a_full_frame(mtu: int, fraction: float) -> None:
    assert payload_fraction(mtu) == pytest.approx(fraction, rel=1e-12)


@given(rate=rates, mtu=mtus)
def test_idle_credit_is_a_time_of_the_rate_or_a_small_frame(rate: int, mtu: int) -> None:
    burst = burst_bytes(rate, mtu)
    assert burst == pytest.approx(max(min(1500, mtu), rate * BURST_S / 8), abs=1)
    assert control_burst_bytes(rate, mtu) == max(2 * (mtu + 14), burst)


@given(rate=rates, mtu=mtus)
def test_packet_is_one_frame_or_a_millisecond_of_the_rate(rate: int, mtu: int) -> None:
    frames = max_gso_segments(rate, mtu)
    assert frames >= 1
    assert frames == 1 or frames * mtu <= min(65_535, rate * PACKET_S / 8 + 1)
    assert max_gso_segments(10**8, 9000) == 1  # of 12.5 KB


@given(rate=rates, small=mtus, large=mtus)
def test_larger_frames_carry_a_larger_part_and_never_all(rate: int, small: int, large: int) -> None:
    small, large = sorted((small, large))
    assert 0.9 < payload_fraction(small) <= payload_fraction(large) < 1


def test_commands_are_as_stored(data_regression: DataRegressionFixture) -> None:
    plain, shared = htb_commands("hb0", 10**8, 9000), shared_htb_commands("hb0", 10**8, 4 * 10**7, 9, 9000)
    assert shaper_commands("hb0", 10**8, 9000, None, heartbeats=False) == plain
    assert shaper_commands("hb0", 10**8, 9000, (4 * 10**7, 9), heartbeats=False) == shared
    with_heartbeats = shaper_commands("hb0", 10**8, 9000, None, heartbeats=True)
    lane = with_heartbeats.removeprefix(plain)
    assert shaper_commands("hb0", 10**8, 9000, (4 * 10**7, 9), heartbeats=True) == shared + lane
    commands = {
        "1.2 Gbit/s": htb_commands("hb0", 1_200_000_000, 9000),
        "100 Mbit/s": htb_commands("rail0", 100_000_000, 9000),
        "heartbeat lane": lane,
        "heartbeat lane removed": remove_heartbeat_lane_commands("hb0"),
    }
    data_regression.check({case: text.splitlines() for case, text in commands.items()})
