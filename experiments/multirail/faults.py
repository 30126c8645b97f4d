"""Faults of rails while allreduces run, each repeated on the same ranks."""

import time
from collections.abc import Sequence
from math import ceil

from railyard.core.errors import MissingRequirement
from railyard.core.records import IntervalId
from railyard.experiments.multirail.measured import InjectedFault, cut, nic_rates
from railyard.experiments.multirail.parts import FaultSpec
from railyard.experiments.multirail.predictions import learning, sent_bytes
from railyard.experiments.multirail.session import MultirailSession
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run.progress import Steps
from railyard.failure.faults import Fault
from railyard.failure.scenario.player import apply, confirm, prepare, repair
from railyard.results.runs.allreduce import allreduce_interval
from railyard.topologies.multirail.spec import switch_name
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import predicted_s
from railyard.workloads.allreduce.engines.railyard import Ranks


def run_fault(spec: MultirailExperiment, session: MultirailSession, fault: FaultSpec, steps: Steps) -> None:
    """Learn first, then break; a repeat begins when the one before it has ended, with all rails in use again."""
    rail = next(number for number, one in enumerate(session.rails) if one.name == fault.rail)
    sent = sent_bytes(fault.size, session.plan.scale)
    with session.recording_skips(fault.policy), Ranks(session.net, fault.policy) as ranks:
        ranks.run(Operations("allreduce", "int32", sent, learning(fault.policy, spec.learning), spec.seed))
        for repeat in range(fault.repeats):
            what = f"{fault.name}, {fault.policy}"
            with steps.step(f"{session.label}: {what}, {repeat + 1} of {fault.repeats}"):
                where = (session.label, fault.policy, fault.size, repeat)
                interval = allreduce_interval(*where, fault.kind, fault.target)
                with session.watch().record_load(session.run, interval, faulted=True):
                    injected, reports = _inject_and_repair(spec, session, ranks, fault, rail, sent, interval)
                cut(injected, reports).add_to(session.run)
                session.run.goodput += nic_rates(injected, reports[fault.node], [one.name for one in session.rails])
            if any(report.errors for report in reports):
                return


def _inject_and_repair(
    spec: MultirailExperiment,
    session: MultirailSession,
    ranks: Ranks,
    fault: FaultSpec,
    rail: int,
    sent: int,
    interval: IntervalId,
) -> tuple[InjectedFault, Sequence[RankReport]]:
    operation_s = predicted_s(fault.policy, session.rails, session.nodes, sent)
    count = ceil((fault.at + fault.repair + fault.after) / operation_s)
    op = Operations("allreduce", "int32", sent, count, spec.seed + interval.repeat, check=True)
    broken = Fault(fault.kind, fault.target if fault.is_of_link else switch_name(rail), fault.parameters)
    ranks.begin([op] * session.nodes)
    begun = time.monotonic()
    try:
        prepare(session.net, broken)
    except RuntimeError as error:
        what = f"this kernel can't do {fault.kind}: nftables can't catch what leaves an interface"
        raise MissingRequirement(what, "use Linux 5.16") from error
    time.sleep(max(0.0, begun + fault.at - time.monotonic()))
    t_fault = apply(session.net, broken)
    try:
        confirm(session.net, broken)
        time.sleep(max(0.0, t_fault / 1e9 + fault.repair - time.monotonic()))
    finally:
        repair(session.net, broken)
    t_repair = time.monotonic_ns()
    reports = ranks.finish()
    return InjectedFault(interval, fault.kind, fault.target, rail, fault.size, sent, t_fault, t_repair), reports
