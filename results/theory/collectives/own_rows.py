"""Constants of collectives from a user's own nccl-tests output."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.results.theory.collectives.fit import (
    MeasuredCollective,
    constants_error,
    fit,
    links_of,
    platform_constants,
)
from railyard.results.theory.collectives.times import OPERATIONS, CollectiveConstants, Operation, bus_factor
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.cluster.reading import read
from railyard.workloads.cluster.records import Cluster

LEAST_BYTES: Final = 2**20
"""Smaller messages are latency alone, by other protocols."""
LEAST_ROWS: Final = 4
RINGS: Final[tuple[Operation, ...]] = ("all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class OwnCollectives:
    """Constants from `rows` of an output. `error`: mean error of rows, each with constants from every other one."""

    constants: CollectiveConstants
    rows: tuple[MeasuredCollective, ...]
    error: float
    worst_error: float


def read_own(file: str, operation: Operation, platform: str) -> OwnCollectives:
    """Return the constants that an output of nccl-tests gives on a platform's links.

    BadInput if the file has no communicator, or too few rows of the operation.
    """
    cluster = _read(file)
    rows = _rows(cluster, operation, platform, file)
    if len(rows) < LEAST_ROWS:
        names = ", ".join(sorted({row.collective or "unnamed" for row in cluster.bandwidths})) or "none"
        allowed = (
            f"has {len(rows)} rows of {operation} from 1 MiB on, and {LEAST_ROWS} are needed; it has rows of: {names} "
            "(the program's name must be in the output)"
        )
        raise BadInput("--nccl", file, allowed)
    links = links_of(PLATFORMS[platform])
    # rows of the operation itself: no other one's efficiency limits them
    reference = replace(platform_constants(platform), ring_efficiency=inf)
    # each half of the rows is predicted from the other one
    differences: list[float] = []
    for first in (0, 1):
        halved = fit(rows[first::2], links, reference)
        differences += list(constants_error(rows[1 - first :: 2], links, halved))
    errors = np.abs(differences)
    return OwnCollectives(fit(rows, links, reference), tuple(rows), float(np.mean(errors)), float(np.max(errors)))


def ring_constants(file: str, platform: str) -> OwnCollectives:
    """Return the constants of AllGather and ReduceScatter from an output of nccl-tests, of these or of AllReduce.

    Switches that add make an AllReduce faster than these: then they get the efficiency of a ring on the platform.
    """
    collectives = {row.collective for row in _read(file).bandwidths}
    for operation in RINGS:
        if operation in collectives:
            return read_own(file, operation, platform)
    own = read_own(file, "all-reduce", platform)
    ring_efficiency = platform_constants(platform).ring_efficiency
    return replace(own, constants=replace(own.constants, ring_efficiency=ring_efficiency))


def _read(file: str) -> Cluster:
    """Return what an output says. BadInput names the option that the file is from."""
    try:
        return read([file])
    except BadInput as error:
        field = error.field
        if field == "FILE":
            field = "--nccl"
        raise BadInput(field, error.value, error.allowed) from error


def _rows(cluster: Cluster, operation: Operation, platform: str, file: str) -> list[MeasuredCollective]:
    """Return the rows of an operation, with the time that their bus bandwidth gives."""
    if not cluster.communicators:
        raise BadInput("--nccl", file, "names no ranks: let nccl-tests print them, or NCCL with NCCL_DEBUG=INFO")
    # nccl-tests runs on all ranks that it was started with
    communicator = cluster.communicators[0]
    hosts = len(communicator.hosts)
    gpus = communicator.size
    if not hosts or gpus % hosts:
        raise BadInput("--nccl", file, f"has {gpus} ranks on {hosts} hosts: as many on each are needed")
    rows: list[MeasuredCollective] = []
    for row in cluster.bandwidths:
        if row.collective != operation or row.bytes < LEAST_BYTES or not row.bus_bps:
            continue
        # the reader keeps bandwidths, which have as many digits as the time
        seconds = float(bus_factor(operation, gpus)) * row.bytes / (row.bus_bps / 8)
        rows.append(MeasuredCollective(file, platform, operation, gpus // hosts, hosts, row.bytes, seconds))
    return sorted(rows, key=lambda row: row.size)


def operation_named(name: str) -> Operation:
    """Return the operation of a name. BadInput if there is none."""
    if name not in OPERATIONS:
        raise BadInput("--collective", name, unknown_name_hint(name, OPERATIONS))
    return name


def group_of(rows: Sequence[MeasuredCollective]) -> tuple[int, int]:
    """Return the GPUs of all rows, and of one host."""
    return rows[0].x * rows[0].y, rows[0].x
