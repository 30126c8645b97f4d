"""Fabric of a script, inside the sandbox: workloads, probes and faults on request, measured as experiments measure."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.host import datapath_choice, detect
from railyard.core.provenance import provenance
from railyard.core.records import IN_FLIGHT_NS, Recovered, Recovery
from railyard.core.wait import poll
from railyard.experiments.api.messages import FabricInfo, Ping
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.measures.workloads.replay import run_faulted_workload, run_workload
from railyard.experiments.measures.workloads.run import make_workloads
from railyard.experiments.measures.workloads.turn import Turn
from railyard.experiments.run import observers
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import RESTORE_S, FabricSession, built, check_links, fault_events
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.heartbeats import HeartbeatsSpec
from railyard.experiments.spec.parsing import parse
from railyard.failure.active import ActiveFault
from railyard.failure.analysis.evaluate import AFTER_S, WARM_UP_S, ScriptObservations, active_detours, evaluate_all
from railyard.failure.pairs import PairSelection, monitored_pairs
from railyard.failure.probes.traffic import Traffic, TrafficJob, TrafficLog
from railyard.failure.recovery_times import OBSERVE_S
from railyard.failure.script import Script
from railyard.results.runs.records import LIVE, LinkCheck, Run
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import relaxed_tcp_timers
from railyard.topologies.capacity import Capacity, auto_rail_bps
from railyard.topologies.measure import rates
from railyard.topologies.plan import make_plan

# A controller without an event for so long has reacted to all of a fault.
STEADY_NS: Final = 300_000_000
# Time until heartbeats are received from all GPUs.
SETTLE_S: Final = 0.5
_POLL_S: Final = 0.1


@dataclass
class ProbedFault:
    """An active fault and the probes of the pairs that it affects. `begun_ns`: when they began, monotonic ns.

    `run` has its records. `load` records the machine's load until it is closed; `scores` keeps the health scores that
    its kind needs until its repair.
    """

    spec: FaultSpec
    active: ActiveFault
    script: Script
    selection: PairSelection
    run: Run
    traffic: Traffic
    probe_port: int
    load: ExitStack = field(default_factory=ExitStack)
    scores: ExitStack = field(default_factory=ExitStack)
    begun_ns: int = 0
    is_confirmed: bool = False  # it took effect
    is_first_packet_shown: bool = False  # on the live page


class LiveFabric:
    """A built fabric, its calibration, and the faults that are active. `spec`: an experiment with this fabric alone."""

    def __init__(self, spec: ExperimentSpec, session: FabricSession, base: Run, reroute: bool) -> None:
        """`base`: the records of building it."""
        self._spec = spec
        self._session = session
        self._base = base
        self._reroute = reroute
        self._links: list[LinkCheck] = []
        self._faults: dict[int, ProbedFault] = {}
        self._heartbeats = ExitStack()

    def run(self, workload: dict[str, Any], repeats: int, seed: int) -> Run:
        """Run a workload `repeats` times and return its records. BadInput if it doesn't fit the fabric."""
        spec = self._experiment(workloads=[workload], repeats=repeats, seed=seed)
        run = self._new_run(spec)
        started = time.monotonic()
        for made in make_workloads(spec, self._session.plan, self._session.label, run, seed):
            for repeat in range(repeats):
                turn = Turn(self._session, made, repeat, seed, run)
                run_turn: Callable[[Turn], None] = run_workload
                if self._faults:
                    run_turn = self._run_faulted
                measure_undisturbed(run, partial(run_turn, turn))
        run.duration_s = time.monotonic() - started
        return self._with_clicks(run)

    def _run_faulted(self, turn: Turn) -> None:
        """Run a workload while faults are active: detours cross the same ports, and no equation predicts its time."""
        names = " + ".join(fault.spec.label for fault in self._faults.values())
        run_faulted_workload(turn, replace(turn.interval, reroute=self._mode, part=names))

    def ping(self, src: str, dst: str, count: int, timeout_s: float) -> tuple[Ping, Run]:
        """Send datagrams to a GPU and back, one at a time; return also the load meanwhile.

        BadInput for a GPU that the fabric lacks.
        """
        a = self._gpu("src", src)
        b = self._gpu("dst", dst)
        replies = []
        run = self._bare_run()
        with (
            self._session.watch().record_load(run, self._session.interval("ping"), faulted=True),
            namespaces.open_socket(a.name) as near,
            namespaces.open_socket(b.name) as far,
        ):
            for sock, gpu in ((near, a), (far, b)):
                sock.bind((gpu.ip, 0))
                sock.settimeout(timeout_s)
            for number in range(count):
                sent_ns = time.monotonic_ns()
                text = b"%d" % number
                try:
                    near.sendto(text, far.getsockname())
                    while far.recv(64) != text:
                        # a late answer to an earlier request
                        pass
                    far.sendto(text, near.getsockname())
                    while near.recv(64) != text:
                        pass
                # no answer in time, or no route
                except OSError:
                    continue
                replies.append((time.monotonic_ns() - sent_ns) / 1e6)
        return Ping(count, tuple(replies)), self._with_clicks(run)

    def iperf(self, src: str, dst: str, seconds: int) -> tuple[float, Run]:
        """Return the payload rate of one TCP flow, bit/s, by iperf3, and the load meanwhile."""
        a = self._gpu("src", src)
        b = self._gpu("dst", dst)
        run = self._bare_run()
        interval = self._session.interval("iperf")
        is_faulted = bool(self._faults)
        with relaxed_tcp_timers((a.name, b.name)), self._session.watch().record_load(run, interval, is_faulted):
            bps = rates.measured_bps(rates.start_flow(a.name, b.name, b.ip, seconds))
        return bps, self._with_clicks(run)

    def inject(self, number: int, data: dict[str, Any]) -> int:
        """Inject a fault, probe the pairs that it affects until its repair, and return `number`.

        BadInput for a fault that doesn't fit the fabric.
        """
        experiment = self._experiment(faults=[data])
        (spec,) = FaultsMeasure().faults(experiment)
        session = self._session
        script = spec.script(session.plan, 0)
        selection = replace(monitored_pairs(spec.fault, session.plan), streams=(), affected=frozenset())
        run = self._new_run(experiment)
        if not self._faults:
            session.await_detours_withdrawn()
        if not self._faults and self._reroute:
            self._heartbeats.enter_context(heartbeats_running(session, HeartbeatsSpec(), self._new_run(self._spec)))
            time.sleep(SETTLE_S)
        port = session.probe_ports.take()
        job = TrafficJob(streams=(), probes=selection.probes, stream_bytes_per_s=0.0, port=port)
        active = ActiveFault(session.net, spec.fault, observers.show_fault)
        fault = ProbedFault(spec, active, script, selection, run, Traffic(job), port)
        interval = replace(session.interval(), reroute=self._mode, part=spec.label)
        try:
            fault.scores.enter_context(session.health_scores(spec.registry))
            fault.load.enter_context(session.watch().record_load(run, interval, faulted=True))
            fault.begun_ns = time.monotonic_ns()
            fault.traffic.start()
            time.sleep(WARM_UP_S)
            active.begin()
            fault.is_confirmed = True
        except BaseException:
            self._faults[number] = fault
            self.repair(number)
            raise
        self._faults[number] = fault
        return number

    def observe(self, number: int) -> Run:
        """Wait until packets flow again and the controller is idle, within `OBSERVE_S`; return the recovery so far."""
        fault = self._faults[number]
        recoveries: list[Recovery] = []

        def is_settled() -> bool:
            now_ns = time.monotonic_ns()
            event_times = [at_ns for at_ns, _, _ in self._session.events()]
            last_ns = max([fault.active.injected_ns, *event_times])
            if now_ns - last_ns < STEADY_NS:
                return False
            recoveries[:] = [self._evaluate(fault, fault.traffic.peek(), now_ns)]
            return recoveries[0].recovered is not Recovered.NO

        poll(is_settled, OBSERVE_S, _POLL_S)
        if not recoveries:
            recoveries = [self._evaluate(fault, fault.traffic.peek(), time.monotonic_ns())]
        return self._recorded(fault, recoveries[0])

    def repair(self, number: int) -> Run:
        """Repair a fault, wait until its detours are withdrawn, and return its recovery."""
        fault = self._faults.pop(number)
        with ExitStack() as ports, fault.scores, fault.load, fault.traffic, ExitStack() as last:
            # the probes use the port until they have ended
            ports.callback(self._session.probe_ports.release, fault.probe_port)
            if not self._faults:
                last.callback(self._heartbeats.close)
            if not fault.is_confirmed:
                fault.active.close()
                return fault.run
            fault.active.repair()
            time.sleep(AFTER_S)
            poll(lambda: not active_detours(self._session.events()), RESTORE_S)
            row = self._evaluate(fault, fault.traffic.peek(), time.monotonic_ns())
        return self._recorded(fault, row, fault.active.repaired_ns)

    def _evaluate(self, fault: ProbedFault, log: TrafficLog, now_ns: int) -> Recovery:
        """Return the recovery by what was observed until now; a fault that lasts is evaluated as if repaired now."""
        # later probes may still be on their way
        until_ns = now_ns - IN_FLIGHT_NS
        probes = [probe.before(until_ns) for probe in log.probes]
        observed = ScriptObservations(
            self._session.plan, fault.script, (), fault.selection.probes, TrafficLog(probes=probes), fault.begun_ns,
            [fault.active.injected_ns], [fault.active.repaired_ns or until_ns], self._session.events(),
        )  # fmt: skip
        return evaluate_all(observed, (fault.selection,))[0][0].recovery

    def _recorded(self, fault: ProbedFault, row: Recovery, repaired_ns: int = 0) -> Run:
        """Return the records of a fault: its recovery, and the load until now. `repaired_ns`: 0 while it lasts."""
        # a fault that cut no packets off is shown too, with 0 ms
        if row.recovered is not Recovered.NO and not fault.is_first_packet_shown:
            observers.show_first_packet(row)
            fault.is_first_packet_shown = True
        fault.load.close()
        interval = row.interval
        if fault.run.loads:
            interval = fault.run.loads[0].interval
        fault.run.rows(RECOVERIES)[:] = [replace(row, interval=interval)]
        fault.run.events.clear()
        if repaired_ns:
            self._session.record_fault(fault.run, interval, fault.spec.fault, row.t_fault, repaired_ns)
        else:
            # not among the session's faults: only after the repair is it known how long it was active
            fault.run.events += fault_events(interval, fault.spec.fault, row.t_fault)
        return self._with_clicks(fault.run)

    def _with_clicks(self, run: Run) -> Run:
        """Add the clicks on the live page so far to a run's records: nothing predicts what was measured after one."""
        run.events += [event for event in self._base.events if event.source == LIVE]
        return run

    def draw(self) -> str:
        """Return a drawing of the fabric as SVG."""
        # Matplotlib takes most of a second to load
        from railyard.results.plots import fabric as drawing

        return drawing.draw(self._base.fabrics[0]).svg

    def info(self, capacity: Capacity | None, live_url: str) -> FabricInfo:
        """Return what a script may know of the fabric."""
        plan = self._session.plan
        net = self._session.net
        switches = tuple(name for name in net.node_names if name not in plan.addresses)
        rail_bps = plan.rail_bps
        hb_bps = plan.hb_bps
        measured = tuple(capacity) if capacity else None
        return FabricInfo(
            plan.title, dict(plan.addresses), switches, rail_bps, hb_bps, net.datapath, net.build_s, measured, live_url
        )

    @property
    def _mode(self) -> str:
        return "on" if self._reroute else "off"

    def _experiment(self, **sections: Any) -> ExperimentSpec:
        """Return the experiment that a request amounts to, with all its checks."""
        return parse({**self._spec.resolved(), **sections, "plugins": []})

    def _bare_run(self) -> Run:
        """Return records for the machine's load alone."""
        return Run(self._spec.name, self._spec.resolved(), self._base.provenance, "")

    def _new_run(self, spec: ExperimentSpec) -> Run:
        """Return records with what all requests share; the first one calibrates the links."""
        if not self._links and not self._faults:
            calibrated = Run(spec.name, {}, {}, "")
            check_links(self._session, calibrated)
            self._links = calibrated.links
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return Run(
            spec.name,
            spec.resolved(),
            self._base.provenance,
            started,
            fabrics=list(self._base.fabrics),
            links=list(self._links),
        )

    def _gpu(self, key: str, name: str) -> Gpu:
        gpus = {gpu.name: gpu for gpu in self._session.plan.gpus}
        if name not in gpus:
            hint = unknown_name_hint(name, gpus).replace("known", f"a GPU of {self._session.plan.title}", 1)
            raise BadInput(key, name, hint)
        return gpus[name]


@contextmanager
def live_fabric(
    spec: ExperimentSpec, reroute: bool, capacity: Capacity | None, live_url: str = ""
) -> Iterator[tuple[LiveFabric, FabricInfo]]:
    """Build the fabric of an experiment and take it down again. An `auto` rate is measured unless it is known."""
    machine = detect()
    datapath, why = datapath_choice(machine)
    fabric = spec.gpu_fabrics[0]
    if capacity is None and fabric.rail_rate == "auto":
        capacity = spec.fabric_class.capacity(spec.fabrics, datapath)
    facts = provenance(machine, datapath, why, spec.seed)
    auto_bps = 0
    if capacity:
        auto_bps = auto_rail_bps([fabric], capacity)
        facts |= capacity.as_dict()
    plan = make_plan(fabric, auto_bps)
    spec.fabric_class.check_plan(plan, 0, capacity)
    base = Run(spec.name, {}, facts, "")
    with built(spec.labels[0], plan, datapath, reroute, base) as session:
        live = LiveFabric(spec, session, base, reroute)
        yield live, live.info(capacity, live_url)
