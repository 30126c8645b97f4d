"""Faults and failure scripts on one built fabric, and their rows in the records."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from railyard.core.errors import CheckFailed, RailyardError
from railyard.core.records import IntervalId
from railyard.core.wait import poll
from railyard.experiments.measures.definition import SharedFabric
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.spec import ScriptSpec
from railyard.experiments.measures.workloads.replay import record_faulted, replay_faulted
from railyard.experiments.measures.workloads.run import make_workloads
from railyard.experiments.measures.workloads.turn import Turn, Workload
from railyard.experiments.run import observers
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import (
    RESTORE_S,
    FabricSession,
    record_late_injection,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.experiments.spec.faults import FaultSpec, fault_dict
from railyard.failure.analysis.state_snapshot import StateSnapshot, state_differences, summarize
from railyard.failure.connectivity.check import ConnectivityChecker
from railyard.failure.faults import Fault
from railyard.failure.pairs import PairSelection, affected_pairs, monitored_pairs, select_script_pairs
from railyard.failure.recovery_times import BIN_MS
from railyard.failure.scenario.run import NOTHING, ScriptRun, run_script
from railyard.failure.script import NO_PHASES, Action, PhaseEnds, Script
from railyard.results.runs.records import CLOCK_UNCERTAINTY, LATE_S, Event, GoodputTrace, Measurement, Run
from railyard.topologies.plan import Plan
from railyard.topologies.prediction import WHOLE
from railyard.workloads.replay.job import first_phases
from railyard.workloads.replay.run import Aborted, Replay

CONNECT_S: Final = 60.0
_POLL_S: Final = 0.01
# A function that is called with the number of finished injections and repairs.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class FaultInjector:
    """Injects faults and scripts on one fabric, and records the results.

    `reroute`: "on" or "off", as it is recorded.
    """

    session: FabricSession
    reroute: str
    connectivity: ConnectivityChecker
    run: Run

    def inject(
        self, spec: FaultSpec | ScriptSpec, repeat: int, seed: int, workload: Workload | None, progress: Progress
    ) -> None:
        """Run a fault by itself, or a script, beside streams or a workload, and record it.

        With a registry, health scores run meanwhile, for faults of the registry.
        """
        self.session.await_detours_withdrawn()
        session = self.session
        script = spec.script(session.plan, seed)
        interval = replace(session.interval(repeat=repeat, script=script.name), reroute=self.reroute)
        # a single fault is a script without a name
        if not script.name:
            interval = replace(interval, part=spec.label)
        turn = None
        if workload:
            interval = replace(interval, workload=workload.label)
            turn = Turn(session, workload, repeat, seed, self.run)
        if script.name:
            self._record_faults_of(script, interval, seed)
        selections = _selections(script, session.plan)
        with session.health_scores(spec.registry):
            with _measuring_clocks(session, interval, self.run):
                load = session.watch().record_load(self.run, interval, faulted=True)
                if turn is None:
                    script_run = self._play(script, selections, progress, self.connectivity, recorded=load)
                else:
                    with load:
                        script_run, replayed = self._play_beside(script, selections, turn, progress)
            if turn is not None:
                record_faulted(turn, interval, replayed)
        self._record(interval, script_run)

    def check_restored(self, before: StateSnapshot) -> None:
        """Check that all detours are withdrawn and kernels are as `before`. CheckFailed names differences that stay."""
        self.session.await_detours_withdrawn()
        differences = list[str]()

        def is_restored() -> bool:
            differences[:] = state_differences(before, self.session.machines.snapshot(self.session.net))
            return not differences

        if not poll(is_restored, RESTORE_S, _POLL_S):
            raise CheckFailed(f"{self.session.label}: faults left a difference: {summarize(differences)}")

    def _play(
        self,
        script: Script,
        selections: Sequence[PairSelection],
        progress: Progress,
        checker: ConnectivityChecker | None = None,
        phases: PhaseEnds = NO_PHASES,
        recorded: AbstractContextManager[object] = NOTHING,
    ) -> ScriptRun:
        """Inject and repair the faults of a script on all machines of the fabric. Arguments: as of run_script."""
        return run_script(
            self.session.net,
            script,
            selections,
            self.session.events,
            checker,
            progress,
            phases,
            on_action=_show,
            sites=self.session.machines.sites(),
            operator=self.session.machines.operator(self.session.net),
            recorded=recorded,
        )

    def _play_beside(
        self, script: Script, selections: Sequence[PairSelection], turn: Turn, progress: Progress
    ) -> tuple[ScriptRun, Replay]:
        """Run a workload instead of streams, with probes, but no connectivity checks: its queues would delay them."""
        probes_only = [replace(selection, streams=(), affected=frozenset()) for selection in selections]
        workload = turn.workload
        faults_s = sum(timed.repair_s for timed in script.faults)
        abort = threading.Event()
        started = Future[int]()
        # the phases that faults follow
        ended: dict[str, Future[int]] = {}
        for timed in script.faults:
            if timed.after:
                ended[timed.after] = Future()

        def replay_broken() -> Replay:
            numbers = first_phases(workload.schedule)
            watched = {numbers[phase]: future.set_result for phase, future in ended.items()}
            try:
                callbacks = observers.replay_callbacks(workload.schedule, started.set_result, watched)
                return replay_faulted(turn, callbacks, faults_s, abort, self.session.machines.places())
            finally:
                # otherwise the player would wait for ever for a phase that never ended
                for event, future in [("it began", started), *ended.items()]:
                    if not future.done():
                        future.set_exception(CheckFailed(f"{workload.label} ended before {event} was over"))

        with ThreadPoolExecutor(1, "workload") as pool:
            replaying = pool.submit(replay_broken)
            try:
                _await_start(started, workload)
                script_run = self._play(script, probes_only, progress, phases=ended)
            except BaseException:
                abort.set()
                if isinstance(error := replaying.exception(), RailyardError) and not isinstance(error, Aborted):
                    # the workload's error is why the script could not go on
                    raise error from None
                raise
            replayed = replaying.result()
        _check_injected_in_time(script_run, replayed, workload)
        return script_run, replayed

    def _record_faults_of(self, script: Script, interval: IntervalId, seed: int) -> None:
        """Record the faults of a script. Of random ones, nothing else has what was drawn."""
        faults = [fault_dict(timed) for timed in script.faults]
        detail = {**interval.as_dict(), "seed": seed, "faults": faults}
        self.run.events.append(Event(time.monotonic_ns(), "script", script.name, detail))

    def _record(self, interval: IntervalId, script_run: ScriptRun) -> None:
        for fault in script_run.faults:
            row = replace(fault.recovery, interval=interval)
            injected = Fault(row.fault, row.target)
            self.session.record_fault(self.run, interval, injected, row.t_fault, row.t_repair)
            self.run.rows(RECOVERIES).append(row)
            observers.show_first_packet(row)
        for fault, late_s in zip(script_run.faults, script_run.late_s, strict=False):
            t_fault = fault.recovery.t_fault
            record_late_injection(self.run, interval, fault.fault, t_fault, round(late_s * 1e9))
        if any(script_run.bps):
            self.run.rows(GOODPUT).append(_goodput_trace(interval, script_run))
        for check in script_run.connectivity_checks:
            self.run.rows(CONNECTIVITY_CHECKS).append(replace(check, interval=interval))


def _selections(script: Script, plan: Plan) -> tuple[PairSelection, ...]:
    """Return the pairs that stream and are probed for each fault of a script."""
    if not script.name:
        return (monitored_pairs(script.faults[0].fault, plan),)
    return select_script_pairs(plan, [affected_pairs(timed.fault, plan) for timed in script.faults])


def _await_start(started: Future[int], workload: Workload) -> None:
    """Wait until a replay has begun. RailyardError if it doesn't."""
    try:
        started.result(CONNECT_S)
    except TimeoutError:
        raise RailyardError(f"{workload.label} did not begin within {CONNECT_S:.0f} s") from None


def _check_injected_in_time(script_run: ScriptRun, replayed: Replay, workload: Workload) -> None:
    """Raise CheckFailed if a fault was injected after the end of the workload that it should have met."""
    for number, fault_run in enumerate(script_run.faults):
        if fault_run.recovery.t_fault <= replayed.end_ns:
            continue
        fault = fault_run.fault
        lateness = ""
        if script_run.late_s and script_run.late_s[number] > LATE_S:
            lateness = f", {script_run.late_s[number]:.2f} s late,"
        raise CheckFailed(
            f"{fault.kind} at {fault.target} was injected{lateness} after the end of {workload.label}, which took "
            f"{replayed.seconds:.1f} s: it needs an earlier `at`, or the workload a longer `duration`"
        )


def _goodput_trace(interval: IntervalId, script_run: ScriptRun) -> GoodputTrace:
    """Return the goodput around the first fault; of a script, the whole of it, once."""
    first = script_run.faults[0]
    recovery = first.recovery
    repair_ms = (recovery.t_repair - recovery.t_fault) / 1e6
    if not interval.script:
        bins = (first.t_ms, first.bps, first.affected_bps)
    else:
        zero_ms = (recovery.t_fault - script_run.begun_ns) / 1e6
        t_ms = tuple(number * BIN_MS - zero_ms for number in range(len(script_run.bps)))
        bins = (t_ms, script_run.bps, script_run.bps)
    return GoodputTrace(interval, recovery.fault, recovery.target, *bins, repair_ms)


def _show(action: Action) -> None:
    """Show an injection or a repair on the live page."""
    observers.show_fault(action.operation, action.fault, action.at_ns)


@contextmanager
def _measuring_clocks(session: FabricSession, interval: IntervalId, run: Run) -> Iterator[None]:
    """Measure the clocks of several machines before and after an interval, and record their uncertainty."""
    machines = session.machines
    if not machines.are_several:
        yield
        return
    before_s = machines.measure_clocks()
    yield
    uncertainty_s = max(before_s, machines.measure_clocks())
    run.measurements.append(Measurement(interval, WHOLE, CLOCK_UNCERTAINTY, uncertainty_s, "s"))
    run.provenance["machines"] = machines.provenance()


def inject_faults(shared: SharedFabric, items: Sequence[FaultSpec | ScriptSpec]) -> None:
    """Run faults, then scripts, of a fabric. CheckFailed also if the fabric isn't as before at the end."""
    if not items:
        return
    session = shared.session
    run = shared.context.run
    machines = session.machines
    heartbeats = shared.context.spec.heartbeats if shared.reroute == "on" else "off"
    with (
        ConnectivityChecker(session.net, shared.reroute == "on", machines.sites()) as connectivity,
        heartbeats_running(session, heartbeats, run),
    ):
        injector = FaultInjector(session, shared.reroute, connectivity, run)
        before = machines.snapshot(session.net)
        for item in items:
            _inject_item(shared, injector, item)
        injector.check_restored(before)


def _inject_item(shared: SharedFabric, injector: FaultInjector, item: FaultSpec | ScriptSpec) -> None:
    """Run a fault or a script as often as it is repeated, each time as a step of the run."""
    spec = shared.context.spec
    session = shared.session
    run = shared.context.run
    times = item.times(spec)
    for repeat in range(times):
        seed = spec.seed + repeat
        title = f"{session.label}: {item.label}, reroute {shared.reroute}" + repeat_suffix(repeat, times)
        beside = _workload_beside(shared, item.during, seed)
        with (
            shared.context.steps.step(title, total=2 * item.injections),
            surviving_interruptions(run, IntervalId(session.label)),
        ):
            inject = partial(injector.inject, item, repeat, seed, beside, shared.context.steps.reached)
            measure_undisturbed(run, inject)


def _workload_beside(shared: SharedFabric, label: str | None, seed: int) -> Workload | None:
    """Return the workload that a script runs beside, by its label; None if there is none."""
    if label is None:
        return None
    session = shared.session
    for workload in make_workloads(shared.context.spec, session.plan, session.label, shared.context.run, seed):
        if workload.label == label:
            return workload
    return None
