"""Which number stands for what at a switch: datapath ids and ports follow rules, so a controller needs no plan.

| switch       | datapath id  | port to a GPU of domain d | port to spine i / rail g |
|--------------|--------------|---------------------------|--------------------------|
| rail<g>      | 0x1000 + g   | d + 1                     | 2001 + i                 |
| spine<i>     | 0x2000 + i   | -                         | g + 1                    |
| switch0      | 0x3000       | 1 + d * 256 + g           | -                        |

Nothing but the standard library is imported here: the OpenFlow app reads this under Ryu, in whatever venv that has.
"""

from typing import Final, Literal

from topologies.addresses import MAX_RAILS, Gpu

RAIL_DPID: Final = 0x1000
SPINE_DPID: Final = 0x2000
SINGLE_DPID: Final = 0x3000
UPLINK_PORT: Final = 2001

SwitchRole = Literal["rail", "spine", "single"]
_ROLES: Final[dict[int, SwitchRole]] = {RAIL_DPID: "rail", SPINE_DPID: "spine", SINGLE_DPID: "single"}


def role_of(dpid: int) -> tuple[SwitchRole, int]:
    """(role, index) of a datapath id. ValueError for one that isn't in the scheme."""
    role, index = _ROLES.get(dpid & ~0xFFF), dpid & 0xFFF
    if role is None or (role == "single" and index):
        raise ValueError(f"datapath id {dpid:#x} is none of a rail, spine or single switch")
    return role, index


def rail_port(gpu: Gpu) -> int:
    """The port of a rail switch that leads to this GPU of its rank."""
    return gpu.domain + 1


def single_port(gpu: Gpu) -> int:
    """The port of the single switch that leads to this GPU."""
    return 1 + gpu.domain * MAX_RAILS + gpu.rank


def gpu_at(dpid: int, port: int) -> Gpu | None:
    """The GPU on a switch's port; None if the port leads to another switch."""
    role, index = role_of(dpid)
    if role == "single":
        return Gpu(*divmod(port - 1, MAX_RAILS))
    return Gpu(port - 1, index) if role == "rail" and port < UPLINK_PORT else None
