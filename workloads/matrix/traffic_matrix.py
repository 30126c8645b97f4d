"""Traffic matrices of a schedule: who sends how much to whom, of which kind, and through which ports it goes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.pace import gpu_hops
from railyard.workloads.schedule import Schedule

Matrix = npt.NDArray[np.int64]


def traffic_matrix(schedule: Schedule, kind: str | None = None) -> Matrix:
    """Payload bytes from row to column, by GPU number; of one kind, or of all."""
    matrix = np.zeros((schedule.gpus, schedule.gpus), dtype=np.int64)
    for _, t in schedule.transfers:
        if kind is None or schedule.phases[t.phase].kind == kind:
            matrix[t.src, t.dst] += t.bytes
    return matrix


def bytes_by_kind(schedule: Schedule) -> dict[str, int]:
    """Payload bytes that all GPUs together send, of each kind that occurs."""
    total: dict[str, int] = {}
    for _, t in schedule.transfers:
        kind = schedule.phases[t.phase].kind
        total[kind] = total.get(kind, 0) + t.bytes
    return total


def cross_rail_bytes(schedule: Schedule) -> int:
    """Payload between GPUs that differ in rank and in domain: what only spines, or forwarding, can carry.

    Rail-only section III-B: none for dense LLMs.
    """
    k = schedule.rails
    return sum(n for (s, d), n in schedule.matrix.items() if s // k != d // k and s % k != d % k)


@dataclass(frozen=True)
class PortBytes:
    """Payload bytes through each GPU's interfaces, by GPU number, forwarded traffic included."""

    rail_in: Matrix
    rail_out: Matrix
    hb_in: Matrix
    hb_out: Matrix


def port_bytes(schedule: Schedule, fabric: FabricSpec) -> PortBytes:
    """What each port should carry in all, if every pair takes the policy's paths from beginning to end."""
    return port_bytes_of(schedule.matrix, schedule.gpus, schedule.rails, fabric)


def port_bytes_of(sizes: Mapping[tuple[int, int], int], gpus: int, rails: int, fabric: FabricSpec) -> PortBytes:
    """The same for `sizes` of pairs (src, dst). Pairs with several paths are split by their weights."""
    ports = PortBytes(*(np.zeros(gpus, dtype=np.int64) for _ in range(4)))
    for (src, dst), size in sizes.items():
        for share, path in gpu_hops(src, dst, rails, fabric):
            part = round(share * size)
            for a, b, side in path:
                outs, ins = (ports.hb_out, ports.hb_in) if side == "hb" else (ports.rail_out, ports.rail_in)
                outs[a] += part
                ins[b] += part
    return ports
