"""GPU replacements of an experiment: a job before, during and after, each on a fabric with spares that is built for it.

The job runs iteration by iteration. In the middle of one, a GPU or server fails, and the controller reports it. The
job manager then aborts the iteration, lets a spare take over, sends it the state from GPUs that have the same, repeats
the iterations since the last checkpoint, and continues.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import median
from typing import Any, Final, NamedTuple

from railyard.core.errors import CheckFailed, RailyardError
from railyard.core.records import IntervalId
from railyard.core.wait import sleep_until, wait_until
from railyard.experiments.measures.definition import Measure, RunContext
from railyard.experiments.measures.replacement.analysis import INTERVAL_PARTS
from railyard.experiments.measures.replacement.job import ReplacementJob, replacement_job
from railyard.experiments.measures.replacement.planning import planned_replacements
from railyard.experiments.measures.replacement.records import REPLACEMENTS, Replacement
from railyard.experiments.measures.replacement.spec import ReplacementSpec
from railyard.experiments.run import observers
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import (
    FabricSession,
    built,
    record_late_injection,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.failure.active import PREPARE_S, ActiveFault
from railyard.failure.faults import Fault
from railyard.failure.probes.replacement import Prober, taken_over_ns
from railyard.results.runs.records import Event, Run
from railyard.topologies.build.gpu_replacement import HIGH_PRIORITY_NICENESS, GpuReplacement
from railyard.topologies.build.namespaces import relaxed_tcp_timers
from railyard.topologies.plan import Plan
from railyard.workloads.replay.run import Aborted, Replay, replay, time_limit_s
from railyard.workloads.schedule import Schedule

CROSS_CONNECT_REFUSED: Final = "not-crossed"
EVENT_POLL_S: Final = 0.0005
# The prober's log has the exact time, so asking it more often would only keep it busy.
PROBE_POLL_S: Final = 0.005
EVENT_TIMEOUT_S: Final = 5.0
# Events of the controller among which the awaited one must be.
RECENT_EVENTS: Final = 200
# Part of an iteration after which something fails.
FAULT_POSITION: Final = 0.5


@dataclass(frozen=True)
class RunningIteration:
    """An iteration of a job that a thread plays. `started`: its start, monotonic ns. `abort`: ends it early."""

    replaying: Future[Replay]
    started: Future[int]
    abort: threading.Event

    def start_ns(self) -> int:
        """Wait for its start, and return it."""
        pending: tuple[Future[Any], ...] = (self.started, self.replaying)
        wait(pending, return_when=FIRST_COMPLETED)
        if self.replaying.done():
            # raises what ended it before it started
            self.replaying.result()
        return self.started.result()


class PlayedIterations(NamedTuple):
    """Seconds of each iteration before and after a replacement."""

    before_s: Sequence[float]
    after_s: Sequence[float]


@dataclass
class ReplacementTimeline:
    """GPU replacement on a built fabric. `at`: when each step was, in monotonic ns, by its name; `late_ns`: how long
    after it was due the fault was injected; `has_missed`: whether the iteration that it was to interrupt was over then.

    The job and the fault have a thread each, so that this one acts on the controller's event at once. No heartbeats are
    sent: a GPU that dies for good loses its carrier, and the switch reports that to the controller.
    """

    session: FabricSession
    job: ReplacementJob
    seed: int
    at: dict[str, int] = field(default_factory=dict)
    late_ns: int = 0
    has_missed: bool = False

    def step(self, name: str, at_ns: int | None = None) -> int:
        """Record a step that happened now, or at that time; return when."""
        if at_ns is None:
            at_ns = time.monotonic_ns()
        self.at[name] = at_ns
        observers.show(f"replacement-{name}", {}, at_ns)
        return at_ns

    def play(
        self,
        schedule: Schedule,
        started: Callable[[int], None] = lambda start_ns: None,
        abort: threading.Event | None = None,
    ) -> Replay:
        """Replay a schedule. CheckFailed if some of it didn't arrive."""
        deadline_s = time_limit_s(self.job.estimated_s + self.job.state_s)
        shown = observers.replay_callbacks(schedule, started)
        done = replay(schedule, self.session.windows, self.seed, deadline_s, abort=abort, **shown)
        if len(done.delivered) < len(schedule.transfers):
            missing = len(schedule.transfers) - len(done.delivered)
            raise CheckFailed(f"{schedule.name}: {missing} transfers didn't arrive: {'; '.join(done.broken[:2])}")
        return done

    def fail_and_replace(self, fault: Fault, fault_s: float, prober: Prober) -> int:
        """Inject the fault `fault_s` after the start of an iteration, replace what fails, and return when replacements
        answer (ns from which on their answers count). CheckFailed if the fault has no effect, or one of the steps
        doesn't come.
        """
        is_optical = self.job.way == "optical"
        # not entered: a GPU that is replaced is never repaired
        active = ActiveFault(self.session.net, fault, observers.show_fault)
        with ExitStack() as cleanup, ThreadPoolExecutor(2) as pool:
            spares: list[GpuReplacement] = []
            if is_optical:
                for old, new in self.job.replacement_map.to.items():
                    spares.append(cleanup.enter_context(GpuReplacement(self.session.net, new, old)))
            iteration = self._begin_iteration(pool)
            try:
                due_ns = iteration.start_ns() + round(fault_s * 1e9)
                sleep_until(due_ns / 1e9 - PREPARE_S)
                active.prepare()
                sleep_until(due_ns / 1e9)
                # the job's manager has a processor of its own
                cleanup.enter_context(_raised_priority())
                since_ns = time.monotonic_ns()
                injection = pool.submit(_inject, active, due_ns)
                self._await_detection(injection, since_ns)
                since_ns = self.step("decided")
                iteration.abort.set()
                if is_optical:
                    since_ns = self._connect_spares(spares, injection)
            finally:
                iteration.abort.set()
            self.at["fault"] = injection.result()
            self.late_ns = active.late_ns
            # a connection that broke ends the iteration too
            with suppress(Aborted, CheckFailed):
                self._miss(iteration.replaying.result(), due_ns)
        awaited = "replacements to answer at the addresses that they take over"
        wait_until(lambda: prober.reaches_all(since_ns), awaited, EVENT_TIMEOUT_S, PROBE_POLL_S, CheckFailed)
        if is_optical:
            self._connect_controller()
        return since_ns

    def unsaved_iterations(self, replacement: ReplacementSpec) -> int:
        """Return how many whole iterations came after the last checkpoint, without one that the fault interrupted."""
        return (replacement.iterations + self.has_missed) % replacement.checkpoint_every

    def _miss(self, done: Replay, due_ns: int) -> None:
        """Note that an iteration ended as if nothing had failed. RailyardError if it ended before the fault was due."""
        if done.end_ns <= due_ns:
            raise RailyardError("an iteration was over before something failed in its middle")
        # the machine kept the injection waiting until then, or longer
        self.late_ns = max(self.late_ns, done.end_ns - due_ns)
        self.has_missed = True

    def _begin_iteration(self, pool: ThreadPoolExecutor) -> RunningIteration:
        """Let a thread play an iteration."""
        started = Future[int]()
        abort = threading.Event()
        replaying = pool.submit(self.play, self.job.before, started.set_result, abort)
        return RunningIteration(replaying, started, abort)

    def _await_detection(self, injection: Future[int], since_ns: int) -> None:
        """Wait until the controller reports a GPU that fails, and record when it did. CheckFailed if it doesn't."""
        failed = [gpu.name for gpu in self.job.replacement_map.dead]
        try:
            self.step("detected", self._await_event(since_ns, "port-down", failed))
        except CheckFailed:
            # raises the reason if the fault had no effect
            injection.result()
            raise

    def _connect_controller(self) -> None:
        """Let the controller open its sockets at the replacements, once these answer."""
        # not before: peers needn't wait until the controller has sockets at the replacements.
        # A spare has the failed GPU's name now, so nothing is lost there.
        replaced_by = self.job.replacement_map.to
        for gpu in (*replaced_by, *replaced_by.values()):
            self.session.controller.replace_gpu(gpu.name)

    def _connect_spares(self, gpu_replacements: Sequence[GpuReplacement], injection: Future[int]) -> int:
        """Connect the spares by optical switches, and give them names and addresses; return when both are done (ns)."""
        controller = self.session.controller
        decided_ns = self.at["decided"]
        controller.cross_connect({new.name: old.name for old, new in self.job.replacement_map.to.items()})
        for gpu_replacement in gpu_replacements:
            gpu_replacement.apply_identity()
        # the injection, and its check, use the GPU's name
        injection.result()
        for gpu_replacement in gpu_replacements:
            gpu_replacement.apply_name()
        replaced_ns = self.step("adopted")
        self.step("optical-links-down", self._await_event(decided_ns, "optical-links-down"))
        enabled_ns = self.step("optical-links-up", self._await_event(decided_ns, "optical-links-up"))
        return max(replaced_ns, enabled_ns)

    def _await_event(self, since_ns: int, kind: str, names: Collection[str] = ()) -> int:
        """Return when (ns) the controller reported an event of this kind, with one of the names in it if there are any.

        CheckFailed if there is none in time, or if the optical switches refuse the cross-connect.
        """
        position = max(0, len(self.session.received) - RECENT_EVENTS)

        def find() -> int | None:
            nonlocal position
            new_events = self.session.received[position:]
            position += len(new_events)
            for at_ns, event_kind, detail in new_events:
                if at_ns < since_ns:
                    continue
                if event_kind == CROSS_CONNECT_REFUSED:
                    raise CheckFailed(f"no cross-connect was moved: {detail['why']}")
                has_name = not names or not set(names).isdisjoint(map(str, detail.values()))
                if event_kind == kind and has_name:
                    return at_ns
            return None

        awaited = f"an event of the controller of {kind}"
        if names:
            awaited = f"an event of the controller of {', '.join(sorted(names))}, which has failed"
        event_ns = wait_until(find, awaited, EVENT_TIMEOUT_S, EVENT_POLL_S, CheckFailed)
        assert event_ns is not None
        return event_ns


def fault_delay_s(measured: Sequence[float], estimated_s: float) -> float:
    """Return how long after the start of an iteration something fails, s: after half of the shortest one.

    `measured`: seconds of the iterations before. `estimated_s`: of one at line rate.
    """
    # an iteration that the machine delayed says nothing of the next one, which would be over before the fault
    return FAULT_POSITION * min(min(measured), estimated_s)


def _inject(active: ActiveFault, due_ns: int) -> int:
    """Inject a fault that is prepared, and confirm it; return when it was injected (monotonic ns)."""
    # names can't move before the fault has taken effect
    with _raised_priority():
        active.inject(due_ns)
        active.confirm()
        return active.injected_ns


@contextmanager
def _raised_priority() -> Iterator[None]:
    """Raise the priority of this thread, and of those that it starts, like the controller's: on a real cluster it
    doesn't share a processor with all GPUs. Without root nothing changes.
    """
    thread_id = threading.get_native_id()
    usual_priority = os.getpriority(os.PRIO_PROCESS, thread_id)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread_id, HIGH_PRIORITY_NICENESS)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread_id, usual_priority)


def run_replacement(
    session: FabricSession, replacement: ReplacementSpec, job: ReplacementJob, interval: IntervalId, seed: int, run: Run
) -> None:
    """Replace GPUs once, on a fabric that can't be used afterwards, and add everything to the run.

    `interval`: the experiment's fabric, the replacement's name there as script, and the repeat. CheckFailed if the
    fault has no effect or isn't detected, or if the job can't continue.
    """
    timeline = ReplacementTimeline(session, job, seed)
    before_interval, during, after_interval = [replace(interval, part=part) for part in INTERVAL_PARTS]
    with relaxed_tcp_timers(_gpus_of(job.before, session.plan)), session.watch().record_load(run, before_interval):
        before_seconds = [timeline.play(job.before).seconds for _ in range(replacement.iterations)]
    fault_s = fault_delay_s(before_seconds, job.estimated_s)
    with ExitStack() as cleanup:
        with session.watch().record_load(run, during, faulted=True) as watch:
            with Prober(job.probed) as prober:
                since_ns = timeline.fail_and_replace(replacement.fault, fault_s, prober)
                # probes would take a share of the bandwidth of the state transfer
                first_ns = taken_over_ns(prober.stop(), since_ns)
            if first_ns is None:
                raise CheckFailed(f"{interval.script}: a replacement was never reached")
            timeline.step("replaced", first_ns)
            cleanup.enter_context(relaxed_tcp_timers(_gpus_of(job.after, session.plan)))
            state = timeline.play(job.state)
            timeline.step("state-moved", state.end_ns)
            for _ in range(timeline.unsaved_iterations(replacement)):
                timeline.play(job.after)
        # nothing was sent since that one's end: to count anew would only make the interruption longer
        with session.watch(since=watch.counted).record_load(run, after_interval):
            after = [timeline.play(job.after) for _ in range(replacement.iterations)]
    timeline.step("job-resumed", after[0].start_ns)
    detail = {**interval.as_dict(), "case": replacement.case, "way": job.way, "failed": replacement.failed}
    run.events += [Event(at, "replacement", name, detail) for name, at in timeline.at.items()]
    missed = "the iteration" if timeline.has_missed else ""
    record_late_injection(run, during, replacement.fault, timeline.at["fault"], timeline.late_ns, missed)
    played = PlayedIterations(before_seconds, [done.seconds for done in after])
    run.rows(REPLACEMENTS).append(_row(replacement, timeline, interval, played, state))


def _row(
    replacement: ReplacementSpec,
    timeline: ReplacementTimeline,
    interval: IntervalId,
    played: PlayedIterations,
    state: Replay,
) -> Replacement:
    """Return the row of a replacement. `state`: the replay that moved the state."""
    job = timeline.job
    injected_ns = timeline.at["fault"]
    ms = {name: (at_ns - injected_ns) / 1e6 for name, at_ns in timeline.at.items()}
    optical = timeline.session.plan.spec.optical
    return Replacement(
        interval=interval,
        case=replacement.case,
        method=job.way,
        failed=replacement.failed,
        replaced_by=job.replaced_by,
        t_fault=injected_ns,
        detect_ms=ms["detected"],
        optical_links_down_ms=optical.switching_time * 1e3 if optical else 0.0,
        replaced_ms=ms["replaced"],
        state_transfer_ms=state.seconds * 1e3,
        state_transfer_predicted_ms=job.state_s * 1e3,
        interruption_ms=ms["job-resumed"],
        iterations_lost=timeline.unsaved_iterations(replacement) + (not timeline.has_missed),
        moved_bytes=sum(state.delivered.values()),
        before_s=median(played.before_s),
        after_s=median(played.after_s),
        before_predicted_s=job.iteration_s,
        after_predicted_s=job.after_s,
    )


def _gpus_of(schedule: Schedule, plan: Plan) -> list[str]:
    """Return the names of the GPUs that send or receive something."""
    numbers = set(chain.from_iterable(schedule.matrix))
    return [plan.gpus[number].name for number in sorted(numbers)]


def run_replacements(context: RunContext, measure: Measure[ReplacementSpec]) -> None:
    """Replace what fails as often as the experiment says, each time on a fabric that is built for it."""
    spec = context.spec
    replacements = measure.items(spec)
    for planned in planned_replacements(spec, replacements, context.capacity):
        label = spec.labels[planned.fabric]
        replacement = replacements[planned.number]
        fabric = spec.gpu_fabrics[planned.fabric]
        job = replacement_job(replacement, fabric, planned.plan, spec.seed, f"{measure.key}.{planned.number}")
        scaled = {"workload": replacement.workload.result_name, "fabric": label, "replacement": planned.name}
        context.run.scale.append({**scaled, **job.scale.as_dict()})
        for repeat in range(measure.repeats(spec)):
            interval = IntervalId(label, script=planned.name, repeat=repeat)
            with context.steps.step(f"{label}, {planned.name}" + repeat_suffix(repeat, measure.repeats(spec))):
                build_and_replace = partial(_build_and_replace, context, replacement, job, interval)
                measure_undisturbed(context.run, build_and_replace)


def _build_and_replace(
    context: RunContext, replacement: ReplacementSpec, job: ReplacementJob, interval: IntervalId
) -> None:
    """Build a fabric and replace GPUs on it once. An interrupted interval doesn't end the run."""
    run = context.run
    built_for = f"{interval.fabric}, {interval.script}"
    with (
        surviving_interruptions(run, interval),
        built(built_for, job.plan, context.datapath, True, run) as session,
    ):
        run_replacement(session, replacement, job, replace(interval, policy=session.policy), context.spec.seed, run)
