"""Settings, requests and reports of an engine's processes: plain data, for Railyard's engine and for others.

Units: bytes, seconds; times in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np
from pydantic import InstanceOf

from railyard.core.errors import BadInput, CheckFailed, unknown_name_hint
from railyard.core.worker import Message
from railyard.topologies.build import namespaces
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.tasks import PIECE_BYTES, dtype_code

Collective = Literal["allreduce", "reduce_scatter", "all_gather", "broadcast"]
COLLECTIVES: Final = get_args(Collective)
_IDLE_HEARTBEATS: Final = 10
Address = tuple[str, int]
SocketMaker = Callable[[int], socket.socket]  # function that makes a socket for a rail, by its number


class GroupBroken(CheckFailed):
    """Failure of a group, which can do no more. Every rank that a message can still reach raises the same one."""


def plain_socket(_rail: int) -> socket.socket:
    """Return a TCP socket that is bound to nothing."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of a group in seconds. A rail on which `missed_heartbeats` are missing is dead."""

    heartbeat_s: float = 0.01
    missed_heartbeats: int = 3
    stall_s: float = 0.25
    join_s: float = 20.0
    operation_s: float = 60.0

    def next_heartbeat(self, begins: float, scheduled: float, latest: float) -> float:
        """Return when to send the next heartbeat, as an operation begins.

        `latest`: when the last one was sent.
        """
        # short operations are signs of life too: with them heartbeats are ten times as rare
        return min(max(scheduled, begins + self.heartbeat_s), latest + _IDLE_HEARTBEATS * self.heartbeat_s)

    def dilated(self, factor: float) -> "Timeouts":
        """Return the limits for a fabric whose rates are divided by `factor`."""
        heartbeat_s = self.heartbeat_s * factor
        stall_s = self.stall_s * factor
        operation_s = self.operation_s * factor
        return replace(self, heartbeat_s=heartbeat_s, stall_s=stall_s, operation_s=operation_s)


@dataclass(frozen=True, slots=True)
class Layout:
    """Addresses of a group: `nodes[rail][rank]`, and `aggregators[rail]`, None where the rail has none.

    Connections of another `group` number are refused. `piece_bytes`: of the longest piece.
    """

    rails: tuple[Rail, ...]
    nodes: tuple[tuple[Address, ...], ...]
    aggregators: tuple[Address | None, ...]
    group: int = 0
    piece_bytes: int = PIECE_BYTES

    def __post_init__(self) -> None:
        if not self.rails:
            raise BadInput("rails", [], "must have one rail or more")
        counts = [len(row) for row in self.nodes]
        if len(set(counts)) != 1 or not self.nodes[0]:
            raise BadInput("nodes", counts, "must be the same number, 1 or more, on each rail")
        for rail, address in zip(self.rails, self.aggregators, strict=True):
            if rail.sums_in_network != (address is not None):
                allowed = "needs an aggregator if and only if it sums in the network"
                raise BadInput(f"rails.{rail.name}", address, allowed)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes[0])


def loopback(rails: Sequence[Rail], nodes: int, first_port: int, group: int = 0) -> Layout:
    """Return a layout on loopback: node n of rail r is 127.(64 + r).n.1, the rail's aggregator 127.(64 + r).255.1."""
    if nodes > 254 or len(rails) > 64:
        raise BadInput("nodes, rails", (nodes, len(rails)), "can be 254 and 64 at most on loopback addresses")
    addresses: list[tuple[Address, ...]] = []
    aggregators: list[Address | None] = []
    for number, rail in enumerate(rails):
        network = f"127.{64 + number}"
        addresses.append(tuple((f"{network}.{node}.1", first_port) for node in range(nodes)))
        aggregators.append((f"{network}.255.1", first_port) if rail.sums_in_network else None)
    return Layout(tuple(rails), tuple(addresses), tuple(aggregators), group)


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Place of a process: a namespace, and its interface on each rail; both None for loopback."""

    namespace: str | None = None
    devices: tuple[str, ...] | None = None

    def enter(self, number: int) -> None:
        """Enter the namespace, and stay on one CPU core, by `number` in turn."""
        if self.namespace is not None:
            namespaces.enter(self.namespace)
        # otherwise chance decides which processes share a core, and operations of 1 ms take half as long again
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})

    def socket_maker(self) -> SocketMaker:
        """Return a maker of sockets that use a rail's NIC and no other, even where routes differ."""
        devices = self.devices
        if devices is None:
            return plain_socket

        def bound_socket(rail: int) -> socket.socket:
            sock = plain_socket(rail)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, devices[rail].encode())
            except OSError:
                # the NIC is gone, and this is tried many times a second
                sock.close()
                raise
            return sock

        return bound_socket


@dataclass(frozen=True, slots=True)
class AggregatorTask:
    """Settings of a rail's aggregator."""

    rail: int
    layout: Layout
    placement: ProcessPlacement


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Settings of one rank.

    `timeouts`: by this machine's clock.
    `policy`: of Railyard's engine.

    Of other engines, `rails`: those of the layout's to use; ranks may exchange addresses in `folder`.
    """

    rank: int
    layout: Layout
    placement: ProcessPlacement
    timeouts: Timeouts = Timeouts()
    policy: str = ""
    rails: tuple[int, ...] = ()
    folder: str = ""

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Interfaces of the NICs that the engine is to use."""
        # ranks are on a fabric's nodes
        assert self.placement.devices is not None
        return tuple(self.placement.devices[rail] for rail in self.rails)


@dataclass(frozen=True, slots=True)
class Operations:
    """`count` times the same collective of `size_bytes` of `dtype` on each node, with inputs drawn from `seed`.

    `check`: compare each result with numpy's sum, after its time was taken.
    `gap_s`: how long a node computes (sleeps) before each operation.
    `policy`: of Railyard's engine from then on, as before if empty; other engines ignore it. BadInput if impossible.
    """

    collective: str
    dtype: str
    size_bytes: int
    count: int
    seed: int
    check: bool = False
    gap_s: float = 0.0
    policy: str = ""

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise BadInput("collective", self.collective, unknown_name_hint(self.collective, COLLECTIVES))
        for name, value in (("size_bytes", self.size_bytes), ("count", self.count)):
            if value < 0:
                raise BadInput(name, value, "must be 0 or more")
        try:
            dtype_code(np.dtype(self.dtype))
        except TypeError:
            raise BadInput("dtype", self.dtype, "must be a type that numpy knows") from None


@dataclass(frozen=True, slots=True)
class Migration:
    """Rails that died and whose work moved, as one node saw it, in seconds of CLOCK_MONOTONIC."""

    rails: tuple[int, ...]
    frozen_at: float
    decided_at: float


@dataclass(slots=True)
class RankReport:
    """Report of one node on `Operations`: each list has an entry for an operation, a row an entry for a rail.

    `wrong`: elements that differ from numpy's sum, 0 without `check`.
    `shares`: the bytes of its buffer that each rail was given.
    `rail_seconds`: from this node's start until a rail's last job ended here, 0 if nothing came in on it.
    `migrations`: since the report before.
    `dead_rails`: lost now (none for an engine that does not know its rails).
    `copies`: bytes moved in memory beside the sums, by reason.
    `rail_bytes_over_time`: (ns, bytes by rail, both ways).
    `errors`: what ended the operations early; then the lists are shorter than `count`.
    """

    rank: int
    starts_ns: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    wrong: int = 0
    shares: list[tuple[float, ...]] = field(default_factory=list)
    rail_seconds: list[tuple[float, ...]] = field(default_factory=list)
    migrations: list[Migration] = field(default_factory=list)
    dead_rails: tuple[int, ...] = ()
    copies: Mapping[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    rail_bytes_over_time: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


def latencies_s(reports: Sequence[RankReport]) -> list[float]:
    """Return the seconds of each operation that all ranks ended: from the first start to the last end."""
    # an operation that a rank didn't end is left out
    starts = zip(*(report.starts_ns for report in reports), strict=False)
    ends = zip(*(report.ends_ns for report in reports), strict=False)
    return [(max(end) - min(start)) / 1e9 for start, end in zip(starts, ends, strict=False)]


class Rank(Message):
    """Number of a rank, which it sends as it connects."""

    number: int


class Join(Message):
    """Join the group as a rank, or listen as an aggregator: Ready, or Failed."""

    task: InstanceOf[AggregatorTask] | InstanceOf[RankConfig]


class Run(Message):
    """Do operations: Report."""

    operations: InstanceOf[Operations]


class Report(Message):
    """Report of a rank on operations."""

    report: InstanceOf[RankReport]


class Leave(Message):
    """Leave the group and end."""
