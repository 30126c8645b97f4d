"""Bytes that workloads delivered: by kind, and by pair of GPUs."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from railyard.results.runs.records import Flow
from railyard.topologies.addresses import gpu_of_name


class Grid(NamedTuple):
    """M domains of K rails: GPU number n is G(n // K, n % K). `nics`: the rail of each rank, where GPUs share NICs."""

    domains: int
    rails: int
    nics: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.domains * self.rails


def kind_bytes(flows: Iterable[Flow]) -> dict[str, int]:
    """Return delivered bytes by kind."""
    total = Counter[str]()
    for flow in flows:
        total[flow.kind] += flow.delivered
    return dict(total)


def one_repeat(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """Return the flows of the first repeat alone: the others send the same."""
    rows = tuple(flows)
    first = min((flow.repeat for flow in rows), default=0)
    return tuple(flow for flow in rows if flow.repeat == first)


def matrix(flows: Iterable[Flow], grid: Grid) -> NDArray[np.float64]:
    """Return delivered bytes, (GPUs, GPUs), sender by receiver, of one repeat."""
    total = np.zeros((grid.gpus, grid.gpus))
    for flow in one_repeat(flows):
        src = gpu_of_name(flow.src)
        dst = gpu_of_name(flow.dst)
        total[src.domain * grid.rails + src.rank, dst.domain * grid.rails + dst.rank] += flow.delivered
    return total
