"""Faults of a fabric on several machines: each operation is carried out by the machines that have what breaks."""

from collections.abc import Iterator, Sequence
from typing import get_args

from railyard.core.worker import Message, Worker
from railyard.experiments.machines import messages
from railyard.experiments.machines.cluster import Cluster, Machine
from railyard.failure.active import Operator
from railyard.failure.analysis.state_snapshot import StateSnapshot, snapshot_state
from railyard.failure.faults import Fault
from railyard.failure.probes.sites import Site
from railyard.topologies.build.machine_part import PartNet


def act(operator: Operator, operation: messages.Operation, fault: Fault) -> messages.Acted:
    """Carry out an operation of a fault on one machine."""
    assert operation in get_args(messages.Operation)
    result = getattr(operator, operation)(fault)
    if operation == "symptoms":
        return messages.Acted(symptoms=tuple(map(bool, result)))
    return messages.Acted(at_ns=result or 0)


class ClusterOperator(Operator):
    """Carries out operations of faults on the machines of a fabric. Times are those of this machine's clock."""

    def __init__(self, cluster: Cluster, net: PartNet) -> None:
        super().__init__(net)
        assert cluster.placement
        self._machine_of = cluster.placement.machine_of
        self._others = cluster.others

    def prepare(self, fault: Fault) -> None:
        """Prepare it wherever it will be."""
        list(self._act("prepare", fault))

    def inject(self, fault: Fault) -> int:
        """Inject a fault; return when it was injected first."""
        return min(acted.at_ns for acted in self._act("inject", fault))

    def repair(self, fault: Fault) -> int:
        """Repair a fault; return when it was repaired first."""
        return min(acted.at_ns for acted in self._act("repair", fault))

    def symptoms(self, fault: Fault) -> Sequence[bool]:
        """Return the symptoms on all machines that have a part of what breaks."""
        symptoms: list[bool] = []
        for acted in self._act("symptoms", fault):
            symptoms += acted.symptoms
        return symptoms

    def _act(self, operation: messages.Operation, fault: Fault) -> Iterator[messages.Acted]:
        nodes = fault.definition.nodes(self.net.plan, fault.target, fault.parameters)
        for machine in sorted({self._machine_of[node] for node in nodes}):
            if machine == 0:
                yield act(Operator(self.net), operation, fault)
                continue
            other = self._others[machine - 1]
            message = messages.ActOnFault(operation=operation, fault=fault)
            acted = other.ask(message, messages.Acted)
            yield acted.model_copy(update={"at_ns": acted.at_ns - other.clock.offset_ns})


def sites(cluster: Cluster) -> tuple[Site, ...]:
    """Return the machines of the fabric that was placed last, as probes need them."""
    assert cluster.placement

    def site(number: int, machine: Machine) -> Site:
        assert cluster.placement

        def start(module: str, name: str, *replies: type[Message]) -> Worker:
            return cluster.start(machine, module, name, *replies)  # type: ignore[arg-type]

        return Site(cluster.placement.nodes(number), start, machine.clock.offset_ns)

    other_sites = (site(number, machine) for number, machine in enumerate(cluster.others, 1))
    return (Site(cluster.placement.nodes(0)), *other_sites)


def snapshot(cluster: Cluster, net: PartNet) -> StateSnapshot:
    """Return the kernel state of all nodes, on all machines."""
    states = dict(snapshot_state(net.node_names))
    for reply in cluster.ask_all(messages.TakeSnapshot(), messages.Snapshot):
        states |= reply.state
    return states
