"""Sessions: a fabric built for an experiment, with its controller's events, its load and the rates of its links."""

import gc
import importlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from railyard.controller.health.estimator import HealthSpec, RegistryKind
from railyard.controller.processes.clients import ControllerProcess
from railyard.core import watch as presence
from railyard.core.crash import WorkerCrashed
from railyard.core.errors import BadInput, CheckFailed, RailyardError
from railyard.core.host import Datapath
from railyard.core.host_load import tolerated_lateness_s
from railyard.core.records import IntervalId
from railyard.core.wait import poll
from railyard.experiments.run import observers
from railyard.experiments.run.machines import Machines, Meter, current
from railyard.experiments.spec.faults import ATTEMPTS
from railyard.failure.analysis.evaluate import active_detours
from railyard.failure.faults import Fault
from railyard.failure.probes.ports import ProbePorts
from railyard.results.analysis.findings import link_findings
from railyard.results.measured import MEASURED
from railyard.results.runs.records import (
    INJECTED_LATE,
    LATE_S,
    PROCESS,
    REPEATED,
    RUN,
    Event,
    FabricRun,
    LinkCheck,
    Load,
    MachineSample,
    Run,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import EmulatedNet, FabricNet
from railyard.topologies.measure.counters import Counters
from railyard.topologies.measure.rates import Sample, latency_s
from railyard.topologies.plan import Plan
from railyard.workloads.replay.job import Windows, windows_for_links

ControllerEvent = tuple[int, str, dict[str, Any]]  # (monotonic ns, name, detail)
# the port of the discard service: nothing answers
INTRODUCTION_PORT: Final = 9
INTRODUCTIONS: Final = 5  # tries of a second each
RESTORE_S: Final = 2.0  # for detours to be withdrawn after a repair
DETOUR_POLL_S: Final = 0.01


@cache
def _sampled_events() -> frozenset[str]:
    """Return the names of controllers' events that measures record as rows of their own: too many for events."""
    return frozenset().union(*(measure.sampled_events for measure in MEASURED.values()))


def record_interruptions(run: Run, interval: IntervalId) -> None:
    """Record as events of an interval which processes died or were stopped since the last call."""
    detail = interval.as_dict()
    for interruption in presence.take():
        text = str(interruption)
        run.events.append(Event(interruption.start_ns, PROCESS, "interrupted", {**detail, "text": text}))


def fault_events(interval: IntervalId, fault: Fault, injected_ns: int, repaired_ns: int = 0) -> list[Event]:
    """Return the events of a fault in an interval. Times are monotonic ns; `repaired_ns`: 0 while the fault lasts."""
    detail = {**interval.as_dict(), "target": fault.target}
    events = [Event(injected_ns, "fault", fault.kind, detail)]
    if repaired_ns:
        events.append(Event(repaired_ns, "fault", "repair", detail))
    return events


def record_late_injection(
    run: Run, interval: IntervalId, fault: Fault, injected_ns: int, late_ns: int, missed: str = ""
) -> None:
    """Record as an event of an interval that a fault was injected late, if by more than LATE_S or too late.

    `missed`: what the fault was to hit, if that was over by then.
    """
    seconds = late_ns / 1e9
    if missed or seconds > LATE_S:
        text = f"{fault.kind} {fault.target} was injected {seconds:.2f} s late"
        detail: dict[str, Any] = {**interval.as_dict(), "seconds": seconds, "text": text}
        if missed:
            detail |= {"text": f"{text}, after the end of {missed}", "missed": missed}
        run.events.append(Event(injected_ns, RUN, INJECTED_LATE, detail))


@contextmanager
def surviving_interruptions(run: Run, interval: IntervalId) -> Iterator[None]:
    """Go on after an error while a process was missing, unless what follows needs that process too.

    The error is recorded. ProcessMissing if the process is missing still. A crash is no interruption, but a defect.
    """
    start_ns = time.monotonic_ns()
    try:
        yield
    except Exception as error:
        # an error of any type may follow from the lack of a process, such as one about a connection that it closed
        causes = presence.since(start_ns)
        record_interruptions(run, interval)
        if not causes or isinstance(error, WorkerCrashed):
            raise
        names_it = isinstance(error, presence.ProcessMissing)
        text = str(error) if names_it else f"{causes[0]}: {error}"
        detail = {**interval.as_dict(), "text": text}
        run.events.append(Event(time.monotonic_ns(), PROCESS, "interval-failed", detail))
        # every interval that follows would fail as well
        presence.check()


@dataclass
class Watch:
    """Load and losses of a run's intervals. `counted`: the kernel's counters when the last interval ended."""

    net: EmulatedNet
    counted: Counters
    dilation: float = 1.0
    machines: Machines = field(default_factory=Machines)
    _intervals: dict[IntervalId, tuple[int, Meter, Counters]] = field(default_factory=dict)

    @contextmanager
    def record_load(self, run: Run, interval_id: IntervalId, faulted: bool = False) -> Iterator["Watch"]:
        """Record the machine's load while entered, and what TCP and queues lost.

        An interval of several parts, with others between them, gets one record. The losses of a part that fails belong
        to no later interval.
        """
        late_s = tolerated_lateness_s(0.0 if faulted else self.net.plan.frame_s)
        # the place among the run's loads (the next one if it is negative), the meter and the losses so far
        row, meter, spent = self._intervals.get(interval_id, (-1, self.machines.meter(late_s), Counters(0, 0, 0)))
        before = self.counted
        # those of the time before belong to no interval
        record_interruptions(run, IntervalId(interval_id.fabric))
        presence.check()
        try:
            with meter:
                yield self
        finally:
            record_interruptions(run, interval_id)
            self.counted = self.machines.counters(self.net)
            self._intervals[interval_id] = row, meter, spent
        row = row if row >= 0 else len(run.loads)
        spent = spent + (self.counted - before)
        self._intervals[interval_id] = row, meter, spent
        lost = spent.non_negative
        load = meter.load
        (node, interface), most = lost.worst_port
        run.machine += [MachineSample(interval_id, *sample) for sample in meter.take_samples()]
        run.loads[row : row + 1] = [
            Load(
                interval_id, load.busy, load.foreign, load.lag_p99_ms, lost.retransmits, lost.segments, lost.drops,
                transfers_faulted=faulted, dilation=self.dilation, cpu_stolen=load.stolen,
                cpu_throttled=load.throttled, paused=load.paused, pause_ms=load.pause_ms, busy_100ms=load.busy_100ms,
                foreign_100ms=load.foreign_100ms, stolen_100ms=load.stolen_100ms, needless_retransmits=lost.needless,
                drops_node=node, drops_interface=interface, drops_most=most, late_ms=late_s * 1e3,
                cpu_resolution=load.resolution,
            )
        ]  # fmt: skip


@dataclass
class Session:
    """A built fabric. `label`: its name in every record. `machines`: those that it is on."""

    label: str
    net: EmulatedNet
    machines: Machines = field(default_factory=Machines, kw_only=True)

    def watch(self, since: Counters | None = None) -> Watch:
        """Return a watch that counts from now on, or from `since`."""
        since = since or self.machines.counters(self.net)
        return Watch(self.net, since, self.net.plan.dilation, self.machines)


@dataclass
class FabricSession(Session):
    """A built fabric of GPUs. `steered_by`: the policy that steers its routes, if any.

    `received`: the events of its controller and agents so far, of which `recorded` gets those that aren't samples.
    `faults`: those that were injected, with the times (ns) of each and of its repair, also of repeated intervals.
    `registry_uses`: the registry of each active fault that needs health scores. `probe_ports`: for the probes of faults
    that are active together.
    """

    net: FabricNet
    controller: ControllerProcess
    received: list[ControllerEvent] = field(default_factory=list)
    steered_by: str = ""
    recorded: list[Event] = field(default_factory=list, repr=False)
    faults: list[tuple[Fault, int, int]] = field(default_factory=list)
    registry_uses: list[RegistryKind] = field(default_factory=list)
    probe_ports: ProbePorts = field(default_factory=ProbePorts)

    @property
    def plan(self) -> Plan:
        """The plan of its network."""
        return self.net.plan

    @contextmanager
    def relaxed_tcp_timers(self, longest_queue_s: float = 0.0) -> Iterator[None]:
        """Relax TCP loss detection at all GPUs while entered."""
        with self.machines.relaxed_tcp_timers(self.net, longest_queue_s):
            yield

    @contextmanager
    def health_scores(self, registry: RegistryKind | None) -> Iterator[None]:
        """Compute health scores and publish them in a registry while entered; without one, do nothing.

        Faults that are active together share the scores: they end when the last of them is left. BadInput for another
        kind of registry meanwhile.
        """
        if registry is None:
            yield
            return
        if self.registry_uses and registry not in self.registry_uses:
            allowed = f"can't run beside {self.registry_uses[0]}, which an active fault uses: repair that one first"
            raise BadInput("registry", registry, allowed)
        if not self.registry_uses:
            self.controller.start_health(HealthSpec(registry=registry))
        self.registry_uses.append(registry)
        try:
            yield
        finally:
            self.registry_uses.remove(registry)
            if not self.registry_uses:
                self.controller.stop_health()

    def await_detours_withdrawn(self) -> None:
        """Wait until no detour is left: the next fault would not affect its traffic. CheckFailed if one stays."""

        def are_withdrawn() -> bool:
            return not active_detours(self.events())

        if not poll(are_withdrawn, RESTORE_S, DETOUR_POLL_S):
            remaining = active_detours(self.events())
            raise CheckFailed(f"{self.label}: {remaining} detours of an earlier fault are still there")

    def record_fault(self, run: Run, interval: IntervalId, fault: Fault, injected_ns: int, repaired_ns: int) -> None:
        """Record the injection and the repair of a fault in an interval, monotonic ns."""
        run.events += fault_events(interval, fault, injected_ns, repaired_ns)
        self.faults.append((fault, injected_ns, repaired_ns))

    def record_event(self, interval: IntervalId, source: str, event_name: str, **detail: Any) -> None:
        """Record an event of an interval, now, and show it on the live page. `detail`: of its sentence, as plain data.

        `source`: the measure; `event_name`: a word. Measure.sentences has its sentence by the name `SOURCE-WHAT`.
        """
        now_ns = time.monotonic_ns()
        self.recorded.append(Event(now_ns, source, event_name, {**interval.as_dict(), **detail}))
        observers.show(f"{source}-{event_name}", detail, now_ns)

    @property
    def windows(self) -> Windows:
        """TCP windows of transfers on its links."""
        return windows_for_links(self.plan.hb_bps, self.plan.rail_bps, self.plan.spec.mtu)

    @property
    def not_compared(self) -> str:
        """Reason why times on this fabric can't be compared with predictions; "" where they can."""
        user_app = self.controller.user_app
        if not user_app or not self.plan.spec.graph.has_loops:
            return ""
        return f"{Path(user_app).name} chooses among several paths"

    @property
    def policy(self) -> str:
        """The policy of its routes."""
        return self.steered_by or self.plan.spec.chosen_policy

    @property
    def name(self) -> str:
        """Its label, with the policy that steers it, for progress messages."""
        return " ".join(filter(None, (self.label, self.steered_by)))

    def interval(self, workload: str = "", repeat: int = 0, scene: str = "", script: str = "") -> IntervalId:
        """Return the identity of what is measured on it."""
        return IntervalId(self.label, workload, self.policy, scene, script, repeat)

    def on_event(self, at: int, event_name: str, detail: dict[str, Any]) -> None:
        """Note an event; called from any thread."""
        _note(self.label, self.received, self.recorded, at, event_name, detail)

    def events(self) -> list[ControllerEvent]:
        """Return the events so far."""
        return list(self.received)


def _note(
    label: str,
    received: list[ControllerEvent],
    recorded: list[Event],
    at: int,
    event_name: str,
    detail: dict[str, Any],
) -> None:
    """Note an event of a fabric's controller or agents."""
    received.append((at, event_name, detail))
    observers.show(event_name, detail, at)
    if event_name not in _sampled_events():
        recorded.append(Event(at, "controller", event_name, {"fabric": label, **detail}))


@contextmanager
def built(label: str, plan: Plan, datapath: Datapath, reroute: bool, run: Run) -> Iterator[FabricSession]:
    """Build a fabric and take it down again, and record both. `reroute`: the controller reroutes pairs."""
    received: list[ControllerEvent] = []
    note = partial(_note, label, received, run.events)
    machines = current()
    controller, net = machines.built(plan, datapath, reroute, note, run.experiment.controller)
    with ExitStack() as stack:
        stack.callback(_record_stop, label, net, run)
        stack.enter_context(built_net(label, net, run))
        # importing it takes 0.2 s, by which the first fault would come late
        importlib.import_module("pyroute2")
        gc.collect()
        # a full collection takes 0.1 s, and heartbeats and GPU replacements would wait for it
        gc.freeze()
        run.provenance["switch_buffers"] = net.switch_buffers
        if not any(fabric.label == label for fabric in run.fabrics):
            run.fabrics.append(_fabric_record(label, net))
        if controller.user_app:
            introduce(plan, Path(controller.user_app).name)
        with observers.fabric(label, net, run.events):
            yield FabricSession(label, net, controller, received, recorded=run.events, machines=machines)


@contextmanager
def built_net(label: str, net: EmulatedNet, run: Run) -> Iterator[None]:
    """Start the network of a fabric, and stop it; record which processes died or were stopped meanwhile."""
    net.start()
    try:
        yield
    finally:
        record_interruptions(run, IntervalId(label))
        net.stop()


def _fabric_record(label: str, net: FabricNet) -> FabricRun:
    """Return the record of a fabric that was started."""
    plan = net.plan
    spec = plan.spec
    return FabricRun(
        label=label,
        policy=spec.chosen_policy,
        kind=spec.kind,
        domains=spec.domains,
        rails=spec.rails,
        rail_bps=plan.rail_bps,
        hb_bps=plan.hb_bps,
        mtu=spec.mtu,
        platform=spec.platform,
        spines=spec.spine_count,
        uplink_bps=plan.uplink_bps if plan.uplinks else 0,
        switches=tuple(switch.name for switch in plan.switches),
        datapath=net.datapath,
        build_s=net.build_s,
        stop_s=0.0,
        optics=tuple(plan.optics),
        cables=_cables(plan),
        nics=spec.rail_of_rank,
    )


def _record_stop(label: str, net: FabricNet, run: Run) -> None:
    """Record how long the fabric took to stop; of one that is built several times, the first time."""
    for number, fabric in enumerate(run.fabrics):
        if fabric.label == label and not fabric.stop_s:
            run.fabrics[number] = replace(fabric, stop_s=net.stop_s)


def introduce(plan: Plan, user_app: str) -> None:
    """Let each GPU send a packet to the next one of its rank, and return once the last of them arrive.

    RailyardError if no packet arrives: then the user's app forwards none.
    """
    # Hosts elsewhere would ask for addresses by ARP, from which a learning switch learns where they are. GPUs have
    # permanent neighbours and never ask.
    domains = plan.spec.domains
    pairs = [(gpu, Gpu((gpu.domain + 1) % domains, gpu.rank)) for gpu in plan.gpus]
    for src, dst in pairs:
        with namespaces.open_socket(src.name) as sender:
            sender.sendto(b"x", (dst.ip, INTRODUCTION_PORT))
    for src, dst in pairs[-plan.spec.rails :]:
        for _ in range(INTRODUCTIONS):
            if latency_s(src, dst) is not None:
                break
        else:
            text = f"no packet arrives from {src.name} at {dst.name} within {INTRODUCTIONS} s"
            raise RailyardError(f"{text}: {user_app} doesn't forward them")


def check_links(session: FabricSession, run: Run) -> None:
    """Measure a sample of every class of link by iperf3, and again while one is off, as often as `attempts` allows.

    The machine may have stood still meanwhile; a link that is shaped wrongly stays off. An event has the reason.
    """
    attempts = run.experiment.attempts or ATTEMPTS
    for attempt in range(1, attempts + 1):
        links: list[LinkCheck] = []
        for sample in _measured_links(session):
            name = f"{sample.src.name} -> {sample.dst.name}"
            rates_bps = (sample.expected_bps, sample.measured_bps)
            link = LinkCheck(session.label, sample.link_class, name, *rates_bps, latency_s=sample.latency_s)
            links.append(link)
        problems = [finding.text for finding in link_findings(links) if finding.verdict != "ok"]
        if not problems or attempt == attempts:
            run.links.extend(links)
            return
        detail = {**IntervalId(session.label).as_dict(), "text": problems[0]}
        run.events.append(Event(time.monotonic_ns(), RUN, REPEATED, detail))


def _cables(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the cables of the NIC network of a kind that is a graph, for drawings; none for other kinds."""
    if not plan.spec.definition.is_graph:
        return ()
    links = [plan.rail_link(gpu) for gpu in plan.gpus]
    links += plan.uplinks
    return tuple((link.a.node, link.b.node) for link in links)


def _measured_links(session: FabricSession) -> list[Sample]:
    with session.relaxed_tcp_timers():
        return session.machines.calibrate(session.net)


def repeat_suffix(repeat: int, repeats: int) -> str:
    """Return `, 2 of 3` for the title of a step that is repeated; nothing for a single one."""
    if repeats == 1:
        return ""
    return f", {repeat + 1} of {repeats}"
