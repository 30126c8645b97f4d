"""What nodes are asked to do, and what each tells of it afterwards: plain data, for Railyard's engine and for others'.

Units: bytes, seconds; times in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import InstanceOf

from railyard.core.worker import Message
from railyard.workloads.allreduce.transport.placement import AggregatorTask, NodeTask


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
