"""Faults of rails while allreduces run: injected and repaired, with what they did to the operations."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from railyard.core.errors import MissingRequirement
from railyard.core.wait import sleep_until
from railyard.core.watch import ProgramFailed
from railyard.experiments.measures.allreduce.records import allreduce_interval
from railyard.experiments.measures.allreduce.reports import InjectedFault, cut, nic_rates
from railyard.experiments.measures.allreduce.session import AllreduceSession
from railyard.experiments.measures.allreduce.spec import RailFaultSpec
from railyard.experiments.measures.faults.records import GOODPUT
from railyard.experiments.run import observers
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import record_late_injection
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.failure.active import PREPARE_S, ActiveFault
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, predicted_s
from railyard.workloads.allreduce.workload import learning_operations, sent_bytes


def run_fault(spec: ExperimentSpec, session: AllreduceSession, fault: RailFaultSpec) -> None:
    """Let the policy learn, then inject the fault as often as it is repeated, until it ends the operations.

    A repeat begins when the one before it has ended, with all rails in use again.
    """
    repeats = fault.times(spec)
    policy = fault.policy
    sent = sent_bytes(fault.size, session.plan.scale)
    with session.recording_skips(policy), session.engine(policy) as ranks:
        learning = learning_operations(policy, fault.learning)
        ranks.run(Operations("allreduce", "int32", sent, learning, spec.seed))
        for repeat in range(repeats):
            repeated = RepeatedFault(spec, session, fault, ranks, sent, repeat)
            with session.steps.step(f"{session.label}: {fault.fault.name}, {policy}, {repeat + 1} of {repeats}"):
                measure_undisturbed(session.run, repeated.measure)
            if repeated.has_ended_operations:
                return


class RepeatedFault:
    """One repeat of a fault, which is measured again if other programs keep the machine busy."""

    def __init__(
        self,
        spec: ExperimentSpec,
        session: AllreduceSession,
        fault: RailFaultSpec,
        ranks: Group,
        sent: int,
        repeat: int,
    ) -> None:
        """`sent`: bytes of each operation."""
        self.has_ended_operations = False
        """Whether an operation of the last measurement failed: then the ranks do no more."""
        self._session = session
        self._fault = fault
        self._ranks = ranks
        self._seed = spec.seed + repeat
        self._rail, self._node = session.plan.place_of(fault.target)
        interval = allreduce_interval(session.label, fault.policy, fault.size, repeat, fault.kind, fault.target)
        self._injected = InjectedFault(interval, fault.kind, fault.target, self._rail, fault.size, sent, 0, 0)

    def measure(self) -> bool:
        """Inject the fault, repair it, and record both; return whether all operations ended, with right sums."""
        session = self._session
        with session.watch().record_load(session.run, self._injected.interval, faulted=True):
            injected, reports = inject_and_repair(session, self._ranks, self._fault, self._injected, self._seed)
        session.show_lost_rails(reports)
        cut(injected, reports).add_to(session.run)
        rates = nic_rates(injected, reports[self._node], [rail.name for rail in session.rails])
        session.run.rows(GOODPUT).extend(rates)
        self.has_ended_operations = any(report.errors for report in reports)
        return not any(report.errors or report.wrong for report in reports)


def inject_and_repair(
    session: AllreduceSession, ranks: Group, fault: RailFaultSpec, injected: InjectedFault, seed: int
) -> tuple[InjectedFault, Sequence[RankReport]]:
    """Run operations, with the fault meanwhile; return it with its times, and the reports of the ranks.

    `injected`: the fault without times. `seed`: of the operations' content.
    """
    nodes = session.plan.spec.nodes
    operation_s = predicted_s(fault.policy, session.rails, nodes, injected.sent)
    count = ceil((fault.at + fault.repair + fault.after) / operation_s)
    ranks.begin([Operations("allreduce", "int32", injected.sent, count, seed, check=True)] * nodes)
    due_s = time.monotonic() + fault.at
    sleep_until(due_s - PREPARE_S)
    with ActiveFault(session.net, fault.fault, observers.show_fault) as active:
        try:
            active.prepare()
        except ProgramFailed as error:
            problem = f"this kernel can't do {fault.kind}: nftables can't catch what leaves an interface"
            raise MissingRequirement(problem, "use Linux 5.16") from error
        sleep_until(due_s)
        active.inject(round(due_s * 1e9))
        record_late_injection(session.run, injected.interval, fault.fault, active.injected_ns, active.late_ns)
        active.confirm()
        sleep_until(active.injected_ns / 1e9 + fault.repair)
    # rails are back when the repair is done, not when it begins
    t_repair = time.monotonic_ns()
    return replace(injected, t_fault=active.injected_ns, t_repair=t_repair), ranks.finish()
