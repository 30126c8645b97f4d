"""Routes while parts of a fabric are dead, as the controller and the switches choose them.

The controller decides over which GPUs, rails and planes a pair sends (controller/failover/detours.py), a rail switch
over which spines (controller/openflow/flows.py); switches of a graph take its shortest paths (topologies/graph.py).
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from railyard.controller.failover.detours import Broken, choose, living_planes
from railyard.controller.openflow.flows import Ports, uplinks_to
from railyard.failure.faults.support.impact import Cable, Impact, cable
from railyard.failure.pairs import broken_by
from railyard.topologies.addresses import UPLINK_PORT, Gpu
from railyard.topologies.forwarding import Path, Shares, rail_ends
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import Numbers
from railyard.workloads.matrix.traffic_matrix import Way


@dataclass(frozen=True)
class DeadParts:
    """Dead parts of a fabric. `broken`: as the controller has them. `nodes`, `cables`: by name, as in the plan."""

    broken: Broken
    nodes: frozenset[str]
    cables: frozenset[Cable]

    def cuts(self, near: str, far: str) -> bool:
        """Return whether the cable between two nodes is dead, or either node."""
        return near in self.nodes or far in self.nodes or cable(near, far) in self.cables


ALL_ALIVE: Final = DeadParts(Broken(), frozenset(), frozenset())


def dead_parts(impact: Impact, plan: Plan) -> DeadParts | None:
    """Return the dead parts of an impact; None if it has none."""
    if not (impact.nodes or impact.cables):
        return None
    # slow and lossy cables keep their traffic
    broken = broken_by(Impact(impact.nodes, impact.cables), plan)
    dead_ports = set(broken.hb)
    for gpu in plan.gpus:
        bridge = plan.network_end(gpu, "hb").node
        if gpu.name in impact.nodes or bridge in impact.nodes:
            dead_ports.add(gpu)
    return DeadParts(replace(broken, hb=frozenset(dead_ports)), impact.nodes, impact.cables)


def ways_around(src: Numbers, dst: Numbers, fabric: FabricSpec, broken: Broken) -> list[Way]:
    """Return the paths of pairs of GPU numbers while parts are dead, in the form of `traffic_matrix.ways`."""
    shares_of_pairs: list[Shares] = []
    for near, far in zip(src.tolist(), dst.tolist(), strict=True):
        shares_of_pairs.append(_shares_around(_gpu(near, fabric), _gpu(far, fabric), fabric, broken))
    most_paths = max(1, max(map(len, shares_of_pairs), default=1))
    share = np.zeros((most_paths, len(src)))
    enter = np.zeros((most_paths, len(src)), dtype=np.int64)
    leave = np.zeros((most_paths, len(src)), dtype=np.int64)
    # a pair that has fewer paths, or none, has shares of 0 there
    enter[:] = src
    leave[:] = dst
    for pair, shares in enumerate(shares_of_pairs):
        total = sum(weight for _, weight in shares)
        for number, (path, weight) in enumerate(shares):
            share[number, pair] = weight / total
            enter[number, pair], leave[number, pair] = _rail_ends(path, int(src[pair]), int(dst[pair]), fabric)
    return [Way(share[number], enter[number], leave[number]) for number in range(most_paths)]


def _gpu(number: int, fabric: FabricSpec) -> Gpu:
    return Gpu(*divmod(number, fabric.rails))


def _shares_around(src: Gpu, dst: Gpu, fabric: FabricSpec, broken: Broken) -> Shares:
    """Return the paths of a pair while parts are dead; () also for a pair without a path on the intact fabric."""
    if not fabric.paths(src, dst):
        return ()
    return choose(fabric, src, dst, broken)


def _rail_ends(path: Path, src: int, dst: int, fabric: FabricSpec) -> tuple[int, int]:
    """Return the numbers of the GPUs at the ends of a path's rail hop; twice the source if it has none."""
    if path.kind == "d":
        return src, src
    near, far = rail_ends(path, _gpu(src, fabric), _gpu(dst, fabric))
    return near.domain * fabric.rails + near.rank, far.domain * fabric.rails + far.rank


def planes_around(way: Way, planes: Numbers, fabric: FabricSpec, broken: Broken) -> Numbers:
    """Return the plane of each flow while parts are dead. `planes`: of each flow on the intact fabric."""
    chosen = planes.copy()
    for flow in np.flatnonzero((way.share > 0) & (way.enter != way.leave)).tolist():
        near = _gpu(int(way.enter[flow]), fabric)
        far = _gpu(int(way.leave[flow]), fabric)
        living = living_planes(near, far, broken, fabric.definition)
        if living and chosen[flow] not in living:
            chosen[flow] = living[chosen[flow] % len(living)]
    return chosen


def living_uplinks(near_rail: int, far_rail: int, fabric: FabricSpec, dead: DeadParts) -> tuple[int, ...]:
    """Return the numbers of the spines over which the switch of a rail reaches another rail."""
    switches = [fabric.definition.rail_switch(rail).name for rail in range(fabric.rail_count)]
    ports_of_spine: dict[int, Ports] = {}
    for number, spine in enumerate(fabric.definition.spines(fabric.spine_count)):
        ports: dict[int, bool] = {}
        # a dead spine has no ports, as the switches have it
        if spine.name not in dead.nodes:
            for rail, switch in enumerate(switches):
                ports[rail + 1] = not dead.cuts(switch, spine.name)
        ports_of_spine[number] = ports
    uplinks = tuple(UPLINK_PORT + number for number in ports_of_spine)
    usual = uplinks_to(near_rail, uplinks, ports_of_spine)
    return tuple(port - UPLINK_PORT for port in uplinks_to(far_rail, usual, ports_of_spine))
