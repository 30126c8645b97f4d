"""What a switch should forward, as plain data: `flows_of(dpid, ports)`.

Everything follows from the datapath id and the port numbers (table in topologies/plan.py), so the controller needs no
configuration and works for any fabric, Mininet script or port that comes and goes.

- a rail switch sends eth_dst of its own rank's GPUs out of their ports, and all else up: a select group over the spines,
  which hashes addresses and ports, so that a connection stays on one spine (ECMP);
- a spine looks only at the rank in eth_dst;
- the single switch knows every GPU.
What matches nothing is dropped: no learning, no flooding, no packet to the controller.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from topologies.addresses import MAX_RAILS, Gpu, rank_mac
from topologies.plan import RAIL_DPID, SINGLE_DPID, SPINE_DPID, UPLINK_PORT, SwitchRole

ANY_GPU: Final = ("02:52:00:00:00:00", "ff:ff:00:00:00:00")
EXACT: Final = "ff:ff:ff:ff:ff:ff"
UPLINK_GROUP: Final = 1
GPU_PRIORITY: Final = 200
UPLINK_PRIORITY: Final = 100


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """Frames whose eth_dst matches (value, mask) go out of `port`, or to `group` where that is set."""

    eth_dst: str
    mask: str
    priority: int
    port: int | None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """All of a switch: its flows, and the ports of its select group (empty: the group drops)."""

    flows: frozenset[Flow]
    uplinks: tuple[int, ...] | None = None


def role_of(dpid: int) -> tuple[SwitchRole, int]:
    """(role, index) of a datapath id. ValueError for one that isn't in the scheme."""
    for base, role in ((SINGLE_DPID, "single"), (SPINE_DPID, "spine"), (RAIL_DPID, "rail")):
        if base <= dpid < base + 0x1000:
            return role, dpid - base  # type: ignore[return-value]
    raise ValueError(f"datapath id {dpid:#x} is none of a rail, spine or single switch")


def gpu_at(dpid: int, port: int) -> Gpu | None:
    """The GPU on a switch's port; None if the port leads to another switch."""
    role, index = role_of(dpid)
    if role == "spine" or port >= UPLINK_PORT and role == "rail":
        return None
    return Gpu(port - 1, index) if role == "rail" else Gpu(*divmod(port - 1, MAX_RAILS))


def flows_of(dpid: int, ports: Iterable[int], dead_spines: frozenset[int] = frozenset()) -> Tables:
    """The tables of a switch that has these ports up."""
    role, _ = role_of(dpid)
    here = sorted(ports)
    if role == "spine":
        return Tables(frozenset(Flow(*rank_mac(port - 1), GPU_PRIORITY, port) for port in here))
    gpus = {port: gpu for port in here if (gpu := gpu_at(dpid, port))}
    flows = {Flow(gpu.mac("rail"), EXACT, GPU_PRIORITY, port) for port, gpu in gpus.items()}
    uplinks = [port for port in here if port not in gpus]
    if not uplinks:
        return Tables(frozenset(flows))
    up = tuple(port for port in uplinks if port - UPLINK_PORT not in dead_spines)
    return Tables(frozenset(flows | {Flow(*ANY_GPU, UPLINK_PRIORITY, None, UPLINK_GROUP)}), up)


def reconcile(have: frozenset[Flow], want: frozenset[Flow]) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
    """(to delete, to add) so that a switch which kept `have` over a lost connection comes to `want`, and no more."""
    return tuple(sorted(have - want, key=repr)), tuple(sorted(want - have, key=repr))
