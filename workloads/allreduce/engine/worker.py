"""The process of one node, or of one aggregator: it enters its namespace, joins, and does what it is asked.

Its messages are those of jobs.py: Join, and then, for a node, Run as often as needed. An aggregator serves until it is
ended.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from railyard.core.errors import BadInput
from railyard.core.worker import Failed, Parent, Ready
from railyard.workloads.allreduce.engine.buffers import Array
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.inputs import ROOT, draw_input, expected, outcome, rotated, wrong
from railyard.workloads.allreduce.engine.jobs import Join, Operations, RankReport, Report, Run
from railyard.workloads.allreduce.engine.node import GroupBroken
from railyard.workloads.allreduce.transport.aggregator import Aggregator
from railyard.workloads.allreduce.transport.placement import AggregatorTask, NodeTask, pin_to_core

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
