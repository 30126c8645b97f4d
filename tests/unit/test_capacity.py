"""The rate that `auto` stands for: readable, the same for all fabrics of an experiment, within the machine's means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.spec.experiment import parse
from railyard.topologies.measure.rates import (
    MAX_RAIL_BPS,
    SHARE,
    auto_rail_bps,
    fits,
    frame_cost_s,
    frames_needed,
    hb_packets_needed,
    max_rail_bps,
)
from railyard.topologies.spec import MIN_RAIL_BPS, FabricSpec
from tests.unit.path_choices import POLICIES

kinds = st.sampled_from(sorted(POLICIES))
fabrics = st.builds(
    FabricSpec, kind=kinds, domains=st.integers(2, 254), rails=st.integers(2, 256), mtu=st.integers(1280, 9000)
)
frames = st.floats(1.0, 1e9)


@given(specs=st.lists(fabrics, min_size=1, max_size=3), carries=frames)
def test_auto_rate_is_readable_and_fits_every_fabric(specs: list[FabricSpec], carries: float) -> None:
    rate = auto_rail_bps(specs, carries)
    assert MIN_RAIL_BPS <= rate <= MAX_RAIL_BPS
    assert str(rate).rstrip("0") in ("1", "2", "5")
    if rate > MIN_RAIL_BPS:
        assert all(fits(spec, rate, carries) for spec in specs)
        assert all(frames_needed(spec, rate) <= SHARE * carries for spec in specs)


@given(specs=st.lists(fabrics, min_size=1, max_size=3), carries=frames)
def test_the_next_readable_rate_would_be_too_much(specs: list[FabricSpec], carries: float) -> None:
    rate = auto_rail_bps(specs, carries)
    step = 2.5 if str(rate).startswith("2") else 2
    if rate < MAX_RAIL_BPS:
        assert not all(fits(spec, round(rate * step), carries) for spec in specs)


@given(specs=st.lists(fabrics, min_size=1, max_size=3), one_more=fabrics, carries=frames, factor=st.floats(1, 100))
def test_rate_rises_with_capacity_and_falls_with_fabrics(
    specs: list[FabricSpec], one_more: FabricSpec, carries: float, factor: float
) -> None:
    assert auto_rail_bps(specs, carries) <= auto_rail_bps(specs, carries * factor)
    assert auto_rail_bps([*specs, one_more], carries) <= auto_rail_bps(specs, carries)
    assert auto_rail_bps(specs[::-1], carries) == auto_rail_bps(specs, carries)


@given(spec=fabrics, carries=frames)
def test_highest_rate_needs_all_switch_capacity_of_the_machine(spec: FabricSpec, carries: float) -> None:
    assert frames_needed(spec, 1) * max_rail_bps(spec, carries) == pytest.approx(carries)


def test_frames_of_16_gpus_at_100_mbit_per_s() -> None:
    """16 x 12.5 MB/s in frames of 9,014 bytes; what goes over spines passes more switches."""
    assert frames_needed(FabricSpec(kind="rail-only"), 100_000_000) == pytest.approx(22_187.7, abs=0.1)
    assert frames_needed(FabricSpec(kind="single-switch"), 100_000_000) == pytest.approx(22_187.7, abs=0.1)
    assert frames_needed(FabricSpec(kind="rail-optimized"), 100_000_000) > 1.5 * 22_187.7


def test_slow_hb_links_send_single_frames() -> None:
    """256 x 24 Mbit/s and 256 x 180 Mbit/s, A100; the latter's NICs hand on two frames at once."""
    spec = FabricSpec(kind="rail-only", domains=32, rails=8, platform="a100")
    assert hb_packets_needed(spec, 2_000_000) == pytest.approx(256 * 24e6 / 8 / 9014)
    assert hb_packets_needed(spec, 15_000_000) == pytest.approx(256 * 180e6 / 8 / 9014 / 2)


def test_fast_hb_domains_limit_the_rate() -> None:
    """The rails of 256 GPUs would allow 5 Mbit/s; HB links 24 times as fast would need 426,000 packets/s then."""
    spec = FabricSpec(kind="rail-only", domains=32, rails=8, rail_rate="1Mbit", hb_rate="24Mbit")
    assert frames_needed(spec, 5_000_000) < SHARE * 150_000
    assert auto_rail_bps([spec], 150_000) == 2_000_000


@given(cost_us=st.lists(st.floats(1.0, 1000.0), min_size=8, max_size=8))
def test_the_cost_of_a_frame_is_the_third_quartile_of_windows(cost_us: list[float]) -> None:
    """100 frames in each window; one in which nothing arrived is the dearest."""
    spent, cpu_s = [(0.0, 0)], 0.0
    for window, us in enumerate(cost_us, 1):
        cpu_s += us * 100e-6
        spent.append((cpu_s, window * 100 * 9014))
    cost_s = frame_cost_s(spent, 9000)
    assert cost_s == pytest.approx(sorted(cost_us)[6] / 1e6)
    stalled = frame_cost_s([*spent, (cpu_s + 1.0, 800 * 9014)], 9000)
    assert stalled == pytest.approx(sorted(cost_us)[6] / 1e6)


def test_no_frames_have_no_cost() -> None:
    assert frame_cost_s([(0.0, 0), (0.1, 0), (0.2, 0)], 9000) is None


@pytest.mark.parametrize(("times", "rate"), [(0.99, 50_000_000), (1.01, 100_000_000), (1.99, 100_000_000)])
def test_the_rate_is_the_largest_readable_one_that_fits(times: float, rate: int) -> None:
    spec = FabricSpec(kind="rail-only")
    assert auto_rail_bps([spec], times * frames_needed(spec, 100_000_000) / SHARE) == rate


@pytest.mark.parametrize(
    ("rate", "measured"), [("10Mbit", False), ("20Mbit", False), ("22Mbit", True), ("1Gbit", True), ("auto", True)]
)
def test_capacity_is_measured_unless_given_rates_are_low(rate: str, measured: bool) -> None:
    """4 GPUs at 20 Mbit/s send 1,109 frames a second."""
    fabrics = [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": rate}]
    workload = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "bytes": "100KB"}
    spec = parse({"name": "mine", "fabrics": fabrics, "workloads": [workload]})
    assert spec.family.needs_capacity(spec) is measured
