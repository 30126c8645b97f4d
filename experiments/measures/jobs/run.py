"""Jobs of an experiment on packets: each alone on its GPUs, then all together, on one built fabric."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Final

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import Measure, RunContext
from railyard.experiments.measures.jobs.faults import predicted_with_fault, replay_with_fault
from railyard.experiments.measures.jobs.interleaving import busiest_shared_port, job_bursts, job_shifts
from railyard.experiments.measures.jobs.links import link_records, measured_uses, pairs_by_end, rates_of
from railyard.experiments.measures.jobs.planning import PlannedJobs, planned_jobs
from railyard.experiments.measures.jobs.records import (
    ALONE,
    INTERLEAVED,
    JOB_BURSTS,
    JOB_ITERATIONS,
    JOB_LINKS,
    JOB_RUNS,
    JOB_SHIFTS,
    JOB_SLOWDOWN,
    LINK_SHARING,
    TOGETHER,
    JobIteration,
    JobRun,
)
from railyard.experiments.measures.jobs.shown import show_jobs
from railyard.experiments.measures.jobs.spec import JobSpec, faults_of, is_interleaved
from railyard.experiments.measures.workloads.replay import flows_of
from railyard.experiments.run import observers
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import (
    FabricSession,
    built,
    check_links,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.experiments.spec.faults import FaultSpec
from railyard.results.runs.records import Event, Measurement, Run
from railyard.results.theory.fluid.jobs import JobsPrediction, predict_jobs
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.shift import Interleaving, best_interleaving
from railyard.results.theory.fluid.simulation import FluidRun
from railyard.results.theory.fluid.usage import PortUse
from railyard.topologies.build.fair_queues import fair_queues
from railyard.topologies.plan import Plan
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import Replay, replay

TIMEOUT_FACTOR: Final = 10
TIMEOUT_MARGIN_S: Final = 30.0
ALL_JOBS: Final = "all jobs"
"""The workload of intervals in which all jobs run together."""
ALL_INTERLEAVED: Final = "all jobs interleaved"


@dataclass(frozen=True)
class JobsTurn:
    """Replays of some jobs on a built fabric. `mode`: as in JobRun. `predicted`: a simulation of the same, or None."""

    session: FabricSession
    planned: PlannedJobs
    jobs: CombinedSchedule
    mode: str
    interval: IntervalId
    predicted: FluidRun | None
    seed: int


@dataclass(frozen=True)
class Predictions:
    """Simulations of the jobs of a fabric, and of their interleaving, if they have one."""

    jobs: JobsPrediction
    interleaving: Interleaving | None = None

    @property
    def by_mode(self) -> dict[str, tuple[str, JobsPrediction]]:
        """The workload of intervals, and the simulation, of each mode in which all jobs run."""
        modes = {TOGETHER: (ALL_JOBS, self.jobs)}
        if self.interleaving is not None:
            modes[INTERLEAVED] = (ALL_INTERLEAVED, self.interleaving.after)
        return modes

    @property
    def shared_port(self) -> Port | None:
        """The port over which interleaved jobs send most together."""
        return busiest_shared_port(self.interleaving) if self.interleaving is not None else None


def run_jobs(context: RunContext, measure: Measure[JobSpec]) -> None:
    """Build each fabric that has jobs, check its links, and run them as often as they are repeated."""
    spec = context.spec
    for number, plan in enumerate(context.plans):
        if not measure.items_on(spec, number):
            continue
        label = spec.labels[number]
        planned = planned_jobs(spec, number, plan)
        predictions = predicted_jobs(planned, plan, is_interleaved(spec))
        with surviving_interruptions(context.run, IntervalId(label)), ExitStack() as stack:
            with context.steps.step(f"{label}: building"):
                session = stack.enter_context(built(label, plan, context.datapath, True, context.run))
                check_links(session, context.run)
            # the same queues for jobs alone and together, so that only the other jobs make a difference
            stack.enter_context(fair_queues(plan, pairs_by_end(planned.combined.schedule, plan)))
            for repeat in range(measure.repeats(spec)):
                repeated = repeat_suffix(repeat, measure.repeats(spec))
                for turn in _turns(session, planned, predictions, repeat, spec.seed):
                    title = f"{label}: {turn.interval.workload}" + repeated
                    with context.steps.step(title), surviving_interruptions(context.run, turn.interval):
                        measure_undisturbed(context.run, partial(_measure, turn, predictions, context.run))
                run_faulted_jobs(context, session, planned, predictions.jobs, repeat)
                for mode in predictions.by_mode:
                    _record_slow_downs(session, predictions, mode, repeat, context.run)


def predicted_jobs(planned: PlannedJobs, plan: Plan, is_interleaved: bool) -> Predictions:
    """Simulate the jobs of a fabric, and find their interleaving if they have one."""
    if not is_interleaved:
        return Predictions(predict_jobs(planned.combined, rates_of(plan), plan.spec))
    interleaving = best_interleaving(planned.combined, rates_of(plan), plan.spec)
    return Predictions(interleaving.before, interleaving)


def _turns(
    session: FabricSession, planned: PlannedJobs, predictions: Predictions, repeat: int, seed: int
) -> Iterator[JobsTurn]:
    """Yield each job alone, then all together, then all interleaved."""
    jobs = planned.combined
    for number, job in enumerate(jobs.jobs):
        interval = session.interval(alone_name(job.name), repeat)
        yield JobsTurn(session, planned, jobs.alone(number), ALONE, interval, predictions.jobs.alone[number], seed)
    for mode, (workload, prediction) in predictions.by_mode.items():
        interval = session.interval(workload, repeat)
        yield JobsTurn(session, planned, prediction.combined, mode, interval, prediction.together, seed)


def alone_name(job: str) -> str:
    """Return the workload of intervals in which a job runs without the others."""
    return f"{job} {ALONE}"


def _measure(turn: JobsTurn, predictions: Predictions, run: Run) -> None:
    """Replay jobs once and add everything to the run."""
    session = turn.session
    schedule = turn.jobs.schedule
    queue_s = longest_queue_s(schedule, session.plan, session.windows)
    shown = observers.replay_callbacks(schedule)
    if turn.predicted is not None:
        show_jobs(session.label, session.plan, turn.jobs, turn.predicted)
    # ports are counted since the switches were made
    ports_before = _port_bytes(session)
    with session.relaxed_tcp_timers(queue_s), session.watch().record_load(run, turn.interval):
        done = replay(schedule, session.windows, turn.seed, _limit_s(turn), **shown)
    ports = _port_bytes(session)
    counted = {gpu: size - ports_before[gpu] for gpu, size in ports.items()}
    uses = record(turn, turn.predicted, done, counted, run)
    shared_port = predictions.shared_port
    if shared_port is not None and turn.mode != ALONE:
        run.rows(JOB_BURSTS).extend(job_bursts(turn.interval, turn.mode, shared_port, uses, turn.jobs))
    if turn.mode == INTERLEAVED and predictions.interleaving is not None:
        run.rows(JOB_SHIFTS).extend(job_shifts(turn.interval, predictions.interleaving))


def _limit_s(turn: JobsTurn) -> float:
    """Return the time limit of a replay, s."""
    plan = turn.session.plan
    predicted_s = turn.predicted.seconds if turn.predicted else np.inf
    # a transfer without a path never ends, in the simulation and on packets
    if not np.isfinite(predicted_s):
        predicted_s = line_rate_duration_s(turn.jobs.schedule, rates_of(plan), plan.spec)
    return predicted_s * TIMEOUT_FACTOR + TIMEOUT_MARGIN_S


def run_faulted_jobs(
    context: RunContext, session: FabricSession, planned: PlannedJobs, prediction: JobsPrediction, repeat: int
) -> None:
    """Run all jobs once for each fault of the experiment, which is injected and repaired meanwhile."""
    spec = context.spec
    for fault in faults_of(spec):
        interval = replace(session.interval(ALL_JOBS, repeat), script="job faults", part=fault.label)
        predicted = predicted_with_fault(prediction, fault, session.plan, rates_of(session.plan))
        turn = JobsTurn(session, planned, planned.combined, fault.label, interval, predicted, spec.seed)
        title = f"{session.label}: {ALL_JOBS}, {fault.label}" + repeat_suffix(repeat, getattr(spec, "job_repeats", 1))
        with context.steps.step(title), surviving_interruptions(context.run, interval):
            measure_undisturbed(context.run, partial(_measure_faulted, turn, prediction, fault, context))


def _measure_faulted(turn: JobsTurn, prediction: JobsPrediction, fault: FaultSpec, context: RunContext) -> None:
    """Replay all jobs while a fault is injected and repaired, and add everything to the run."""
    session = turn.session
    run = context.run
    ports_before = _port_bytes(session)
    # on a slow link nothing is lost, and no time to recover is measured, which a short pause would change
    faulted = fault.fault.definition.is_rerouted
    with (
        heartbeats_running(session, context.spec.heartbeats, run),
        session.health_scores(fault.fault.definition.registry(fault.parameters)),
        session.watch().record_load(run, turn.interval, faulted=faulted),
    ):
        limit_s = _limit_s(turn) + fault.repair
        show_jobs(session.label, session.plan, turn.jobs, prediction.together)
        done, (injected_ns, repaired_ns) = replay_with_fault(session, turn.jobs.schedule, fault, turn.seed, limit_s)
    session.record_fault(run, turn.interval, fault.fault, injected_ns, repaired_ns)
    session.await_detours_withdrawn()
    counted = {gpu: size - ports_before[gpu] for gpu, size in _port_bytes(session).items()}
    # the links that transfers used are those of the policy, as long as no detour carries them
    record(turn, prediction.together, done, counted, run)


def _port_bytes(session: FabricSession) -> dict[str, int]:
    """Return the bytes that rail switches received from each GPU, or from its NIC, since they were made."""
    counters = session.controller.port_counters(len(session.plan.switches))
    received: dict[str, int] = {}
    for switch in session.plan.switches:
        for port, values in counters[switch.name].items():
            # GPUs that share a NIC share its port, which counts once
            for gpu in session.plan.gpus_at(switch.dpid, port)[:1]:
                received[gpu.name] = received.get(gpu.name, 0) + values["rx_bytes"]
    return received


def record(
    turn: JobsTurn, routed: FluidRun | None, done: Replay, counted: Mapping[str, int], run: Run
) -> list[PortUse]:
    """Record a replay of jobs: its flows, the times and bytes of each job, and its use of links, which is returned.

    `routed`: a simulation with the routes of its transfers. `counted`: bytes from each GPU at the rail switches.
    """
    session = turn.session
    jobs = turn.jobs
    run.events.append(Event(done.start_ns, "jobs", "started", turn.interval.as_dict()))
    finished = {**turn.interval.as_dict(), "broken": list(done.broken)}
    run.events.append(Event(done.end_ns, "jobs", "finished", finished))
    run.flows.extend(flows_of(session, jobs.schedule, turn.interval, done))
    spans_s: dict[int, tuple[float, float]] = {}
    ends = np.full(len(jobs.schedule.tasks), np.nan)
    for number, (start_ns, end_ns) in done.spans.items():
        spans_s[number] = (start_ns - done.start_ns) / 1e9, (end_ns - done.start_ns) / 1e9
        ends[number] = spans_s[number][1]
    measured = jobs.iteration_seconds(ends)
    predicted: Sequence[Sequence[float]] = [()] * len(jobs.jobs)
    if turn.predicted is not None:
        predicted = jobs.iteration_seconds(turn.predicted.end_s)
    for number in range(len(jobs.jobs)):
        _record_iterations(turn, number, measured[number], predicted[number], run)
        run.rows(JOB_RUNS).append(_job_run(turn, number, done, spans_s, counted, (measured[number], predicted[number])))
    if routed is None:
        return []
    uses = measured_uses(routed, spans_s, jobs)
    links, sharings = link_records(turn.interval, uses, jobs)
    run.rows(JOB_LINKS).extend(links)
    run.rows(LINK_SHARING).extend(sharings)
    return uses


def _record_iterations(
    turn: JobsTurn, number: int, measured: Sequence[float], predicted: Sequence[float], run: Run
) -> None:
    """Record the iterations of a job, and their mean beside its prediction."""
    job = turn.jobs.jobs[number]
    end_s = job.start_s
    for iteration, seconds in enumerate(measured):
        end_s += seconds
        predicted_s = predicted[iteration] if predicted else None
        row = JobIteration(turn.interval, job.name, turn.mode, iteration, seconds, predicted_s, end_s)
        run.rows(JOB_ITERATIONS).append(row)
    mean_s = fmean(measured)
    # a transfer that never arrives leaves no time
    if np.isfinite(mean_s):
        times = (mean_s, "s", fmean(predicted) if predicted else None, 1.0, 1.0)
        run.measurements.append(Measurement(turn.interval, job.name, "iteration_time", *times))


def _job_run(
    turn: JobsTurn,
    number: int,
    done: Replay,
    spans_s: Mapping[int, tuple[float, float]],
    counted: Mapping[str, int],
    seconds: tuple[Sequence[float], Sequence[float]],
) -> JobRun:
    """Return the row of a job. `seconds`: measured and predicted of its iterations."""
    jobs = turn.jobs
    job = jobs.jobs[number]
    plan = turn.session.plan
    columns = jobs.schedule.columns
    is_own = (jobs.job_of_task == number) & ~columns.is_compute
    asked: dict[tuple[int, int], int] = {}
    delivered: dict[tuple[int, int], int] = {}
    corrupt = set(done.corrupt)
    for task in np.flatnonzero(is_own).tolist():
        pair = (int(columns.src[task]), int(columns.dst[task]))
        asked[pair] = asked.get(pair, 0) + int(columns.bytes[task])
        if task in done.delivered and task not in corrupt:
            delivered[pair] = delivered.get(pair, 0) + done.delivered[task]
    names = [plan.gpus[gpu].name for gpu in job.gpus]
    item = next(item for item in turn.planned.items if item.name == job.name)
    return JobRun(
        interval=turn.interval,
        job=job.name,
        mode=turn.mode,
        placed_by=item.placement_text,
        gpus=" ".join(names),
        start_s=job.start_s,
        iterations=job.iterations,
        iteration_s=fmean(seconds[0]),
        iteration_predicted_s=fmean(seconds[1]) if seconds[1] else None,
        waiting_share=_waiting_share(jobs, number, spans_s),
        asked_bytes=sum(asked.values()),
        delivered_bytes=sum(delivered.values()),
        pairs_wrong=sum(size != delivered.get(pair) for pair, size in asked.items()),
        port_bytes=sum(counted.get(name, 0) for name in names),
    )


def _waiting_share(jobs: CombinedSchedule, number: int, spans_s: Mapping[int, tuple[float, float]]) -> float:
    """Return the share of a job's time in which a GPU of it, on average, neither sends, receives nor computes."""
    columns = jobs.schedule.columns
    busy: dict[int, list[tuple[float, float]]] = {}
    last_s = start_s = jobs.jobs[number].start_s
    for task in np.flatnonzero(jobs.job_of_task == number).tolist():
        if task not in spans_s:
            continue
        last_s = max(last_s, spans_s[task][1])
        for gpu in {int(columns.src[task]), int(columns.dst[task])}:
            busy.setdefault(gpu, []).append(spans_s[task])
    total_s = (last_s - start_s) * len(busy)
    if not total_s:
        return 0.0
    busy_s = 0.0
    for intervals in busy.values():
        until_s = start_s
        for begin_s, end_s in sorted(intervals):
            busy_s += max(0.0, end_s - max(begin_s, until_s))
            # transfers of a GPU overlap, and it waits in none of them
            until_s = max(until_s, end_s)
    return max(0.0, 1 - busy_s / total_s)


def _record_slow_downs(session: FabricSession, predictions: Predictions, mode: str, repeat: int, run: Run) -> None:
    """Record the slow-down of each job in a mode of a repeat, beside its prediction."""
    workload, prediction = predictions.by_mode[mode]
    together = session.interval(workload, repeat)
    means: dict[tuple[str, str], float] = {}
    for row in run.rows(JOB_RUNS):
        if row.repeat == repeat and row.fabric == session.label:
            means[row.job, row.mode] = row.iteration_s
    for times in prediction.times:
        alone_s = means.get((times.name, ALONE))
        together_s = means.get((times.name, mode))
        # an interval that was interrupted has no times
        if alone_s and together_s and np.isfinite(together_s / alone_s):
            values = (together_s / alone_s, "ratio", times.slow_down, 1.0, 1.0)
            run.measurements.append(Measurement(together, times.name, JOB_SLOWDOWN, *values))
