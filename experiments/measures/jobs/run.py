"""Jobs of an experiment on packets: each alone on its GPUs, then all together, on one built fabric."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import Measure, RunContext
from railyard.experiments.measures.jobs.faults import Injection, replay_with_fault
from railyard.experiments.measures.jobs.interleaving import job_bursts, job_shifts
from railyard.experiments.measures.jobs.links import link_records, measured_uses, pairs_by_end, rates_of
from railyard.experiments.measures.jobs.live_page import show_jobs
from railyard.experiments.measures.jobs.planning import PlannedJobs, planned_jobs
from railyard.experiments.measures.jobs.ports import JobRoutes, PortCounters, port_records
from railyard.experiments.measures.jobs.predictions import (
    ALL_JOBS,
    FaultPrediction,
    Predictions,
    alone_name,
    outages_of,
    predicted_jobs,
    predicted_with_fault,
)
from railyard.experiments.measures.jobs.records import (
    ALONE,
    INTERLEAVED,
    JOB_BURSTS,
    JOB_ITERATIONS,
    JOB_LINKS,
    JOB_PORTS,
    JOB_RUNS,
    JOB_SHIFTS,
    JOB_SLOWDOWN,
    LINK_SHARING,
    TOGETHER,
    JobIteration,
    JobRun,
)
from railyard.experiments.measures.jobs.spec import JobSpec, faults_on, is_interleaved
from railyard.experiments.measures.workloads.replay import flows_of
from railyard.experiments.run import observers
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.items import checked_fabric
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import (
    FabricSession,
    record_late_injection,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.experiments.spec.faults import FaultSpec
from railyard.results.runs.records import Event, Measurement, Run
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.simulation import FluidRun
from railyard.results.theory.fluid.spread import Spread
from railyard.results.theory.fluid.usage import PortUse
from railyard.topologies.build.fair_queues import fair_queues
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import Replay, replay, time_limit_s


@dataclass(frozen=True)
class JobsFabric:
    """A built fabric, the jobs on it and their predictions. `counters`: of its ports. `seed`: of the bytes sent."""

    session: FabricSession
    planned: PlannedJobs
    predictions: Predictions
    counters: PortCounters
    seed: int


@dataclass(frozen=True)
class JobsTurn:
    """A replay of some jobs on a built fabric. `mode`: as in JobRun. `predicted`: a simulation of the same, or None.

    `fault`: the prediction of the fault meanwhile, if there is one. `injection`: when it was injected, once it was.
    """

    fabric: JobsFabric
    jobs: CombinedSchedule
    mode: str
    interval: IntervalId
    predicted: FluidRun | None
    fault: FaultPrediction | None = None
    injection: Injection | None = None

    def iteration_s(self, job: str) -> Spread | None:
        """Return the predicted mean iteration of a job, s; None without a prediction."""
        predictions = self.fabric.predictions
        if self.fault is None:
            return predictions.iteration_s(self.mode, job)
        together = predictions.iteration_s(TOGETHER, job)
        if together is None or self.fault.reason_of(job):
            return None
        return self.fault.jobs[job].at_its_times.times(together.mean)


def run_jobs(context: RunContext, measure: Measure[JobSpec]) -> None:
    """Build each fabric that has jobs, check its links, and run them as often as they are repeated."""
    spec = context.spec
    for number, _ in measure.items_by_fabric(spec):
        plan = context.plans[number]
        label = spec.labels[number]
        planned = planned_jobs(spec, number, plan)
        predictions = predicted_jobs(planned, plan, is_interleaved(spec))
        with surviving_interruptions(context.run, IntervalId(label)), ExitStack() as stack:
            session = stack.enter_context(checked_fabric(context, number))
            # the same queues for jobs alone and together, so that only the other jobs make a difference
            queued_pairs = pairs_by_end(planned.combined.schedule, plan, outages_of(spec, number, plan))
            stack.enter_context(fair_queues(plan, queued_pairs))
            counters = stack.enter_context(closing(PortCounters(plan)))
            fabric = JobsFabric(session, planned, predictions, counters, spec.seed)
            for repeat in range(measure.repeats(spec)):
                repeated = repeat_suffix(repeat, measure.repeats(spec))
                for turn in _turns(fabric, repeat):
                    title = f"{label}: {turn.interval.workload}" + repeated
                    with context.steps.step(title), surviving_interruptions(context.run, turn.interval):
                        measure_undisturbed(context.run, partial(_measure, turn, context.run))
                run_faulted_jobs(context, fabric, number, repeat)
                for mode in predictions.by_mode:
                    _record_slow_downs(fabric, mode, repeat, context.run)


def _turns(fabric: JobsFabric, repeat: int) -> Iterator[JobsTurn]:
    """Yield each job alone, then all together, then all interleaved."""
    session = fabric.session
    jobs = fabric.planned.combined
    simulated = fabric.predictions.together.simulated
    for number, job in enumerate(jobs.jobs):
        interval = session.interval(alone_name(job.name), repeat)
        yield JobsTurn(fabric, jobs.alone(number), ALONE, interval, simulated.alone[number])
    for mode, prediction in fabric.predictions.by_mode.items():
        interval = session.interval(prediction.workload, repeat)
        simulated = prediction.simulated
        yield JobsTurn(fabric, simulated.combined, mode, interval, simulated.together)


def _measure(turn: JobsTurn, run: Run) -> None:
    """Replay jobs once and add everything to the run."""
    session = turn.fabric.session
    predictions = turn.fabric.predictions
    schedule = turn.jobs.schedule
    queue_s = longest_queue_s(schedule, session.plan, session.windows)
    shown = observers.replay_callbacks(schedule)
    if turn.predicted is not None:
        show_jobs(session.label, session.plan, turn.jobs, turn.predicted)
    # ports are counted since the fabric was built
    before = turn.fabric.counters.read()
    with session.relaxed_tcp_timers(queue_s), session.watch().record_load(run, turn.interval):
        done = replay(schedule, session.windows, turn.fabric.seed, _limit_s(turn), **shown)
    counted = _counted_since(before, turn.fabric.counters)
    uses = record(turn, turn.predicted, done, counted, run)
    routes = JobRoutes(turn.jobs, session.plan)
    run.rows(JOB_PORTS).extend(port_records(turn.interval, turn.mode, counted, routes))
    shared_port = predictions.shared_port
    if shared_port is not None and turn.mode != ALONE:
        run.rows(JOB_BURSTS).extend(job_bursts(turn.interval, turn.mode, shared_port, uses, turn.jobs))
    if turn.mode == INTERLEAVED and predictions.interleaving is not None and predictions.interleaved is not None:
        spreads = (predictions.together.jobs, predictions.interleaved.jobs)
        run.rows(JOB_SHIFTS).extend(job_shifts(turn.interval, predictions.interleaving, *spreads))


def _counted_since(before: Mapping[Port, int], counters: PortCounters) -> dict[Port, int]:
    """Return the bytes that each port has counted since an earlier reading."""
    return {port: size - before[port] for port, size in counters.read().items()}


def _limit_s(turn: JobsTurn) -> float:
    """Return the time limit of a replay, s."""
    plan = turn.fabric.session.plan
    predicted_s = turn.predicted.seconds if turn.predicted else np.inf
    # a transfer without a path never ends, in the simulation and on packets
    if not np.isfinite(predicted_s):
        predicted_s = line_rate_duration_s(turn.jobs.schedule, rates_of(plan), plan.spec)
    return time_limit_s(predicted_s)


def run_faulted_jobs(context: RunContext, fabric: JobsFabric, number: int, repeat: int) -> None:
    """Run all jobs once for each fault of a fabric, which is injected and repaired meanwhile.

    `number`: of the fabric in the experiment.
    """
    spec = context.spec
    session = fabric.session
    for fault in faults_on(spec, number):
        interval = replace(session.interval(ALL_JOBS, repeat), script="job faults", part=fault.label)
        simulated = fabric.predictions.together.simulated
        prediction = predicted_with_fault(simulated, fault, session.plan, spec.heartbeats != "off")
        turn = JobsTurn(fabric, fabric.planned.combined, fault.label, interval, prediction.run, prediction)
        title = f"{session.label}: {ALL_JOBS}, {fault.label}" + repeat_suffix(repeat, getattr(spec, "job_repeats", 1))
        with context.steps.step(title), surviving_interruptions(context.run, interval):
            measure_undisturbed(context.run, partial(_measure_faulted, turn, fault, context))


def _measure_faulted(turn: JobsTurn, fault: FaultSpec, context: RunContext) -> None:
    """Replay all jobs while a fault is injected and repaired, and add everything to the run."""
    session = turn.fabric.session
    simulated = turn.fabric.predictions.together.simulated
    run = context.run
    before = turn.fabric.counters.read()
    # on a slow link nothing is lost, and no time to recover is measured, which a short pause would change
    faulted = fault.fault.definition.is_rerouted
    with (
        heartbeats_running(session, context.spec.heartbeats, run),
        session.health_scores(fault.fault.definition.registry(fault.parameters)),
        session.watch().record_load(run, turn.interval, faulted=faulted),
    ):
        limit_s = _limit_s(turn) + fault.repair
        show_jobs(session.label, session.plan, turn.jobs, simulated.together)
        done, active = replay_with_fault(session, turn.jobs.schedule, fault, turn.fabric.seed, limit_s)
    injection = (active.injected_ns, active.repaired_ns)
    session.record_fault(run, turn.interval, fault.fault, *injection)
    # its prediction has the fault when it was due
    record_late_injection(run, turn.interval, fault.fault, active.injected_ns, active.late_ns)
    session.await_detours_withdrawn()
    # detours carry transfers over links that the policy's routes don't name
    routed = None if faulted else simulated.together
    counted = _counted_since(before, turn.fabric.counters)
    record(replace(turn, injection=injection), routed, done, counted, run)


def record(
    turn: JobsTurn, routed: FluidRun | None, done: Replay, counted: Mapping[Port, int], run: Run
) -> list[PortUse]:
    """Record a replay of jobs: its flows, the times and bytes of each job, and its use of links, which is returned.

    `routed`: a simulation with the routes of its transfers. `counted`: bytes that each port sent meanwhile.
    """
    session = turn.fabric.session
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
    predicted = _predicted_seconds(turn)
    for number in range(len(jobs.jobs)):
        _record_iterations(turn, number, measured[number], predicted[number], run)
        row = _job_run(turn, number, done, spans_s, counted, (measured[number], predicted[number]))
        run.rows(JOB_RUNS).append(_with_fault(row, turn, done))
    if routed is None:
        return []
    uses = measured_uses(routed, spans_s, jobs)
    links, sharings = link_records(turn.interval, uses, jobs)
    run.rows(JOB_LINKS).extend(links)
    run.rows(LINK_SHARING).extend(sharings)
    return uses


def _predicted_seconds(turn: JobsTurn) -> list[Sequence[float]]:
    """Return the predicted seconds of each iteration of each job; nothing for a job without a prediction."""
    if turn.predicted is None:
        return [()] * len(turn.jobs.jobs)
    predicted: list[Sequence[float]] = list(turn.jobs.iteration_seconds(turn.predicted.end_s))
    for number, job in enumerate(turn.jobs.jobs):
        if turn.fault is not None and turn.fault.reason_of(job.name):
            predicted[number] = ()
    return predicted


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
    measurement = _measurement(turn.interval, job.name, "iteration_time", mean_s, "s", turn.iteration_s(job.name))
    if turn.fault is not None and turn.fault.is_rerouted:
        # the time until detours are there comes on top of the prediction
        measurement = replace(measurement, explained_most=np.inf)
    # a transfer that never arrives leaves no time
    if np.isfinite(mean_s):
        run.measurements.append(measurement)


def _measurement(
    interval: IntervalId, job: str, metric: str, value: float, unit: str, predicted: Spread | None
) -> Measurement:
    """Return a measured value of a job, beside the mean and the interval that are predicted, if any are."""
    if predicted is None:
        return Measurement(interval, job, metric, value, unit)
    return Measurement(
        interval=interval,
        phase=job,
        metric=metric,
        value=value,
        unit=unit,
        predicted=predicted.mean,
        explained_least=predicted.least / predicted.mean,
        explained_most=predicted.most / predicted.mean,
    )


def _job_run(
    turn: JobsTurn,
    number: int,
    done: Replay,
    spans_s: Mapping[int, tuple[float, float]],
    counted: Mapping[Port, int],
    seconds: tuple[Sequence[float], Sequence[float]],
) -> JobRun:
    """Return the row of a job. `seconds`: measured and predicted of its iterations."""
    jobs = turn.jobs
    job = jobs.jobs[number]
    plan = turn.fabric.session.plan
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
    item = next(item for item in turn.fabric.planned.items if item.name == job.name)
    # GPUs that share a NIC share its port, which counts once
    links = {plan.link_name_of(plan.gpus[gpu], "rail") for gpu in job.gpus}
    spread = turn.iteration_s(job.name)
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
        port_bytes=sum(counted[Port(link, "rail", True)] for link in links),
        iteration_mean_s=spread.mean if spread else None,
        iteration_least_s=spread.least if spread else None,
        iteration_most_s=spread.most if spread else None,
    )


def _with_fault(row: JobRun, turn: JobsTurn, done: Replay) -> JobRun:
    """Return the row of a job with the times and the prediction of the fault meanwhile, if there was one."""
    if turn.fault is None or turn.injection is None:
        return row
    injected_ns, repaired_ns = turn.injection
    row = replace(
        row,
        fault_start_s=(injected_ns - done.start_ns) / 1e9,
        fault_end_s=(repaired_ns - done.start_ns) / 1e9,
        not_predicted=turn.fault.reason_of(row.job),
    )
    if row.not_predicted:
        return row
    predicted = turn.fault.jobs[row.job]
    together = predicted.together
    return replace(
        row,
        fault_slow_down_alone=predicted.alone.mean,
        fault_slow_down_together=None if together is None else together.mean,
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


def _record_slow_downs(fabric: JobsFabric, mode: str, repeat: int, run: Run) -> None:
    """Record the slow-down of each job in a mode of a repeat, beside its prediction."""
    session = fabric.session
    prediction = fabric.predictions.by_mode[mode]
    together = session.interval(prediction.workload, repeat)
    means: dict[tuple[str, str], float] = {}
    for row in run.rows(JOB_RUNS):
        if row.repeat == repeat and row.fabric == session.label:
            means[row.job, row.mode] = row.iteration_s
    for job in prediction.jobs:
        alone_s = means.get((job.name, ALONE))
        together_s = means.get((job.name, mode))
        # an interval that was interrupted has no times
        if alone_s and together_s and np.isfinite(together_s / alone_s):
            slow_down = _measurement(together, job.name, JOB_SLOWDOWN, together_s / alone_s, "ratio", job.slow_down)
            run.measurements.append(slow_down)
