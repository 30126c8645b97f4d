"""What nodes are asked to do, and what each tells of it afterwards: plain data, for Railyard's engine and for others'.

Units: bytes, seconds; times in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import InstanceOf

from railyard.core.errors import BadInput, CheckFailed
from railyard.core.worker import Message
from railyard.topologies.build import namespaces
from railyard.workloads.allreduce.balancing.costs import Rail

_IDLE_HEARTBEATS = 10
Address = tuple[str, int]
SocketMaker = Callable[[int], socket.socket]
"""Makes a socket for a rail, by its number: the place to enter a namespace first."""


def plain_socket(_rail: int) -> socket.socket:
    """A socket where this process is."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


class GroupBroken(CheckFailed):
    """The group can do no more: why is the same on every rank that could be told."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, and beats that may be missing. `missed_heartbeats` * `heartbeat_s` is what finding a cut NIC takes in
    an operation that lasts; ten times that, if operations are short and leave its rail idle."""

    heartbeat_s: float = 0.01
    missed_heartbeats: int = 3
    stall_s: float = 0.25
    join_s: float = 20.0
    operation_s: float = 60.0

    def next_heartbeat(self, begins: float, scheduled: float, latest: float) -> float:
        """When to beat next, as an operation begins: `scheduled` is when it would have been, `latest` the last beat."""
        return min(max(scheduled, begins + self.heartbeat_s), latest + _IDLE_HEARTBEATS * self.heartbeat_s)

    def dilated(self, factor: float) -> "Timeouts":
        """Where time passes so many times slower: rails too carry so many times fewer beats."""
        return replace(
            self,
            heartbeat_s=self.heartbeat_s * factor,
            stall_s=self.stall_s * factor,
            operation_s=self.operation_s * factor,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """`nodes[rail][rank]`; `aggregators[rail]`, None where the rail has none. `group` keeps strangers apart."""

    rails: tuple[Rail, ...]
    nodes: tuple[tuple[Address, ...], ...]
    aggregators: tuple[Address | None, ...]
    group: int = 0

    def __post_init__(self) -> None:
        if not self.rails:
            raise BadInput("rails", [], "must have one rail or more")
        if len({len(row) for row in self.nodes}) != 1 or not self.nodes[0]:
            raise BadInput(
                "nodes", [len(row) for row in self.nodes], "must be the same number, 1 or more, on each rail"
            )
        for rail, address in zip(self.rails, self.aggregators, strict=True):
            if rail.sums_in_network != (address is not None):
                raise BadInput(
                    f"rails.{rail.name}", address, "needs an aggregator if and only if it sums in the network"
                )

    @property
    def size(self) -> int:
        """Nodes."""
        return len(self.nodes[0])

    @property
    def trees(self) -> frozenset[int]:
        return frozenset(rail for rail, address in enumerate(self.aggregators) if address is not None)


def loopback(rails: Sequence[Rail], nodes: int, first_port: int, group: int = 0) -> Layout:
    """A rail is a row of 127.64.0.0/10: node n of rail r is 127.(64 + r).n.1, its aggregator 127.(64 + r).255.1."""
    if nodes > 254 or len(rails) > 64:
        raise BadInput("nodes, rails", (nodes, len(rails)), "can be 254 and 64 at most on loopback addresses")
    return Layout(
        tuple(rails),
        tuple(tuple((f"127.{64 + r}.{n}.1", first_port) for n in range(nodes)) for r in range(len(rails))),
        tuple((f"127.{64 + r}.255.1", first_port) if rail.sums_in_network else None for r, rail in enumerate(rails)),
        group,
    )


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Where a process works: a namespace, and its interface on each rail; both None for loopback."""

    namespace: str | None = None
    devices: tuple[str, ...] | None = None

    def enter(self) -> None:
        if self.namespace is not None:
            namespaces.enter(self.namespace)

    def socket_maker(self) -> SocketMaker:
        """Sockets that use a rail's NIC and no other, also where routes say otherwise."""
        devices = self.devices
        if devices is None:
            return plain_socket

        def bound_socket(rail: int) -> socket.socket:
            sock = plain_socket(rail)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, devices[rail].encode())
            except OSError:  # the NIC is gone: that is asked for many times a second
                sock.close()
                raise
            return sock

        return bound_socket


def pin_to_core(number: int) -> None:
    """Let a node keep to one of the processors, in turn, as each has its own in a cluster. Else it's chance, who shares
    one with whom: by that alone an operation of 1 ms took half as long again in one run as in the next.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


@dataclass(frozen=True, slots=True)
class NodeTask:
    rank: int
    layout: Layout
    policy: str
    timeouts: Timeouts
    placement: ProcessPlacement = ProcessPlacement()


@dataclass(frozen=True, slots=True)
class AggregatorTask:
    rail: int
    layout: Layout
    placement: ProcessPlacement = ProcessPlacement()


@dataclass(frozen=True, slots=True)
class Operations:
    """`count` times the same collective, one after the other, of `size_bytes` of `dtype` on each node.

    Rank r's input of operation i comes from `seed`, r and i (inputs.py). `check`: compare each result with numpy's sum,
    after its time was taken. `gap_s`: how long a node computes (sleeps) before each operation. `policy`: what
    Railyard's engine plans by from then on, as before if empty; others' engines have none.
    """

    collective: str
    dtype: str
    size_bytes: int
    count: int
    seed: int
    check: bool = False
    gap_s: float = 0.0
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Migration:
    """Rails that died and whose work moved, as one node saw it: seconds of CLOCK_MONOTONIC."""

    rails: tuple[int, ...]
    frozen_at: float
    decided_at: float


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one node tells of `Operations`: a list has an entry an operation, a row an entry a rail.

    `wrong`: elements that differ from numpy's sum (of floats: inputs.py says by how much), 0 without `check`. `shares`:
    the bytes of its buffer that each rail was given; `rail_seconds`: from this node's start until the last of a rail's
    jobs was done here, 0 if nothing came in on it. `migrations`: those since the report before. `dead_rails`: those
    that don't stand now; of an engine that has no rails to tell of, none. `copies`: bytes moved in memory beside the
    sums, by why.
    `rail_bytes_over_time`: (ns, bytes by rail that this node sent and received so far). `errors`: what ended it early;
    then the lists are shorter than `count`.
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
    """Of each operation that all ranks ended: from the first start to the last end."""
    starts = zip(*(report.starts_ns for report in reports), strict=False)
    ends = zip(*(report.ends_ns for report in reports), strict=False)
    return [(max(end) - min(start)) / 1e9 for start, end in zip(starts, ends, strict=False)]


class Join(Message):
    """Join the group as a node, or listen as an aggregator: Ready, or Failed."""

    kind: Literal["join"] = "join"
    task: InstanceOf[NodeTask] | InstanceOf[AggregatorTask]


class Run(Message):
    """Do operations: Report."""

    kind: Literal["run"] = "run"
    operations: InstanceOf[Operations]


class Report(Message):
    """What a node reports of operations."""

    kind: Literal["report"] = "report"
    report: InstanceOf[RankReport]
