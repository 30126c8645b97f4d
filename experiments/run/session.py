"""One fabric, built for an experiment: its network, its controller, what the controller told, and what it carries."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.host import Datapath
from railyard.core.host_load import LoadMeter
from railyard.core.records import IntervalId
from railyard.results.runs.records import Event, FabricRun, LinkCheck, Load, Run
from railyard.topologies.build.namespaces import relaxed_tcp_timers
from railyard.topologies.build.network import FabricNet
from railyard.topologies.measure.counters import Counters, count
from railyard.topologies.measure.rates import calibrate
from railyard.topologies.plan import Plan

ControllerEvent = tuple[int, str, dict[str, Any]]
"""(monotonic ns, what, detail)"""
_SAMPLES: Final = frozenset({"health", "choice"})  # recorded as rows of their own: too many for events


@dataclass
class Watch:
    """A stretch that is watched: the fabric's counters at its begin, and once it is over, at its end."""

    counted: Counters


@dataclass
class FabricSession:
    """A built fabric. `label`: its name in every record; `steered_by`: the policy that steers its routes, if any.

    `received`: what its controller and agents have said so far.
    """

    label: str
    net: FabricNet
    controller: ControllerProcess
    received: list[ControllerEvent] = field(default_factory=list)
    steered_by: str = ""

    @property
    def plan(self) -> Plan:
        return self.net.plan

    @property
    def policy(self) -> str:
        return self.steered_by or self.plan.policy

    @property
    def name(self) -> str:
        """Its label, with the policy that steers it, for progress messages."""
        return " ".join(filter(None, (self.label, self.steered_by)))

    def interval(self, workload: str = "", repeat: int = 0, scene: str = "", script: str = "") -> IntervalId:
        """Return the identity of what is measured on it."""
        return IntervalId(self.label, workload, self.policy, scene, script, repeat)

    def on_event(self, at: int, what: str, detail: dict[str, Any]) -> None:
        """From whatever thread."""
        self.received.append((at, what, detail))

    def events(self) -> list[ControllerEvent]:
        """What the controller has told so far."""
        return list(self.received)

    @contextmanager
    def watched(
        self, run: Run, interval: IntervalId, faulted: bool = False, since: Counters | None = None
    ) -> Iterator[Watch]:
        """Record how hard the machine worked meanwhile, and what TCP and queues lost. `since`: counted just before."""
        watch = Watch(since or count(self.net))
        before = watch.counted
        with LoadMeter() as meter:
            yield watch
        watch.counted = count(self.net)
        spent, load = watch.counted.since(before), meter.load
        lost = (spent.retransmits, spent.segments, spent.drops)
        run.loads.append(Load(interval, load.busy, load.foreign, load.lag_p99_ms, *lost, transfers_faulted=faulted))


@contextmanager
def built(label: str, plan: Plan, datapath: Datapath, reroute: bool, run: Run) -> Iterator[FabricSession]:
    """Build a fabric and take it down again, and record both. `reroute`: find ways round what is broken."""
    received: list[ControllerEvent] = []
    controller = ControllerProcess(reroute, lambda *event: received.append(event))
    net = FabricNet(plan, datapath, controller, backups=reroute)
    net.start()
    gc.collect()
    gc.freeze()  # to look through all libraries takes 0.1 s, and hearts and takeovers wait for this process meanwhile
    run.provenance["switch_buffers"] = net.switch_buffers
    try:
        yield FabricSession(label, net, controller, received)
    finally:
        net.stop()
        events = [event for event in list(received) if event[1] not in _SAMPLES]
        run.events += [Event(at, "controller", what, {"fabric": label, **detail}) for at, what, detail in events]
        _record_fabric(label, net, run)


def _record_fabric(label: str, net: FabricNet, run: Run) -> None:
    """Once for each label, however often it was built."""
    if any(fabric.label == label for fabric in run.fabrics):
        return
    plan = net.plan
    run.fabrics.append(
        FabricRun(
            label=label,
            policy=plan.policy,
            kind=plan.spec.kind,
            domains=plan.spec.domains,
            rails=plan.spec.rails,
            rail_bps=plan.rail_bps,
            hb_bps=plan.hb_bps,
            mtu=plan.spec.mtu,
            platform=plan.spec.platform,
            spines=plan.spec.spine_count,
            uplink_bps=plan.uplink_bps if plan.uplinks else 0,
            switches=tuple(switch.name for switch in plan.switches),
            datapath=net.datapath,
            build_s=net.build_s,
            stop_s=net.stop_s,
            optics=tuple(plan.optics),
        )
    )


def check_links(session: FabricSession, run: Run) -> None:
    """iperf3 on a sample of every class of link."""
    with relaxed_tcp_timers(session.net.gpu_names):
        measured = calibrate(session.net)
    run.links += [LinkCheck(session.label, s.link_class, s.name, s.expected_bps, s.measured_bps) for s in measured]
