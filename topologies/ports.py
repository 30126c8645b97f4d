"""Which number stands for what at a switch: datapath ids and ports follow rules, so a controller needs no plan.

| switch       | datapath id  | port to a GPU of domain d | port to spine i / rail g / the GPU's place in the network |
|--------------|--------------|---------------------------|-----------------------------------------------------------|
| rail<g>      | 0x1000 + g   | d + 1                     | 2001 + i                                                  |
| spine<i>     | 0x2000 + i   | -                         | g + 1                                                     |
| switch0      | 0x3000       | 1 + d * 256 + g           | -                                                         |
| any, plane p | that + 256 p | as above                  | -                                                         |
| ocs<i>       | 0x4000 + i   | 1 + d * 64 + g            | that + 0x4000                                             |

Nothing but the standard library is imported here: the OpenFlow app reads this under Ryu, in whatever venv that has.
"""

from typing import Final, Literal

from railyard.topologies.addresses import MAX_RAILS, Gpu

RAIL_DPID: Final = 0x1000
SPINE_DPID: Final = 0x2000
SINGLE_DPID: Final = 0x3000
OPTICAL_DPID: Final = 0x4000
UPLINK_PORT: Final = 2001
OPTICAL_RAILS: Final = 64
NETWORK_PORT_OFFSET: Final = 0x4000

SwitchRole = Literal["rail", "spine", "single", "optical"]
_ROLES: Final[dict[int, SwitchRole]] = {
    RAIL_DPID: "rail",
    SPINE_DPID: "spine",
    SINGLE_DPID: "single",
    OPTICAL_DPID: "optical",
}


def role_of(dpid: int) -> tuple[SwitchRole, int]:
    """(role, index) of a datapath id. ValueError for one that isn't in the scheme."""
    role, index = _ROLES.get(dpid & ~0xFFF), dpid & 0xFFF
    if role is None or (role == "single" and index % MAX_RAILS):
        raise ValueError(f"datapath id {dpid:#x} is none of a rail, spine, single or optical switch")
    return role, index


def plane_of(dpid: int) -> int:
    """Return the plane of a switch that GPUs' rail links lead to: 0 unless GPUs have several."""
    role, index = role_of(dpid)
    return index // MAX_RAILS if role in ("rail", "single") else 0


def port_of(role: SwitchRole, gpu: Gpu) -> int:
    """Return the port of a rail switch, or of the single switch, that leads to this GPU."""
    return 1 + gpu.domain * MAX_RAILS + gpu.rank if role == "single" else 1 + gpu.domain


def gpu_port(gpu: Gpu) -> int:
    """The port of an optical switch that this GPU's own cable goes into."""
    return 1 + gpu.domain * OPTICAL_RAILS + gpu.rank


def network_port(gpu: Gpu) -> int:
    """The port of an optical switch whose cable leads to this GPU's place in the network."""
    return gpu_port(gpu) + NETWORK_PORT_OFFSET


def gpu_of_optical_port(port: int) -> Gpu:
    """Whose fibre, or whose place in the network, is at a port of an optical switch."""
    return Gpu(*divmod(port - 1 - (NETWORK_PORT_OFFSET if port > NETWORK_PORT_OFFSET else 0), OPTICAL_RAILS))


def gpu_at(dpid: int, port: int) -> Gpu | None:
    """The GPU on a switch's port; None if the port leads to another switch, or is an optical switch's: who is at which
    of those changes, and an address says nothing there.
    """
    role, index = role_of(dpid)
    if role == "single":
        return Gpu(*divmod(port - 1, MAX_RAILS))
    return Gpu(port - 1, index % MAX_RAILS) if role == "rail" and port < UPLINK_PORT else None
