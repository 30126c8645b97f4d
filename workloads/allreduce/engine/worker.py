"""The process of one rank of an engine, or of one aggregator. Messages are those of jobs.py.

`python -m railyard.workloads.allreduce.engine.worker FD` is one of Railyard's engine. `... MODULE SOCKET [RANK...]` are
ranks of another engine, whose module has a `PROGRAM`: a process is forked for each rank, connects to the socket and
sends its number (under mpirun there is one rank, with a number from MPI).

A rank's input is drawn once for all of `Operations`; operation i has it moved on by i elements.
"""

import ctypes
import gc
import importlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from railyard.core.errors import RailyardError
from railyard.core.plugins import load_inherited
from railyard.core.worker import Failed, Message, Parent, Ready
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.engine import jobs
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.tasks import Array
from railyard.workloads.allreduce.transport.aggregator import Aggregator

ROOT: Final = 0  # root of a broadcast
_PR_SET_TIMERSLACK: Final = 29
_COUNTERS: Final = Path("/proc/thread-self/net/dev")
# columns of /proc/net/dev
_RECEIVED = 0
_SENT = 8
_SUM_DTYPES: Final = {"e": np.float64, "f": np.float64, "d": np.longdouble, "F": np.complex128, "D": np.clongdouble}


def result_array(collective: str, array: Array, nodes: int) -> Array:
    """Return where the result of a collective belongs: in `array` itself, or in a new one of the right length."""
    if collective == "reduce_scatter":
        return np.empty(array.size // nodes, array.dtype)
    if collective == "all_gather":
        return np.empty(array.size * nodes, array.dtype)
    return array


def draw_input(operations: jobs.Operations, nodes: int, rank: int) -> Array:
    """Return a rank's elements of operation 0: integers of all values (sums wrap), floats of 0.5 to 1.

    For a ReduceScatter their number is a multiple of the nodes.
    """
    dtype = np.dtype(operations.dtype)
    length = operations.size_bytes // dtype.itemsize
    if operations.collective == "reduce_scatter":
        length -= length % nodes
    random = np.random.default_rng((operations.seed, rank))
    if dtype.kind in "iu":
        return np.frombuffer(random.bytes(length * dtype.itemsize), dtype)
    if dtype.kind == "c":
        return (random.uniform(0.5, 1, length) + 1j * random.uniform(0.5, 1, length)).astype(dtype)
    return random.uniform(0.5, 1, length).astype(dtype)


def expected(operations: jobs.Operations, nodes: int, rank: int) -> Array:
    """Return the result of operation 0 on a rank, from numpy's sum; `outcome` gives that of the others."""
    parts = [draw_input(operations, nodes, each) for each in range(nodes)]
    if operations.collective == "all_gather":
        return np.concatenate(parts)
    if operations.collective == "broadcast":
        return parts[ROOT]
    dtype = parts[0].dtype
    # summed with more digits, so that an engine's own rounding is the only one that counts
    sum_dtype = _SUM_DTYPES.get(dtype.char, dtype)
    total: Array = parts[0].astype(sum_dtype)
    for part in parts[1:]:
        total += part.astype(sum_dtype)
    return total.astype(dtype)


def outcome(operations: jobs.Operations, nodes: int, rank: int, first: Array, index: int) -> Array:
    """Return the result of operation `index` on a rank, from that of operation 0 (`expected`)."""
    if operations.collective == "all_gather":
        # of each rank its elements, moved on
        return np.roll(first.reshape(nodes, -1), index, axis=1).reshape(-1)
    whole = np.roll(first, index)
    if operations.collective == "reduce_scatter":
        part: Array = whole.reshape(nodes, -1)[rank]
        return part
    return whole


def wrong(result: Array, reference: Array, nodes: int) -> int:
    """Return how many elements are wrong: at all for integers, by over log2 N units in the last place for floats."""
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return max(result.size, reference.size, 1)
    if result.dtype.kind in "iu":
        return int(np.count_nonzero(result != reference))
    if len(reference) == 0:
        return 0
    # a complex number is compared as two real ones
    real = np.dtype(result.dtype.char.lower())
    actual = result.view(real)
    correct = reference.view(real)
    # N summands of 0.5 to 1 added in any order stay within log2 N units (up to N = 8 always, above nearly so)
    tolerance = math.ceil(math.log2(max(2, nodes))) * np.spacing(correct)
    # not `>`, which is false of NaN
    mismatches = ~(np.abs(actual - correct) <= tolerance)
    return int(np.count_nonzero(mismatches.reshape(len(reference), -1).any(axis=1)))


def _run(engine: Any, report: jobs.RankReport, nodes: int, operations: jobs.Operations) -> Iterator[int]:
    """Do operations, and note their times and errors in `report`. Without `check` a result is the next one's input.

    Yields the bytes of a rank's input: first when it is ready, then after each operation.
    """
    first = draw_input(operations, nodes, report.rank)
    reference = expected(operations, nodes, report.rank) if operations.check else first
    array = first.copy()
    yield first.nbytes
    for index in range(operations.count):
        if operations.check:
            # a result that was left from the operation before is then wrong nearly everywhere
            array[:] = np.roll(first, index)
        if operations.gap_s:
            time.sleep(operations.gap_s)
        start = time.monotonic_ns()
        result = engine.call(operations.collective, array, ROOT)
        report.ends_ns.append(time.monotonic_ns())
        report.starts_ns.append(start)
        yield first.nbytes
        if operations.check:
            report.wrong += wrong(result, outcome(operations, nodes, report.rank, reference, index), nodes)


def run_operations(group: Group, operations: jobs.Operations) -> jobs.RankReport:
    """Do operations on Railyard's engine, or as many as succeed. Migrations since the last report are reported."""
    report = jobs.RankReport(group.rank)
    copies = asdict(group.copies)
    group.take_samples()
    try:
        if operations.policy:
            group.set_policy(operations.policy)
        steps = _run(group, report, group.size, operations)
        next(steps)
        for _ in steps:
            last = group.last
            start_s = report.starts_ns[-1] / 1e9
            seconds = [0.0] * len(last.ends)
            for rail, end in enumerate(last.ends):
                # a rail without work has the operation's start as its end
                if end > last.began:
                    seconds[rail] = end - start_s
            report.shares.append(last.shares)
            report.rail_seconds.append(tuple(seconds))
    except RailyardError as problem:
        report.errors.append(str(problem))
    report.migrations, migrations = list(group.migrations), group.migrations
    migrations.clear()
    dead_rails = set(range(len(group.layout.rails))) - set(group.live_rails)
    report.dead_rails = tuple(sorted(dead_rails))
    report.copies = {why: count - copies[why] for why, count in asdict(group.copies).items()}
    report.rail_bytes_over_time = group.take_samples()
    return report


def count_bytes(text: str, rails: int) -> tuple[int, ...]:
    """Return by rail the bytes that this node's NIC has received and sent, with headers, by a text of /proc/net/dev."""
    columns: dict[str, list[str]] = {}
    for line in text.splitlines()[2:]:
        interface, values = line.split(":")
        columns[interface.strip()] = values.split()
    counts = []
    for rail in range(rails):
        column = columns[Nic(rail, None).interface]
        counts.append(int(column[_RECEIVED]) + int(column[_SENT]))
    return tuple(counts)


def run_on_engine(engine: Any, config: jobs.RankConfig, operations: jobs.Operations) -> jobs.RankReport:
    """Do operations on another engine, or as many as succeed.

    Bytes are the NICs' own counts; a rail's seconds are the operation's if it carried any of it.
    """
    report = jobs.RankReport(config.rank)
    rails = len(config.layout.rails)

    def sample() -> None:
        report.rail_bytes_over_time.append((time.monotonic_ns(), count_bytes(_COUNTERS.read_text(), rails)))

    try:
        steps = _run(engine, report, config.layout.size, operations)
        next(steps)
        # all ranks are ready after this
        engine.call("allreduce", np.zeros(1, np.uint8), ROOT)
        sample()
        for size in steps:
            sample()
            (_, before), (_, after) = report.rail_bytes_over_time[-2:]
            moved = [new - old for old, new in zip(before, after, strict=True)]
            total = max(1, sum(moved))
            elapsed_s = (report.ends_ns[-1] - report.starts_ns[-1]) / 1e9
            seconds = [0.0] * rails
            for rail, rail_bytes in enumerate(moved):
                if rail_bytes:
                    seconds[rail] = elapsed_s
            report.shares.append(tuple(size * rail_bytes / total for rail_bytes in moved))
            report.rail_seconds.append(tuple(seconds))
    except Exception as problem:
        # another library's, of any kind
        report.errors.append(f"{type(problem).__name__}: {problem}")
    return report


@dataclass(frozen=True, slots=True)
class Program:
    """Program of a rank. `load` is called once, before there is a process for each, and imports the engine's library.

    `make` makes the engine in each process, and `end` ends it. `handle` answers each of `commands` with a message: by
    default it does operations with the engine's method `call(collective, array, root)`, which returns the result.
    """

    make: Callable[[Any], Any]
    end: Callable[[Any], object]
    load: Callable[[], object] = lambda: None
    handle: Callable[[Any, Any, Any], Message] = lambda engine, config, command: jobs.Report(
        report=run_on_engine(engine, config, command.operations)
    )
    commands: tuple[type[Message], ...] = (jobs.Run,)


def serve(parent: Parent, program: Program, task: jobs.RankConfig) -> None:
    """Join the group, and answer commands until Leave or the parent's end. Errors are sent as Failed."""
    task.placement.enter(task.rank)
    try:
        engine = program.make(task)
    except Exception as problem:
        # also another library's
        reason = str(problem)
        if not isinstance(problem, RailyardError):
            reason = f"{type(problem).__name__}: {problem}"
        parent.send(Failed(why=reason))
        return
    parent.send(Ready())
    gc.collect()
    # objects that exist now stay: collections needn't visit them again
    gc.freeze()
    for command in parent:
        if isinstance(command, jobs.Leave):
            break
        try:
            parent.send(program.handle(engine, task, command))
        except RailyardError as problem:
            parent.send(Failed(why=str(problem)))
    program.end(engine)


_OWN: Final = Program(
    lambda task: Group(task.rank, task.layout, task.policy, task.timeouts, task.placement.socket_maker()),
    Group.close,
    handle=lambda group, _, command: jobs.Report(report=run_operations(group, command.operations)),
)


def _serve_other_engine(module: str, path: str, ranks: Sequence[str]) -> None:
    """Serve as a rank of another engine, in a process of its own for each of `ranks`."""
    # the engine's module may be a plugin's
    load_inherited()
    program: Program = importlib.import_module(module).PROGRAM
    # before the fork, so that the library is loaded once for all ranks
    program.load()
    rank, *other_ranks = ranks or [os.environ["OMPI_COMM_WORLD_RANK"]]
    children: list[int] = []
    for child_rank in other_ranks:
        pid = os.fork()
        if pid == 0:
            rank = child_rank
            children = []
            break
        children.append(pid)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    parent = Parent(jobs.Join, jobs.Leave, *program.commands, sock=sock)
    parent.send(jobs.Rank(number=int(rank)))
    serve(parent, program, parent.receive().task)
    for pid in children:
        os.waitpid(pid, 0)


def main() -> None:
    """Serve as the command line says."""
    # sums of sums grow without bound where results are not checked
    np.seterr(over="ignore", invalid="ignore")
    # ns; the default of 50,000 is much of a set-up time
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    if len(sys.argv) > 2:
        _serve_other_engine(sys.argv[1], sys.argv[2], sys.argv[3:])
        return
    parent = Parent(jobs.Join, jobs.Run, jobs.Leave)
    task = parent.receive().task
    if isinstance(task, jobs.AggregatorTask):
        task.placement.enter(task.layout.size + task.rail)
        aggregator = Aggregator(task.rail, task.layout, task.placement.socket_maker())
        parent.send(Ready())
        aggregator.run(lambda: False)
    else:
        serve(parent, _OWN, task)


if __name__ == "__main__":
    main()
