"""The machines of a run. A run has this machine alone, unless experiments/machines puts several in its place."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, Self

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.host import Datapath
from railyard.core.host_load import LoadMeter, LoadSample, MachineLoad
from railyard.core.worker import OnEvent
from railyard.failure.active import Operator
from railyard.failure.analysis.state_snapshot import StateSnapshot, snapshot_state
from railyard.failure.probes.sites import Site
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import EmulatedNet, FabricNet
from railyard.topologies.measure.counters import Counters, count
from railyard.topologies.measure.rates import Sample, calibrate
from railyard.topologies.plan import Plan
from railyard.workloads.replay.run import Place


class Meter(Protocol):
    """A meter of the load of machines, which measures while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    @property
    def load(self) -> MachineLoad:
        """The load so far."""

    def take_samples(self) -> list[LoadSample]:
        """Return the samples since the last call."""


class Machines:
    """Base of the machines of a run, and this machine alone: what sessions and measures need of them.

    Times of faults and probes are those of this machine's clock.
    """

    are_several = False

    def built(
        self, plan: Plan, datapath: Datapath, reroute: bool, on_event: OnEvent, user_app: str
    ) -> tuple[ControllerProcess, FabricNet]:
        """Return the controller and the network of a fabric, not yet started.

        `reroute`: the controller reroutes pairs. `user_app`: the file of an OpenFlow app; "" for the usual one.
        """
        controller = ControllerProcess(reroute, on_event, user_app=user_app)
        return controller, FabricNet(plan, datapath, controller, backups=reroute)

    def meter(self, late_s: float) -> Meter:
        """Return a meter of the machines' load. `late_s`: what is later than that is a pause."""
        return LoadMeter(late_s)

    def counters(self, net: EmulatedNet) -> Counters:
        """Return the counters of a fabric."""
        return count(net)

    def relaxed_tcp_timers(self, net: FabricNet, longest_queue_s: float) -> AbstractContextManager[None]:
        """Relax TCP loss detection at all GPUs while the result is entered."""
        return namespaces.relaxed_tcp_timers(net.plan.hosts, longest_queue_s)

    def calibrate(self, net: FabricNet) -> list[Sample]:
        """Measure a sample of every class of link."""
        return calibrate(net)

    def operator(self, net: EmulatedNet) -> Operator:
        """Return what injects faults on a fabric."""
        return Operator(net)

    def snapshot(self, net: FabricNet) -> StateSnapshot:
        """Return the kernel state of all nodes of a fabric."""
        return snapshot_state(net.node_names)

    def sites(self) -> Sequence[Site]:
        """Return the machines as probes need them, with their clocks as they were measured last."""
        return (Site(),)

    def places(self) -> Sequence[Place]:
        """Return the machines as a replay needs them; none for this machine alone."""
        return ()

    def measure_clocks(self) -> float:
        """Measure the clocks of the machines; return how far one may be from that of this machine, s."""
        return 0.0

    def underlay_sent_bytes(self) -> int:
        """Return what the network between the machines has carried."""
        return 0

    def expected_underlay_bytes(self, rail_out: Sequence[int], rail_in: Sequence[int], mtu: int) -> float:
        """Return what that network should carry for TCP payload between GPUs and rail switches.

        `rail_out`, `rail_in`: payload by GPU number.
        """
        return 0.0

    def provenance(self) -> list[dict[str, Any]]:
        """Return what a run records of its machines, if there are several."""
        return []


_current: list[Machines] = [Machines()]


def current() -> Machines:
    """Return the machines of this run."""
    return _current[-1]


@contextmanager
def used(machines: Machines) -> Iterator[None]:
    """Let these be the machines of the run while entered."""
    _current.append(machines)
    try:
        yield
    finally:
        _current.pop()
