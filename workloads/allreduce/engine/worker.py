"""The process of one node, or of one aggregator: it enters its namespace, joins, and does what it is asked.

Its messages are those of jobs.py: Join, and then, for a node, Run as often as needed. An aggregator serves until it is
ended.
"""

import ctypes
import gc
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.worker import Failed, Parent, Ready
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import (
    AggregatorTask,
    GroupBroken,
    Join,
    NodeTask,
    Operations,
    RankReport,
    Report,
    Run,
    pin_to_core,
)
from railyard.workloads.allreduce.engine.tasks import Array, dtype_code
from railyard.workloads.allreduce.peers.rank_config import Engine, RankConfig
from railyard.workloads.allreduce.transport.aggregator import Aggregator

COLLECTIVES: Final = ("allreduce", "reduce_scatter", "all_gather", "broadcast")
ROOT: Final = 0
"""Of a broadcast."""
_SUM_DTYPES: Final = {"e": np.float64, "f": np.float64, "d": np.longdouble, "F": np.complex128, "D": np.clongdouble}


def checked(operations: Operations) -> np.dtype[Any]:
    """The type of its elements. BadInput for what nobody can run."""
    if operations.collective not in COLLECTIVES:
        raise BadInput("collective", operations.collective, unknown_name_hint(operations.collective, COLLECTIVES))
    for field, value in (("size_bytes", operations.size_bytes), ("count", operations.count)):
        if value < 0:
            raise BadInput(field, value, "must be 0 or more")
    try:
        dtype = np.dtype(operations.dtype)
    except TypeError:
        raise BadInput("dtype", operations.dtype, "must be a type that numpy knows") from None
    dtype_code(dtype)
    return dtype


def elements(operations: Operations, nodes: int) -> int:
    """How many a rank puts in: as many as `size_bytes` has room for, of a ReduceScatter the same for each rank."""
    length = operations.size_bytes // checked(operations).itemsize
    return length - length % nodes if operations.collective == "reduce_scatter" else length


def draw_input(operations: Operations, nodes: int, rank: int) -> Array:
    """A rank's elements, as they are in operation 0."""
    dtype, length = checked(operations), elements(operations, nodes)
    random = np.random.default_rng((operations.seed, rank))
    if dtype.kind in "iu":
        return np.frombuffer(random.bytes(length * dtype.itemsize), dtype)
    if dtype.kind == "c":
        return (random.uniform(0.5, 1, length) + 1j * random.uniform(0.5, 1, length)).astype(dtype)
    return random.uniform(0.5, 1, length).astype(dtype)


def expected(operations: Operations, nodes: int, rank: int) -> Array:
    """What operation 0 has to give a rank; operation i gives it moved on by i places, as `rotated` has it."""
    parts = [draw_input(operations, nodes, each) for each in range(nodes)]
    match operations.collective:
        case "all_gather":
            return np.concatenate(parts)
        case "broadcast":
            return parts[ROOT]
    total: Array = reduce(np.add, (part.astype(_SUM_DTYPES.get(part.dtype.char, part.dtype)) for part in parts))
    return total.astype(parts[0].dtype)


def rotated(first: Array, index: int, parts: int = 1) -> Array:
    """Operation `index`'s elements from operation 0's, each of `parts` equal parts on its own. A copy."""
    return np.roll(first.reshape(parts, -1), index, axis=1).reshape(-1)


def outcome(operations: Operations, nodes: int, rank: int, first: Array, index: int) -> Array:
    """What operation `index` has to give a rank, from what `expected` gives it in operation 0."""
    whole = rotated(first, index, nodes if operations.collective == "all_gather" else 1)
    if operations.collective == "reduce_scatter":
        part = len(whole) // nodes
        return whole[rank * part : (rank + 1) * part]
    return whole


def wrong(result: Array, reference: Array, nodes: int) -> int:
    """Elements that aren't as they should be: at all for integers, by over log2 N units in the last place for floats,
    which N summands of 0.5 to 1 added in any order stay within (up to N = 8 always, above nearly so)."""
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return max(result.size, reference.size, 1)
    if result.dtype.kind in "iu":
        return int(np.count_nonzero(result != reference))
    real = np.dtype(result.dtype.char.lower())
    actual, correct = result.view(real), reference.view(real)
    mismatches = ~(np.abs(actual - correct) <= math.ceil(math.log2(max(2, nodes))) * np.spacing(correct))
    return int(np.count_nonzero(mismatches.reshape(len(reference), -1).any(axis=1))) if len(reference) else 0


_PR_SET_TIMERSLACK: Final = 29


def call_of(group: Group, operations: Operations) -> Callable[[Array], Array]:
    """One operation on an array, and its result (of an allreduce or broadcast: in place)."""

    def allreduce(array: Array) -> Array:
        group.allreduce(array)
        return array

    def broadcast(array: Array) -> Array:
        group.broadcast(array, ROOT)
        return array

    calls: dict[str, Callable[[Array], Array]] = {
        "allreduce": allreduce,
        "broadcast": broadcast,
        "all_gather": group.all_gather,
        "reduce_scatter": group.reduce_scatter,
    }
    return calls[operations.collective]


@dataclass
class _Run:
    """`Operations` on one rank, and what is known of them so far."""

    group: Group
    operations: Operations
    report: RankReport
    wrong: int = 0

    def execute(self) -> None:
        request, group, report = self.operations, self.group, self.report
        first = draw_input(request, group.size, group.rank)
        reference = expected(request, group.size, group.rank) if request.check else None
        call, array = call_of(group, request), first.copy()
        for index in range(request.count):
            if request.check:
                array[:] = rotated(first, index)
            if request.gap_s:
                time.sleep(request.gap_s)
            start = time.monotonic_ns()
            result = call(array)
            report.ends_ns.append(time.monotonic_ns())
            report.starts_ns.append(start)
            last = group.last
            report.shares.append(last.shares)
            report.rail_seconds.append(tuple(end - start / 1e9 if end > last.began else 0.0 for end in last.ends))
            if reference is not None:
                self.wrong += wrong(result, outcome(request, group.size, group.rank, reference, index), group.size)


def run_operations(group: Group, operations: Operations, reported_migrations: int = 0) -> RankReport:
    """All of them, or as many as go well. Without `check` a result is the next operation's input.

    `reported_migrations`: how many migrations were told of already. One may also fall between operations, while nobody
    asks.
    """
    run = _Run(group, operations, RankReport(group.rank))
    copies = asdict(group.copies)
    group.take_samples()
    try:
        if operations.policy:
            group.set_policy(operations.policy)
        run.execute()
    except (GroupBroken, BadInput) as problem:
        run.report.errors.append(str(problem))
    return replace(
        run.report,
        wrong=run.wrong,
        migrations=group.migrations[reported_migrations:],
        dead_rails=tuple(group.dead_rails),
        copies={why: count - copies[why] for why, count in asdict(group.copies).items()},
        rail_bytes_over_time=group.take_samples(),
    )


def _node(parent: Parent, task: NodeTask) -> None:
    try:
        group = Group(task.rank, task.layout, task.policy, task.timeouts, task.placement.socket_maker())
    except (GroupBroken, BadInput) as problem:
        parent.send(Failed(why=str(problem)))
        return
    parent.send(Ready())
    gc.collect()
    gc.freeze()  # objects that exist now stay: collections needn't visit them again
    reported_migrations = 0
    for command in parent:
        report = run_operations(group, command.operations, reported_migrations)
        reported_migrations += len(report.migrations)
        parent.send(Report(report=report))


def _aggregator(parent: Parent, task: AggregatorTask) -> None:
    layout, rail = task.layout, task.rail
    address = layout.aggregators[rail]
    assert address is not None  # an aggregator is made for a rail that has one
    make, setup_s = task.placement.socket_maker(), layout.rails[rail].setup_s
    aggregator = Aggregator(rail, layout.size, address, layout.group, make, setup_s)
    parent.send(Ready())
    aggregator.run(lambda: False)


def main() -> None:
    np.seterr(over="ignore", invalid="ignore")  # sums of sums of sums grow without bound where nobody checks them
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # ns; 50,000 by default, which is much of a set-up
    parent = Parent(Join, Run)
    task = parent.receive().task
    task.placement.enter()
    if isinstance(task, NodeTask):
        pin_to_core(task.rank)
        _node(parent, task)
    else:
        pin_to_core(task.layout.size + task.rail)
        _aggregator(parent, task)


if __name__ == "__main__":
    main()


_COUNTERS: Final = Path("/proc/thread-self/net/dev")
_RECEIVED, _SENT = 0, 8  # columns


def count_bytes(text: str, rails: int) -> tuple[int, ...]:
    """By rail, bytes that this node's NIC has received and sent, headers and all, from what /proc/net/dev says."""
    rows = (line.split(":") for line in text.splitlines()[2:])
    columns = {name.strip(): values.split() for name, values in rows}
    of_rails = (columns[Nic(rail, None).interface] for rail in range(rails))
    return tuple(int(column[_RECEIVED]) + int(column[_SENT]) for column in of_rails)


def parts_of(size: float, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[float, ...]:
    """`size` shared out as the rails' bytes are; all 0 where none moved any."""
    moved = [new - old for old, new in zip(before, after, strict=True)]
    return tuple(size * each / max(1, sum(moved)) for each in moved)


def play(engine: Engine, config: RankConfig, operations: Operations) -> RankReport:
    """Play them as worker.do does; what the engine can't do ends them, and is in the report.

    A rail's seconds are the operation's, where it carried any of it: nobody tells when it was through.
    """
    report, wrongs = RankReport(config.rank), 0
    first = draw_input(operations, config.nodes, config.rank)
    reference = expected(operations, config.nodes, config.rank) if operations.check else first
    call, data = _call(engine, operations.collective), first.copy()
    try:
        engine.allreduce(np.zeros(1, np.uint8))  # all are here
        report.rail_bytes_over_time.append(_moved_now(config))
        for index in range(operations.count):
            if operations.check:
                data[:] = rotated(first, index)
            time.sleep(operations.gap_s)
            start = time.monotonic_ns()
            result = call(data)
            report.ends_ns.append(time.monotonic_ns())
            report.starts_ns.append(start)
            _note_rails(report, config, first.nbytes)
            if operations.check:
                wrongs += wrong(result, outcome(operations, config.nodes, config.rank, reference, index), config.nodes)
    except Exception as problem:  # an engine's own, of any kind
        report.errors.append(f"{type(problem).__name__}: {problem}")
    return replace(report, wrong=wrongs)


def _moved_now(config: RankConfig) -> tuple[int, tuple[int, ...]]:
    return time.monotonic_ns(), count_bytes(_COUNTERS.read_text(), len(config.layout.rails))


def _note_rails(report: RankReport, config: RankConfig, size: int) -> None:
    before = report.rail_bytes_over_time[-1][1]
    report.rail_bytes_over_time.append(_moved_now(config))
    shares = parts_of(size, before, report.rail_bytes_over_time[-1][1])
    elapsed_s = (report.ends_ns[-1] - report.starts_ns[-1]) / 1e9
    report.shares.append(shares)
    report.rail_seconds.append(tuple(elapsed_s if share else 0.0 for share in shares))


def _call(engine: Engine, collective: str) -> Callable[[Array], Array]:
    """What gives a rank's result from its input."""

    def in_place(do: Callable[[Array], None]) -> Callable[[Array], Array]:
        def call(data: Array) -> Array:
            do(data)
            return data

        return call

    match collective:
        case "allreduce":
            return in_place(engine.allreduce)
        case "reduce_scatter":
            return engine.reduce_scatter
        case "all_gather":
            return engine.all_gather
    return in_place(lambda data: engine.broadcast(data, ROOT))
