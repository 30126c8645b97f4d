"""The engine in a multi-rail fabric's namespaces: a process a node, and one for each aggregator.

with Ranks(net, "nezha") as ranks:  # net: a MultirailNet that was started
    reports = ranks.run(Operations("allreduce", "float32", 1 << 20, count=100, seed=1))
"""

import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from types import TracebackType
from typing import Final

from railyard.core.errors import RailyardError
from railyard.core.worker import Ready, Worker
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.balancing.costs import Rail, paper_rail, scaled
from railyard.workloads.allreduce.engine.jobs import (
    AggregatorTask,
    GroupBroken,
    Join,
    Layout,
    NodeTask,
    Operations,
    ProcessPlacement,
    RankReport,
    Report,
    Run,
    Timeouts,
)
from railyard.workloads.allreduce.engine.worker import checked
from railyard.workloads.allreduce.engine_kind import PlannedFabric

PORT: Final = 21000
_VIRTUAL_PORT: Final = PORT + 16  # beside other engines' on the same NICs
_MODULE: Final = "railyard.workloads.allreduce.engine.worker"
_SLACK_S: Final = 60.0  # for a machine that runs a rank late


def rails_of(plan: MultirailPlan) -> tuple[Rail, ...]:
    """The fabric's rails as the engine knows them: rates are what is left for data once headers have their part, and
    what the user didn't give of set-up and processor cost is the paper's, to the fabric's scale. All are as dilated as
    the fabric is. Where no rate was given, they are called what the paper's NICs are called, whatever they move."""
    dilation = plan.dilation
    all_auto = all(spec.rate == "auto" for spec in plan.rails)
    rails = []
    for number, spec in enumerate(plan.rails):
        full_rate = paper_rail(spec.kind)
        slowed = scaled(full_rate, plan.scale)
        setup_s = slowed.setup_s if spec.setup is None else spec.setup
        cpu = slowed.cpu_s_per_byte if spec.cpu is None else spec.cpu
        rate, nominal = plan.payload_bps(number) / 8, full_rate.rate if all_auto else 0.0
        rails.append(Rail(spec.name, spec.kind, rate, setup_s * dilation, cpu * dilation, nominal))
    return tuple(rails)


def layout(plan: MultirailPlan, channels: Sequence[int] = ()) -> Layout:
    """Where everybody is in a fabric. `channels`: see Ranks."""
    if channels:
        return _virtual(plan, channels)
    rails = rails_of(plan)
    return Layout(
        rails,
        tuple(tuple((Nic(rail, node).ip, PORT) for node in range(plan.spec.nodes)) for rail in range(len(rails))),
        tuple((nic.ip, PORT) if nic else None for nic in plan.aggregators),
    )


def _virtual(plan: MultirailPlan, channels: Sequence[int]) -> Layout:
    """A port a channel, on the NICs that they are given."""
    rails, nodes = rails_of(plan), range(plan.spec.nodes)
    return Layout(
        tuple(replace(rails[nic], name=f"{rails[nic].name}.{number}") for number, nic in enumerate(channels)),
        tuple(
            tuple((Nic(nic, node).ip, _VIRTUAL_PORT + number) for node in nodes) for number, nic in enumerate(channels)
        ),
        tuple(None for _ in channels),
    )


def placement(plan: MultirailPlan, node: int | None, rail: int = 0, channels: Sequence[int] = ()) -> ProcessPlacement:
    """A node's place, or for None that of a rail's aggregator."""
    nics = channels or range(len(plan.rails))
    return ProcessPlacement(Nic(rail, node).namespace, tuple(Nic(each, node).interface for each in nics))


class Ranks:
    """A group over all nodes of a fabric. A context manager, or `start` and `stop`.

    An operation's time is from the first rank's start to the last one's end (jobs.latencies_s). `channels`: the rail
    whose NIC each of several virtual rails uses, each with a processor of its own (Nezha section 4.1); of no sharp one.
    """

    def __init__(
        self, net: PlannedFabric, policy: str, timeouts: Timeouts | None = None, channels: Sequence[int] = ()
    ) -> None:
        self.layout = layout(net.plan, channels)
        group_timeouts = timeouts or Timeouts().dilated(net.plan.dilation)
        self._answer_timeout_s = group_timeouts.operation_s + _SLACK_S
        self._tasks = [
            NodeTask(node, self.layout, policy, group_timeouts, placement(net.plan, node, channels=channels))
            for node in range(net.plan.spec.nodes)
        ]
        self._aggregator_tasks = [
            AggregatorTask(nic.rail, self.layout, placement(net.plan, None, nic.rail))
            for nic in net.plan.aggregators
            if nic is not None and not channels
        ]
        self._processes: list[Worker] = []
        self._aggregators: list[Worker] = []

    def start(self) -> None:
        """Begin all processes, and return when they have joined. GroupBroken says why they can't."""
        self._aggregators = [
            Worker(_MODULE, f"the aggregator of rail {task.rail}", Ready) for task in self._aggregator_tasks
        ]
        self._processes = [Worker(_MODULE, f"rank {task.rank}", Ready, Report) for task in self._tasks]
        try:
            for process, task in zip(self._aggregators, self._aggregator_tasks, strict=True):
                process.send(Join(task=task))
            for process, node in zip(self._processes, self._tasks, strict=True):
                process.send(Join(task=node))
            problems = [problem for process in self._processes if (problem := _joining_problem(process))]
        except BaseException:
            self.stop()
            raise
        if problems:
            self.stop()
            raise GroupBroken("; ".join(problems))

    def run(self, operations: Operations) -> list[RankReport]:
        """Do them on all ranks, and return what each tells. BadInput for what nobody can do."""
        self.begin([operations] * len(self._tasks))
        return self.finish()

    def begin(self, operations: Sequence[Operations]) -> None:
        """Let each rank begin its own; `finish` waits for all. In between there's time for a fault."""
        for request in operations:
            checked(request)
        for process, request in zip(self._processes, operations, strict=True):
            process.send(Run(operations=request))

    def finish(self) -> list[RankReport]:
        """What each rank tells, when all have. One that died has told nothing but that.

        Once one has told, the others end what they do within an operation's time. One that still doesn't (it is
        stopped) is told of too; then `stop` is all that is left to do.
        """
        pending = {process.fileno(): rank for rank, process in enumerate(self._processes)}
        reports: dict[int, RankReport] = {}
        deadline = math.inf
        while pending and (ready := wait(pending, None if math.isinf(deadline) else deadline - time.monotonic())):
            deadline = min(deadline, time.monotonic() + self._answer_timeout_s)
            for pipe in pending.keys() & set(ready):
                rank = pending.pop(pipe)
                reports[rank] = self._report(rank)
        for rank in pending.values():
            reports[rank] = RankReport(rank, errors=[f"rank {rank} didn't answer in {self._answer_timeout_s:g} s"])
        return [reports[rank] for rank in sorted(reports)]

    def pids(self) -> list[int]:
        """Of the ranks' processes."""
        return [process.pid for process in self._processes]

    def pause(self) -> None:
        """Stop all processes between operations: they take nothing of the machine."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all processes, whatever they are doing."""
        for process in (*self._processes, *self._aggregators):
            process.end()

    def __enter__(self) -> "Ranks":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        for process in (*self._aggregators, *self._processes):
            os.kill(process.pid, number)

    def _report(self, rank: int) -> RankReport:
        try:
            return self._processes[rank].receive(Report, self._answer_timeout_s).report
        except RailyardError as problem:
            return RankReport(rank, errors=[str(problem)])


def _joining_problem(process: Worker) -> str:
    """Return why a rank did not join its group; empty if it did. Joining has deadlines of its own."""
    try:
        process.receive(Ready, timeout_s=None)
    except RailyardError as problem:
        return str(problem)
    return ""
