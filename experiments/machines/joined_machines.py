"""Several machines, as sessions and measures need the machines of a run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.host import Datapath
from railyard.core.worker import OnEvent
from railyard.experiments.machines import faults
from railyard.experiments.machines.cluster import Cluster
from railyard.experiments.machines.controller import ClusterController
from railyard.experiments.machines.meter import ClusterMeter
from railyard.experiments.run.machines import Machines
from railyard.failure.active import Operator
from railyard.failure.analysis.state_snapshot import StateSnapshot
from railyard.failure.probes.sites import Site
from railyard.topologies.build.machine_part import PartNet
from railyard.topologies.build.network import EmulatedNet, FabricNet
from railyard.topologies.measure.counters import Counters
from railyard.topologies.measure.rates import Sample
from railyard.topologies.plan import Plan
from railyard.workloads.replay.run import Place


class JoinedMachines(Machines):
    """The machines of a cluster. A fabric's network is the part of this machine."""

    are_several = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def built(
        self, plan: Plan, datapath: Datapath, reroute: bool, on_event: OnEvent, user_app: str
    ) -> tuple[ControllerProcess, FabricNet]:
        """Return the controller and this machine's part of the network; an OpenFlow app runs on one machine only."""
        controller = ClusterController(self._cluster, plan, reroute, on_event)
        return controller, self._cluster.network(datapath, controller, backups=reroute)

    def meter(self, late_s: float) -> ClusterMeter:
        """Return a meter of the load of all machines."""
        return ClusterMeter(self._cluster, late_s)

    def counters(self, net: EmulatedNet) -> Counters:
        """Return the counters of a fabric on all machines."""
        other_counters, _ = self._cluster.counters()
        return super().counters(net) + other_counters

    def relaxed_tcp_timers(self, net: FabricNet, longest_queue_s: float) -> AbstractContextManager[None]:
        """Relax TCP loss detection at all GPUs, on all machines."""
        return self._cluster.relaxed_tcp_timers(_part(net), longest_queue_s)

    def calibrate(self, net: FabricNet) -> list[Sample]:
        """Measure a link of this machine, and the longest way between machines."""
        return self._cluster.calibrate(_part(net))

    def operator(self, net: EmulatedNet) -> Operator:
        """Return what injects faults on the machines that have what breaks."""
        return faults.ClusterOperator(self._cluster, _part(net))

    def snapshot(self, net: FabricNet) -> StateSnapshot:
        """Return the kernel state of all nodes, on all machines."""
        return faults.snapshot(self._cluster, _part(net))

    def sites(self) -> Sequence[Site]:
        """Return the machines as probes need them."""
        return faults.sites(self._cluster)

    def places(self) -> Sequence[Place]:
        """Return the machines as a replay needs them."""
        return self._cluster.places()

    def measure_clocks(self) -> float:
        """Measure the clocks of all machines; return the largest uncertainty, s."""
        return self._cluster.measure_clocks()

    def underlay_sent_bytes(self) -> int:
        """Return what the underlay's interfaces have sent on all machines."""
        _, sent = self._cluster.counters()
        return sent

    def expected_underlay_bytes(self, rail_out: Sequence[int], rail_in: Sequence[int], mtu: int) -> float:
        """Return what the underlay should carry for TCP payload between GPUs and rail switches."""
        return self._cluster.underlay_bytes(rail_out, rail_in, mtu)

    def provenance(self) -> list[dict[str, Any]]:
        """Return name, address, kernel and clock of each machine."""
        return self._cluster.provenance()


def _part(net: EmulatedNet) -> PartNet:
    """Return this machine's part of a fabric: what `built` made."""
    assert isinstance(net, PartNet)
    return net
