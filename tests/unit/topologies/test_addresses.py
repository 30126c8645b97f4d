"""Names, addresses and MACs identify a GPU uniquely."""

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies import addresses
from railyard.topologies.addresses import MAX_DOMAINS, MAX_RAILS, Gpu, gpu_of_ip, gpu_of_name, rank_mac, rank_prefixes

DOMAINS = st.integers(0, MAX_DOMAINS - 1)
RANKS = st.integers(0, MAX_RAILS - 1)
GPUS = st.builds(Gpu, DOMAINS, RANKS)


def number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


@given(gpu=GPUS)
def test_a_name_and_an_address_lead_back_to_their_gpu(gpu: Gpu) -> None:
    assert gpu_of_name(gpu.name) == gpu
    assert gpu_of_ip(gpu.ip) == gpu


def test_no_two_gpus_share_anything() -> None:
    """Of the largest fabric, every one of its 262,144 GPUs."""
    gpus = [Gpu(d, g) for d in range(MAX_DOMAINS) for g in range(MAX_RAILS)]
    assert len({gpu.name for gpu in gpus}) == len(gpus)
    assert len({gpu.ip for gpu in gpus}) == len(gpus)
    macs = {gpu.mac(side) for gpu in gpus for side in ("hb", "rail")}
    assert len(macs) == 2 * len(gpus)


def test_docstring_table_matches_the_code() -> None:
    rows = [line.strip("| ").split("|") for line in (Gpu.__doc__ or "").splitlines() if "| d" in line]
    assert len(rows) == 4
    for name, ip, hb, rail in ([cell.strip() for cell in row] for row in rows):
        gpu = gpu_of_name(name)
        assert (gpu.name, gpu.ip, gpu.mac("hb"), gpu.mac("rail")) == (name, ip, hb, rail)


@given(gpu=GPUS)
def test_addresses_are_of_benchmark_blocks_and_macs_are_local(gpu: Gpu) -> None:
    assert any(IPv4Address(gpu.ip) in IPv4Network(block) for block in addresses.BLOCK_PREFIXES)
    for side in (gpu.mac("hb"), gpu.mac("rail")):
        assert number(side) >> 40 & 0b11 == 0b10


@given(gpu=GPUS, other=RANKS, more=st.integers(0, MAX_DOMAINS))
def test_the_prefixes_of_a_rank_hold_its_gpus_and_no_others(gpu: Gpu, other: int, more: int) -> None:
    networks = [IPv4Network(prefix) for prefix in rank_prefixes(gpu.rank, min(gpu.domain + 1 + more, MAX_DOMAINS))]
    assert any(IPv4Address(gpu.ip) in network for network in networks)
    stranger = IPv4Address(Gpu(gpu.domain, other).ip)
    assert any(stranger in network for network in networks) == (other == gpu.rank)


@given(gpu=GPUS, other=RANKS)
def test_masked_mac_matches_only_the_ranks_rail_interfaces(gpu: Gpu, other: int) -> None:
    value, mask = (number(part) for part in rank_mac(gpu.rank))
    assert number(gpu.mac("rail")) & mask == value
    assert number(gpu.mac("hb")) & mask != value
    assert (number(Gpu(gpu.domain, other).mac("rail")) & mask == value) == (other == gpu.rank)


@pytest.mark.parametrize("name", ["", "d0", "g1", "d0g", "dg", "d-1g0", "d0g1 ", "D0G1", "rail0", "d0g1x", "xd0g1"])
def test_invalid_gpu_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a GPU name"):
        gpu_of_name(name)


@pytest.mark.parametrize("ip", ["198.17.255.255", "198.20.0.0", "100.63.255.255", "100.66.0.0", "0.0.0.0"])
def test_an_address_outside_the_plan_is_refused(ip: str) -> None:
    with pytest.raises(ValueError, match="address plan"):
        gpu_of_ip(ip)


@pytest.mark.parametrize(
    ("ip", "gpu"),
    [("198.19.255.255", Gpu(511, 255)), ("100.65.255.255", Gpu(1023, 255)), ("198.18.1.255", Gpu(511, 0))],
)
def test_the_corners_of_the_plan(ip: str, gpu: Gpu) -> None:
    assert (gpu.ip, gpu_of_ip(ip)) == (ip, gpu)
