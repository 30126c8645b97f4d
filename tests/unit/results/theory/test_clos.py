"""Counts of Clos networks: laws for any size, and what each parameter does to the bill (Rail-only section V-E)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.clos import (
    AT_400G,
    Comparison,
    Equipment,
    Network,
    capacity,
    dual_plane,
    radix_that_saves,
    rail_only,
    rail_optimized,
)

radices = st.integers(2, 256).map(lambda half: 2 * half)
gpus = st.integers(1, 200_000)


def ports_below(network: Network) -> list[int]:
    """Of each tier: half of a switch's, and all of them at the top."""
    downs = [network.radix // 2] * (network.tiers - 1) + [network.radix]
    return [switches * ports for switches, ports in zip(network.layers, downs, strict=True)]


@given(n=gpus, radix=radices)
def test_tiers_have_a_port_for_each_gpu_and_are_the_fewest(n: int, radix: int) -> None:
    network = rail_optimized(n, radix)
    assert min(ports_below(network)) >= n
    assert capacity(network.tiers, radix) >= n
    assert network.tiers == 1 or capacity(network.tiers - 1, radix) < n


@given(n=gpus, radix=radices)
def test_no_switch_is_left_over(n: int, radix: int) -> None:
    network = rail_optimized(n, radix)
    downs = [radix // 2] * (network.tiers - 1) + [radix]
    for switches, down in zip(network.layers, downs, strict=True):
        assert (switches - 1) * down < n


@given(half=st.integers(2, 32), tiers=st.integers(1, 4))
def test_full_clos_is_the_fat_tree_of_the_textbook(half: int, tiers: int) -> None:
    network = rail_optimized(2 * half**tiers, 2 * half)
    assert network.tiers == tiers
    assert network.switches == (2 * tiers - 1) * half ** (tiers - 1)  # 5 r^2/4 for three tiers
    assert network.transceivers == 2 * tiers * network.gpus


@given(n=gpus, more=st.integers(1, 5000), radix=radices)
def test_more_gpus_never_cost_less(n: int, more: int, radix: int) -> None:
    small, large = rail_optimized(n, radix), rail_optimized(n + more, radix)
    assert small.cost_usd() < large.cost_usd()  # each brings two transceivers at least
    assert small.power_w() < large.power_w()


@given(domains=st.integers(1, 2000), more=st.integers(1, 100), k=st.integers(1, 300), radix=radices)
def test_more_domains_never_cost_less(domains: int, more: int, k: int, radix: int) -> None:
    small, large = rail_only(domains * k, k, radix), rail_only((domains + more) * k, k, radix)
    assert small.cost_usd() < large.cost_usd()


@given(radix=radices, data=st.data())
def test_single_switch_is_enough_with_enough_ports(radix: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, radix))
    k = data.draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    for network in (rail_optimized(n, radix), rail_only(n, k, radix)):
        assert (network.tiers, network.switches, network.transceivers) == (1, 1, 2 * n)


@given(domains=st.integers(1, 2000), k=st.integers(1, 300), radix=radices)
def test_rail_only_never_costs_more(domains: int, k: int, radix: int) -> None:
    n = domains * k
    wide, narrow = rail_optimized(n, radix), rail_only(n, k, radix)
    assert narrow.switches <= wide.switches
    assert narrow.transceivers <= wide.transceivers
    assert narrow.tiers <= wide.tiers


@given(domains=st.integers(1, 2000), k=st.integers(1, 300), radix=radices)
def test_rail_only_has_a_port_for_each_gpu_and_whole_rails(domains: int, k: int, radix: int) -> None:
    network = rail_only(domains * k, k, radix)
    assert min(ports_below(network)) >= network.gpus
    assert capacity(network.tiers, radix) >= domains
    if network.tiers == 1:
        assert network.switches * (radix // domains) >= k


@given(n=gpus, radix=radices)
def test_domains_of_one_gpu_have_one_rail(n: int, radix: int) -> None:
    assert rail_only(n, 1, radix).layers == rail_optimized(n, radix).layers


def test_each_price_counts_for_its_part() -> None:
    network = rail_only(65_536, 256, 64)
    ports, transceivers = 3072 * 64, 262_144
    for name, usd, watts in (
        ("switch_port_usd", ports, 0),
        ("transceiver_usd", transceivers, 0),
        ("switch_port_w", 0, ports),
        ("transceiver_w", 0, transceivers),
    ):
        dearer = replace(AT_400G, **{name: getattr(AT_400G, name) + 1})
        assert network.cost_usd(dearer) - network.cost_usd() == usd
        assert network.power_w(dearer) - network.power_w() == watts


def test_larger_radix_or_domain_saves_only_with_a_tier_less() -> None:
    wide = [rail_optimized(65_536, radix).cost_usd() for radix in (32, 64, 512, 65_536)]
    assert wide == sorted(wide, reverse=True)
    assert len(set(wide)) == 4
    narrow = [rail_only(65_536, k, 64).cost_usd() for k in (1, 32, 1024)]  # three tiers, two, one
    assert narrow == sorted(narrow, reverse=True)
    assert len(set(narrow)) == 3


@pytest.mark.parametrize(("n", "radix"), [(0, 64), (-1, 64), (64, 2), (64, 63), (64, 0), (64, -4)])
def test_impossible_clos_is_one_line(n: int, radix: int) -> None:
    line = r"^(-?\d+ GPUs|radix -?\d+) must be .*$"
    with pytest.raises(ValueError, match=line):
        rail_optimized(n, radix)
    with pytest.raises(ValueError, match=line):
        rail_only(n, 1, radix)


@pytest.mark.parametrize(("n", "k"), [(30_000, 256), (8, 16), (8, 0), (8, -8), (0, 8)])
def test_a_cluster_is_whole_domains(n: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"^\d+ GPUs must be"):
        rail_only(n, k, 64)


@given(domains=st.integers(1, 2000), k=st.integers(1, 300), radix=radices)
def test_two_planes_have_half_a_port_for_each_gpu(domains: int, k: int, radix: int) -> None:
    network = dual_plane(domains * k, k, radix)
    assert all(switches % 2 == 0 for switches in network.layers)
    assert min(ports_below(network)) >= network.gpus
    assert network.tiers <= rail_only(domains * k, k, radix).tiers


@given(domains=st.integers(1, 500), k=st.integers(1, 100), radix=radices, usd=st.floats(1, 1e4), watts=st.floats(1, 99))
def test_savings_lie_between_switches_and_transceivers(
    domains: int, k: int, radix: int, usd: float, watts: float
) -> None:
    n = domains * k
    prices = Equipment(switch_port_usd=usd, transceiver_usd=100, switch_port_w=watts, transceiver_w=9)
    saving = Comparison(rail_optimized(n, radix), rail_only(n, k, radix), prices)
    least, most = saving.bounds_pct
    assert least - 1e-9 <= saving.cost_saving_pct <= most + 1e-9
    assert least - 1e-9 <= saving.power_saving_pct <= most + 1e-9


@pytest.mark.parametrize(("n", "k", "radix", "saves"), [(1024, 8, 64, 128), (65_536, 256, 64, 64), (16, 8, 64, None)])
def test_radix_that_saves_a_tier(n: int, k: int, radix: int, saves: int | None) -> None:
    assert radix_that_saves(n, k, radix) == saves
