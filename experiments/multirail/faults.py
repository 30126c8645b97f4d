"""A rail taken away while allreduces run, and given back: as often as the experiment has it, on the same ranks."""

import time
from collections.abc import Sequence
from math import ceil

from railyard.core.errors import MachineLacks
from railyard.experiments.multirail.measured import Struck, cut, nic_rates
from railyard.experiments.multirail.parts import FaultKind, FaultSpec
from railyard.experiments.multirail.predictions import learning, seconds, sent_bytes
from railyard.experiments.multirail.session import Site
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run.progress import Steps
from railyard.topologies.multirail import faults
from railyard.topologies.multirail.net import MultirailNet
from railyard.workloads.allreduce.engine.emulated import Ranks
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport


def run_fault(spec: MultirailExperiment, site: Site, fault: FaultSpec, steps: Steps) -> None:
    """Learn first, then break; a repeat begins when the one before it has ended, with all rails in use again."""
    rail = next(number for number, one in enumerate(site.rails) if one.name == fault.rail)
    sent = sent_bytes(fault.size, site.plan.scale)
    with site.noted(fault.policy), Ranks(site.net, fault.policy) as ranks:
        ranks.run(Operations("allreduce", "int32", sent, learning(fault.policy, spec.learning), spec.seed))
        for repeat in range(fault.repeats):
            what = f"{fault.name}, {fault.policy}"
            with steps.step(f"{site.label}: {what}, {repeat + 1} of {fault.repeats}"):
                with site.watch().over(what, repeat, faulted=True):
                    struck, reports = _strike(spec, site, ranks, fault, rail, sent, repeat)
                record = site.run.multirail
                record.cuts.append(cut(struck, reports))
                record.rates += nic_rates(struck, reports[fault.node], [one.name for one in site.rails])
            if any(report.errors for report in reports):
                return


def _strike(
    spec: MultirailExperiment, site: Site, ranks: Ranks, fault: FaultSpec, rail: int, sent: int, repeat: int
) -> tuple[Struck, Sequence[RankReport]]:
    predicted = seconds(fault.policy, site.rails, site.nodes, sent)
    count = ceil((fault.at + fault.repair + fault.after) / predicted)
    op = Operations("allreduce", "int32", sent, count, spec.seed + repeat, check=True)
    ranks.begin([op] * site.nodes)
    time.sleep(fault.at)
    t_fault = strike(site.net, fault.kind, fault.node, rail)
    time.sleep(fault.repair)
    mend(site.net, fault.kind, fault.node, rail)
    t_repair = time.monotonic_ns()
    reports = ranks.finish()
    names = (site.label, fault.policy, repeat, fault.name)
    return Struck(*names, fault.node, rail, fault.rail, fault.size, sent, t_fault, t_repair), reports


def strike(net: MultirailNet, kind: FaultKind, node: int, rail: int) -> int:
    """Break it; when that was, ns. MachineLacks where a link can't be made silent."""
    if kind == "link-down":
        return faults.cut(net, f"n{node}", rail)
    if kind == "link-silent":
        try:
            return faults.silence(net, f"n{node}", rail)
        except RuntimeError as error:
            raise MachineLacks(
                "nftables can't catch what leaves an interface, for link-silent", "use Linux 5.16"
            ) from error
    if kind == "rail-switch-crash":
        return faults.kill_switch(net, rail)
    return faults.hang_switch(net, rail)


def mend(net: MultirailNet, kind: FaultKind, node: int, rail: int) -> None:
    """Make it whole again."""
    if kind == "link-down":
        faults.mend(net, f"n{node}", rail)
    elif kind == "link-silent":
        faults.unsilence(net, f"n{node}", rail)
    elif kind == "rail-switch-crash":
        faults.restart_switch(net, rail)
    else:
        faults.wake_switch(net, rail)
