"""The rate that `auto` stands for: readable, the same for all fabrics of an experiment, within the machine's means."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.spec.parsing import parse
from railyard.topologies.capacity import (
    BUSY,
    MAX_RAIL_BPS,
    STEPS,
    Capacity,
    auto_rail_bps,
    fits,
    frames_per_s,
    hb_packets_needed,
    max_rail_bps,
    needs_batched,
    rails_cores,
)
from railyard.topologies.measure.capacity import frame_cost_s
from railyard.topologies.spec import FabricSpec
from tests.unit.path_choices import POLICIES

kinds = st.sampled_from(sorted(POLICIES))
fabrics = st.builds(
    FabricSpec, kind=kinds, domains=st.integers(2, 254), rails=st.integers(2, 256), mtu=st.integers(1280, 9000)
)
costs = st.floats(1e-7, 1e-2)
capacities = st.builds(Capacity, st.floats(0.5, 256), costs, costs, costs, st.just(0.0))
TWO_CORES = Capacity(2, 300e-6, 100e-6, 40e-6)
READABLE = {round(step * 10**power) for power in range(6, 10) for step in STEPS}


@given(specs=st.lists(fabrics, min_size=1, max_size=3), capacity=capacities)
def test_auto_rate_is_readable_and_fits_every_fabric(specs: list[FabricSpec], capacity: Capacity) -> None:
    rate = auto_rail_bps(specs, capacity)
    assert rate <= MAX_RAIL_BPS
    assert rate in READABLE
    if rate > min(READABLE):
        assert all(fits(spec, rate, capacity) for spec in specs)
        of_frame = (capacity.frame_s, capacity.switch_s)
        assert all(rails_cores(spec, rate, *of_frame) <= BUSY * capacity.cores for spec in specs)


@given(specs=st.lists(fabrics, min_size=1, max_size=3), capacity=capacities)
def test_the_next_readable_rate_would_be_too_much(specs: list[FabricSpec], capacity: Capacity) -> None:
    rate = auto_rail_bps(specs, capacity)
    if rate < MAX_RAIL_BPS:
        following = min(readable for readable in READABLE if readable > rate)
        assert following <= 2 * rate
        assert not all(fits(spec, following, capacity) for spec in specs)


@given(specs=st.lists(fabrics, min_size=1, max_size=3), one_more=fabrics, capacity=capacities, factor=st.floats(1, 100))
def test_rate_rises_with_capacity_and_falls_with_fabrics(
    specs: list[FabricSpec], one_more: FabricSpec, capacity: Capacity, factor: float
) -> None:
    rate = auto_rail_bps(specs, capacity)
    assert rate <= auto_rail_bps(specs, capacity._replace(cores=capacity.cores * factor))
    assert auto_rail_bps([*specs, one_more], capacity) <= rate
    assert auto_rail_bps(specs[::-1], capacity) == rate


@given(spec=fabrics, capacity=capacities, batched_s=costs)
def test_highest_rate_needs_all_switch_capacity_of_the_machine(
    spec: FabricSpec, capacity: Capacity, batched_s: float
) -> None:
    most = max_rail_bps(spec, capacity._replace(batched_s=batched_s))
    assert rails_cores(spec, most, batched_s, batched_s) == pytest.approx(capacity.cores)
    assert max_rail_bps(spec, capacity._replace(batched_s=0.0)) == inf


def test_frames_of_16_gpus_at_100_mbit_per_s() -> None:
    """16 x 12.5 MB/s in frames of 9,014 bytes; half of those over spines pass two switches more."""
    spec = FabricSpec(kind="rail-only")
    assert frames_per_s(spec, 100_000_000) == pytest.approx(22_187.7, abs=0.1)
    for kind, of_frame in (("rail-only", 3e-4), ("single-switch", 3e-4), ("rail-optimized", 4e-4)):
        cores = rails_cores(FabricSpec(kind=kind), 100_000_000, 3e-4, 1e-4)
        assert cores == pytest.approx(22_187.7 * of_frame, abs=0.1)


@pytest.mark.parametrize(
    ("domains", "rails", "rate"), [(4, 4, 15_000_000), (6, 5, 7_000_000), (8, 8, 3_000_000), (32, 8, 1_000_000)]
)
def test_rates_on_two_cores(domains: int, rails: int, rate: int) -> None:
    """4,000 frames a second, of 300 us each, take 0.6 of two cores; 40,000 packets in HB domains take 0.8."""
    assert auto_rail_bps([FabricSpec(kind="rail-only", domains=domains, rails=rails)], TWO_CORES) == rate


def test_slow_hb_links_send_single_frames() -> None:
    """256 x 24 Mbit/s and 256 x 180 Mbit/s, A100; the latter's NICs hand on two frames at once."""
    spec = FabricSpec(kind="rail-only", domains=32, rails=8, platform="a100")
    assert hb_packets_needed(spec, 2_000_000) == pytest.approx(256 * 24e6 / 8 / 9014)
    assert hb_packets_needed(spec, 15_000_000) == pytest.approx(256 * 180e6 / 8 / 9014 / 2)


def test_fast_hb_domains_limit_the_rate() -> None:
    """The rails of 64 GPUs would allow 3 Mbit/s; HB links 12 times as fast take 32,000 packets a second then."""
    spec = FabricSpec(kind="rail-only", domains=8, rails=8, platform="a100")
    assert auto_rail_bps([spec], TWO_CORES) == 3_000_000
    assert auto_rail_bps([spec], TWO_CORES._replace(hb_s=60e-6)) == 2_000_000


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


def test_high_given_rates_are_limited_by_frames_at_once() -> None:
    """16 GPUs at 50 Mbit/s take 1.7 times two cores singly, 0.8 of them at 150 us."""
    spec = FabricSpec.model_validate({"kind": "rail-only", "rail_rate": "50Mbit"})
    assert needs_batched(spec, TWO_CORES)
    assert not needs_batched(spec.model_copy(update={"rail_rate": 20_000_000}), TWO_CORES)
    assert not needs_batched(FabricSpec(kind="rail-only"), TWO_CORES)
    assert max_rail_bps(spec, TWO_CORES._replace(batched_s=150e-6)) > 50_000_000


def test_capacity_is_recorded_in_microseconds() -> None:
    expected = {"frames_per_s": 6667, "frame_us": 300.0, "switch_us": 100.0, "hb_us": 40.0}
    assert TWO_CORES.as_dict() == expected
    assert Capacity(2, batched_s=31e-6).as_dict() == {"frames_per_s": 64_516, "batched_us": 31.0}


@pytest.mark.parametrize(
    ("rate", "measured"), [("10Mbit", False), ("20Mbit", False), ("22Mbit", True), ("1Gbit", True), ("auto", True)]
)
def test_capacity_is_measured_unless_given_rates_are_low(rate: str, measured: bool) -> None:
    """4 GPUs at 20 Mbit/s send 1,109 frames a second."""
    fabrics = [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": rate}]
    workload = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "bytes": "100KB"}
    spec = parse({"name": "mine", "fabrics": fabrics, "workloads": [workload]})
    assert spec.fabric_class.needs_capacity(spec.fabrics) is measured


@pytest.mark.parametrize(
    ("rates", "measured"),
    [
        (["50Mbit", "50Mbit"], False),
        (["100Mbit", "50Mbit"], True),
        (["50Mbit", "auto"], True),
        (["1Gbit"], True),
    ],
)
def test_capacity_is_measured_unless_all_given_rates_are_low(rates: list[str], measured: bool) -> None:
    """2 nodes at 100 Mbit/s send 2,759 frames a second."""
    fabrics = [{"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": rate} for rate in rates]}]
    workload = {"kind": "allreduce", "sizes": ["1MiB"], "policies": ["equal"]}
    spec = parse({"name": "mine", "fabrics": fabrics, "workloads": [workload]})
    assert spec.fabric_class.needs_capacity(spec.fabrics) is measured
