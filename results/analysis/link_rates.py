"""Rates over time, from the bytes that transfers delivered and the paths of the fabric's policy."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from railyard.core.errors import BadInput
from railyard.results.runs.records import Flow, Run
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.matrix.traffic_matrix import ways

Numbers = npt.NDArray[np.integer[Any]]
_BINS: Final = 500  # of a workload's goodput
_LINK_BINS: Final = 100


def delivered(flows: Sequence[Flow]) -> list[tuple[int, float]]:
    """Return (ns, bit/s) of the bytes that arrived, as if those of a transfer arrived evenly from its start to its end.

    At most 500 bins and a zero at the end.
    """
    start, end = _times(flows)
    return _rates(start, end, _bits(flows), _BINS)


def link_rates(flows: Sequence[Flow], fabric: FabricSpec) -> Iterator[tuple[str, str, list[tuple[int, float]]]]:
    """Yield GPU, link with direction, and its (ns, bit/s), of payload: each link of a GPU that some transfer uses.

    Transfers take the paths of the fabric's policy.
    """
    # right where nothing is broken and no scores steer
    numbers = {Gpu(*divmod(number, fabric.rails)).name: number for number in range(fabric.gpus)}
    # a record may have been changed: its GPUs need not be of this fabric
    flows = [flow for flow in flows if flow.src in numbers and flow.dst in numbers]
    start, end = _times(flows)
    bits = _bits(flows)
    src = np.array([numbers[flow.src] for flow in flows], dtype=np.int64)
    dst = np.array([numbers[flow.dst] for flow in flows], dtype=np.int64)
    used: dict[str, list[tuple[Numbers, Numbers, npt.NDArray[np.float64]]]] = {}  # GPUs, flows, and the parts of these
    for share, enter, leave in ways(src, dst, fabric.rails, fabric):
        for link, gpus, carries in (
            ("to the HB domain", src, src != enter),
            ("from the HB domain", enter, src != enter),
            ("to the rail", enter, enter != leave),
            ("from the rail", leave, enter != leave),
            ("to the HB domain", leave, leave != dst),
            ("from the HB domain", dst, leave != dst),
        ):
            chosen = np.flatnonzero(carries & (share > 0))
            used.setdefault(link, []).append((gpus[chosen], chosen, share[chosen]))
    for link, parts in used.items():
        gpus, chosen, shares = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(gpus, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(gpus[order])) + 1):
            if len(places):
                name = Gpu(*divmod(int(gpus[places[0]]), fabric.rails)).name
                of_gpu = chosen[places]
                yield name, link, _rates(start[of_gpu], end[of_gpu], bits[of_gpu] * shares[places], _LINK_BINS)


def fabric_specs(run: Run) -> dict[str, FabricSpec]:
    """Return the specification of each fabric of GPUs that was built, by label; none if its plugin isn't loaded."""
    gpu_fabrics = [part for part in run.experiment.fabrics if part.get("kind") != "multi-rail"]
    specs = dict[str, FabricSpec]()
    for fabric, part in zip(run.fabrics, gpu_fabrics, strict=False):
        with suppress(BadInput):
            specs[fabric.label] = parse_fabric(part)
    return specs


def _times(flows: Sequence[Flow]) -> tuple[Numbers, Numbers]:
    start = np.array([flow.start_ns for flow in flows], dtype=np.int64)
    end = np.array([flow.end_ns for flow in flows], dtype=np.int64)
    return start, end


def _bits(flows: Sequence[Flow]) -> npt.NDArray[np.float64]:
    return 8.0 * np.array([flow.delivered for flow in flows])


def _rates(start: Numbers, end: Numbers, bits: npt.NDArray[np.float64], most: int) -> list[tuple[int, float]]:
    """Return (ns, bit/s) of transfers, in at most so many bins of equal length, and a zero at the end."""
    if not len(start):
        return []
    begin = int(start.min())
    last = int(end.max())
    if begin >= last:
        return []
    # bits until each edge: of a transfer the part of its time that has passed
    edges = np.linspace(begin, last, min(most, max(2, len(start))) + 1)
    rate = bits / np.maximum(1, end - start)
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    until = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(at[order]))])
    rates = np.diff(np.interp(edges, at[order], until)) / np.diff(edges) * 1e9
    # rounding of the sums can leave slightly less than nothing where no transfer was under way
    points = list(zip(edges[:-1].astype(np.int64).tolist(), np.maximum(0.0, rates).tolist(), strict=True))
    return [*points, (last, 0.0)]
