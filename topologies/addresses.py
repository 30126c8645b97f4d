"""Names, addresses, MACs, datapath ids and ports: all follow by rules from a GPU's domain d and rank g, and a switch's
role and index, so a controller needs no plan. Tables: docs/topologies.md, "Names, addresses, ports".

The rank comes first in an address, so that everything on rail g is one prefix: a GPU needs a route a rank, not a route
a destination. Nothing but the standard library is imported here: the OpenFlow app reads this under Ryu.
"""

import re
from ipaddress import IPv4Address
from typing import Final, Literal, NamedTuple

MAX_DOMAINS: Final = 1024
MAX_RAILS: Final = 256
BLOCKS: Final = (int(IPv4Address("198.18.0.0")), int(IPv4Address("100.64.0.0")))
BLOCK_PREFIXES: Final = ("198.18.0.0/15", "100.64.0.0/15")
_DOMAIN_BITS: Final = 9
_NAME: Final = re.compile(r"d(\d+)g(\d+)")

Side = Literal["hb", "rail"]
_SIDE_OCTET: Final[dict[Side, int]] = {"hb": 0x48, "rail": 0x52}


class Gpu(NamedTuple):
    """G(d, g): the GPU of rank g in HB domain d.

    | name    | IP           | hb0 MAC           | rail0 MAC         |
    |---------|--------------|-------------------|-------------------|
    | d0g0    | 198.18.0.0   | 02:48:00:00:00:00 | 02:52:00:00:00:00 |
    | d3g5    | 198.18.10.3  | 02:48:00:03:05:00 | 02:52:00:03:05:00 |
    | d300g1  | 198.18.3.44  | 02:48:01:2c:01:00 | 02:52:01:2c:01:00 |
    | d512g0  | 100.64.0.0   | 02:48:02:00:00:00 | 02:52:02:00:00:00 |
    """

    domain: int
    rank: int

    @property
    def name(self) -> str:
        """Name of its host, such as d3g5."""
        return f"d{self.domain}g{self.rank}"

    @property
    def ip(self) -> str:
        """Address of the GPU."""
        block, low = divmod(self.domain, 1 << _DOMAIN_BITS)
        return str(IPv4Address(BLOCKS[block] + (self.rank << _DOMAIN_BITS) + low))

    def mac(self, side: Side, plane: int = 0) -> str:
        """Return the MAC of its interface into the HB domain, or of the rail link of a plane."""
        return f"02:{_SIDE_OCTET[side]:02x}:{self.domain >> 8:02x}:{self.domain & 255:02x}:{self.rank:02x}:{plane:02x}"

    def mac_of(self, device: str) -> str:
        """Return the MAC of `hb0`, `rail0`, `rail1`, ..."""
        return self.mac("hb") if device == "hb0" else self.mac("rail", plane_of_device(device))


Pair = tuple[Gpu, Gpu]  # source and destination


def rail_device(plane: int) -> str:
    """Return the name of a GPU's rail link: rail0, and rail1, ... where a GPU has a link for each plane."""
    return f"rail{plane}"


def plane_of_device(device: str) -> int:
    """Return the inverse of `rail_device`."""
    return int(device.removeprefix("rail"))


def is_gpu_name(name: str) -> bool:
    """Return whether this is a GPU's name, such as d3g5."""
    return _NAME.fullmatch(name) is not None


def gpu_of_name(name: str) -> Gpu:
    """`d3g5` -> Gpu(3, 5). ValueError for anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not a GPU name such as d0g1")
    return Gpu(int(match[1]), int(match[2]))


def link_name(gpu: Gpu, plane: int) -> str:
    """Return the name of a rail link: the GPU's in plane 0, with the interface in others."""
    return f"{gpu.name}:{rail_device(plane)}" if plane else gpu.name


def link_of_name(name: str) -> tuple[Gpu, int]:
    """Return the inverse of `link_name`: `d3g5` is the link of plane 0, `d3g5:rail1` that of plane 1."""
    gpu, _, device = name.partition(":")
    return gpu_of_name(gpu), plane_of_device(device or "rail0")


def gpu_of_ip(ip: str) -> Gpu:
    """Return the inverse of `Gpu.ip`. ValueError for an address outside the plan."""
    value = int(IPv4Address(ip))
    for block, base in enumerate(BLOCKS):
        if base <= value < base + (MAX_RAILS << _DOMAIN_BITS):
            rank, low = divmod(value - base, 1 << _DOMAIN_BITS)
            return Gpu((block << _DOMAIN_BITS) + low, rank)
    raise ValueError(f"{ip} is outside the address plan")


def rail_name(index: int) -> str:
    """Return the name of a rail in a plane, by the index of its switch: rail1, rail1p1; the single switch is rail0."""
    plane, rank = divmod(index, MAX_RAILS)
    return f"rail{rank}p{plane}" if plane else f"rail{rank}"


def rank_prefixes(rank: int, domains: int) -> tuple[str, ...]:
    """Return the prefixes that hold every GPU of a rank: one up to 512 domains, two above."""
    blocks = 1 if domains <= 1 << _DOMAIN_BITS else 2
    return tuple(f"{IPv4Address(base + (rank << _DOMAIN_BITS))}/{32 - _DOMAIN_BITS}" for base in BLOCKS[:blocks])


def rank_mac(rank: int) -> tuple[str, str]:
    """Return (value, mask) of an eth_dst match for the rail interface of every GPU of a rank."""
    return f"02:{_SIDE_OCTET['rail']:02x}:00:00:{rank:02x}:00", "ff:ff:00:00:ff:ff"


RAIL_DPID: Final = 0x1000
SPINE_DPID: Final = 0x2000
SINGLE_DPID: Final = 0x3000
OPTICAL_DPID: Final = 0x4000
LEAF_DPID: Final = 0x5000
CORE_DPID: Final = 0x6000
UPLINK_PORT: Final = 2001
# above the ports of GPUs: leaves and core switches number their ports to other switches from here
LEAF_UPLINK_PORT: Final = 0xF000
OPTICAL_RAILS: Final = 64
NETWORK_PORT_OFFSET: Final = 0x4000

SwitchRole = Literal["rail", "spine", "single", "optical", "leaf", "core"]
GPU_SWITCHES: Final = ("rail", "single", "leaf")  # roles of switches that GPUs' rail links lead to
GRAPH_ROLES: Final = ("leaf", "core")  # of a kind that is a graph (graph.py): with GPUs, and without
_ROLES: Final[dict[int, SwitchRole]] = {
    RAIL_DPID: "rail",
    SPINE_DPID: "spine",
    SINGLE_DPID: "single",
    OPTICAL_DPID: "optical",
    LEAF_DPID: "leaf",
    CORE_DPID: "core",
}


_TITLES: Final[dict[SwitchRole, str]] = {"rail": "rail switch", "single": "switch", "optical": "optical switch"}


def switch_title(role: SwitchRole, name: str) -> str:
    """Return what messages call such a switch. One of a graph is called by its name, without the number: "leaf"."""
    return _TITLES.get(role, name.rstrip("0123456789"))


def role_of(dpid: int) -> tuple[SwitchRole, int]:
    """Return (role, index) of a datapath id. ValueError for one that isn't in the scheme."""
    role = _ROLES.get(dpid & ~0xFFF)
    index = dpid & 0xFFF
    if role is None or (role == "single" and index % MAX_RAILS):
        raise ValueError(f"datapath id {dpid:#x} is none of a switch of this scheme")
    return role, index


def plane_of(dpid: int) -> int:
    """Return the plane of a switch that GPUs' rail links lead to: 0 unless GPUs have several."""
    role, index = role_of(dpid)
    return index // MAX_RAILS if role in ("rail", "single") else 0


def port_of(role: SwitchRole, gpu: Gpu) -> int:
    """Return the port of a rail switch, of the single switch, or of a leaf, that leads to this GPU."""
    return 1 + gpu.domain * MAX_RAILS + gpu.rank if role in ("single", "leaf") else 1 + gpu.domain


def gpu_port(gpu: Gpu) -> int:
    """Return the port of an optical switch that this GPU's own cable goes into."""
    return 1 + gpu.domain * OPTICAL_RAILS + gpu.rank


def network_port(gpu: Gpu) -> int:
    """Return the port of an optical switch whose cable leads to this GPU's place in the network."""
    return gpu_port(gpu) + NETWORK_PORT_OFFSET


def gpu_of_optical_port(port: int) -> Gpu:
    """Return the GPU whose own cable, or whose place in the network, is at a port of an optical switch."""
    if port > NETWORK_PORT_OFFSET:
        port -= NETWORK_PORT_OFFSET
    return Gpu(*divmod(port - 1, OPTICAL_RAILS))


def gpu_at(dpid: int, port: int) -> Gpu | None:
    """Return the GPU on a switch's port; None for one to another switch, and at optical switches, which reconfigure."""
    role, index = role_of(dpid)
    if role == "single" or (role == "leaf" and port < LEAF_UPLINK_PORT):
        return Gpu(*divmod(port - 1, MAX_RAILS))
    if role == "rail" and port < UPLINK_PORT:
        return Gpu(port - 1, index % MAX_RAILS)
    return None
