"""Railyard's own engine on a multi-rail fabric: a process for each node, and one for each aggregator."""

import math
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait
from signal import Signals
from typing import Final

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.worker import Ready, Worker
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce import engine_kind
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, find_policy
from railyard.workloads.allreduce.engine import jobs
from railyard.workloads.allreduce.engine_kind import ALLREDUCE_ENGINES, OWN, AllreduceEngine, Group, PlannedFabric

WORKER: Final = "railyard.workloads.allreduce.engine.worker"


class Ranks(Group):
    """Group of Railyard's engine over all nodes of a fabric: `with Ranks(net, "nezha") as ranks: ranks.run(...)`.

    `channels`: the rail whose NIC each of several virtual rails uses, each with a processor of its own (Nezha section
    4.1); of rails that do not sum in the network.
    """

    def __init__(
        self, net: PlannedFabric, policy: str, timeouts: jobs.Timeouts | None = None, channels: Sequence[int] = ()
    ) -> None:
        self.layout = engine_kind.layout(net.plan, channels)
        group_timeouts = timeouts or jobs.Timeouts().dilated(net.plan.dilation)
        self._join_timeout_s = group_timeouts.join_s + engine_kind.SLACK_S
        self._answer_timeout_s = group_timeouts.operation_s + engine_kind.SLACK_S
        place = partial(engine_kind.placement, net.plan)
        self._tasks: list[jobs.RankConfig] = []
        for node in range(net.plan.spec.nodes):
            placement = place(node, nics=channels)
            self._tasks.append(jobs.RankConfig(node, self.layout, placement, group_timeouts, policy))
        self._aggregator_tasks: list[jobs.AggregatorTask] = []
        for rail, address in enumerate(self.layout.aggregators):
            if address:
                self._aggregator_tasks.append(jobs.AggregatorTask(rail, self.layout, place(None, rail)))
        self.processes: list[Worker] = []
        self._aggregators: list[Worker] = []

    def start(self) -> None:
        """Start all processes and wait until they have joined. GroupBroken if they can't join."""
        self._aggregators = [Worker(WORKER, f"the aggregator of rail {t.rail}", Ready) for t in self._aggregator_tasks]
        self.processes = [Worker(WORKER, f"rank {task.rank}", Ready, jobs.Report) for task in self._tasks]
        workers = (*self._aggregators, *self.processes)
        tasks = (*self._aggregator_tasks, *self._tasks)
        problems = []
        try:
            for worker, task in zip(workers, tasks, strict=True):
                worker.send(jobs.Join(task=task))
            for process in self.processes:
                try:
                    process.receive(Ready, self._join_timeout_s)
                except RailyardError as problem:
                    problems.append(str(problem))
            # all ranks are asked first: the one that is missing is named by the others
            if problems:
                raise jobs.GroupBroken("; ".join(problems))
        except BaseException:
            self.stop()
            raise

    def begin(self, operations: Sequence[jobs.Operations]) -> None:
        """Let each rank begin its own operations; `finish` waits for all."""
        for process, request in zip(self.processes, operations, strict=True):
            process.send(jobs.Run(operations=request))

    def finish(self) -> list[jobs.RankReport]:
        """Return the report of each rank when all have reported; for a rank that died, one with the error.

        A rank that doesn't answer (it is stopped) gets a report with that error; then only `stop` is left to do.
        """
        pending = {process.fileno(): rank for rank, process in enumerate(self.processes)}
        reports: dict[int, jobs.RankReport] = {}
        deadline = math.inf
        while pending and time.monotonic() < deadline:
            ready = wait(pending, max(0.0, min(watch.STEP_S, deadline - time.monotonic())))
            if ready:
                # once one rank has reported, the others end their operation within its time limit
                deadline = min(deadline, time.monotonic() + self._answer_timeout_s)
            for pipe in pending.keys() & set(ready):
                rank = pending.pop(pipe)
                try:
                    reports[rank] = self.processes[rank].receive(jobs.Report, self._answer_timeout_s).report
                except RailyardError as problem:
                    reports[rank] = jobs.RankReport(rank, errors=[str(problem)])
            if not ready:
                for pipe, rank in list(pending.items()):
                    problem_of_process = self.processes[rank].watched.problem
                    if problem_of_process:
                        del pending[pipe]
                        reports[rank] = jobs.RankReport(rank, errors=[problem_of_process])
                        deadline = min(deadline, time.monotonic() + self._answer_timeout_s)
        for rank in pending.values():
            reports[rank] = jobs.RankReport(rank, errors=[f"rank {rank} didn't answer in {self._answer_timeout_s:g} s"])
        return [reports[rank] for rank in sorted(reports)]

    def stop(self) -> None:
        """End all processes, whatever they are doing."""
        for process in (*self.processes, *self._aggregators):
            process.end()

    def _signal(self, number: Signals) -> None:
        for process in (*self._aggregators, *self.processes):
            watch.send_signal(process.pid, number)


@ALLREDUCE_ENGINES.register(OWN)
class RailyardEngine(AllreduceEngine):
    """Engine that runs every allreduce policy, and changes it between operations."""

    equation = "the policy's"
    runs_policies = True
    survives_faults = True

    def check(self, policy: str, field: str, fabric: MultirailSpec) -> None:
        """Raise BadInput for `field` unless `policy` is an allreduce policy of these rails."""
        other_engines = [name for name, engine in ALLREDUCE_ENGINES.items() if not engine.runs_policies]
        find_policy(policy, [rail.name for rail in fabric.rails], field, other_engines)

    def definition(self, policy: str) -> AllreducePolicy:
        """Return the definition of the policy."""
        return ALLREDUCE_POLICIES[policy.partition(":")[0]]

    def start(self, net: PlannedFabric, policy: str) -> Group:
        """Return ranks that plan by a policy."""
        return Ranks(net, policy)

    def seconds(self, rails: Sequence[Rail], nodes: int, size: int, rail: int, policy: str = "") -> float:
        """Predict the seconds of a policy."""
        definition, argument = find_policy(policy, [each.name for each in rails])
        costs = [allreduce_cost(each, nodes) for each in rails]
        return definition.seconds(rails, costs, argument, size)
