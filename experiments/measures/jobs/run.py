"""Jobs of an experiment on packets: each alone on its GPUs, then all together, on one built fabric."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

from railyard.core.errors import CheckFailed
from railyard.core.records import IntervalId
from railyard.core.wait import sleep_until
from railyard.experiments.measures.definition import Measure, RunContext
from railyard.experiments.measures.jobs.interleaving import job_bursts, job_shifts
from railyard.experiments.measures.jobs.links import link_records, measured_uses, pairs_by_end
from railyard.experiments.measures.jobs.live_page import show_jobs
from railyard.experiments.measures.jobs.outcome import (
    PlayedTurn,
    iteration_times,
    job_iterations,
    job_runs,
    slow_downs,
)
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.ports import JobRoutes, PortCounters, port_records
from railyard.experiments.measures.jobs.predictions import ALL_JOBS, outages_of, predicted_jobs
from railyard.experiments.measures.jobs.records import (
    ALONE,
    INTERLEAVED,
    JOB_BURSTS,
    JOB_ITERATIONS,
    JOB_LINKS,
    JOB_PORTS,
    JOB_RUNS,
    JOB_SHIFTS,
    LINK_SHARING,
)
from railyard.experiments.measures.jobs.spec import JobSpec, faults_on, is_interleaved
from railyard.experiments.measures.jobs.turn import JobsFabric, JobsTurn, faulted_turn, turns
from railyard.experiments.measures.workloads.outcome import flows_of
from railyard.experiments.run import observers
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.items import checked_fabric
from railyard.experiments.run.progress import measure_undisturbed
from railyard.experiments.run.session import record_late_injection, repeat_suffix, surviving_interruptions
from railyard.experiments.spec.faults import FaultSpec
from railyard.failure.active import PREPARE_S, ActiveFault
from railyard.results.runs.records import Event, Run
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.simulation import FluidRun
from railyard.results.theory.fluid.usage import PortUse
from railyard.topologies.build.fair_queues import fair_queues
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import CONNECT_S, Replay, replay


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
            repeats = measure.repeats(spec)
            for repeat in range(repeats):
                suffix = repeat_suffix(repeat, repeats)
                _play_turns(context, fabric, repeat, suffix)
                _play_faulted_turns(context, fabric, number, repeat, suffix)
                _add_slow_downs(fabric, repeat, context.run)


def _play_turns(context: RunContext, fabric: JobsFabric, repeat: int, suffix: str) -> None:
    """Play each turn of a repeat without faults. `suffix`: of the titles of the steps."""
    for turn in turns(fabric, repeat):
        title = f"{fabric.session.label}: {turn.interval.workload}{suffix}"
        with context.steps.step(title), surviving_interruptions(context.run, turn.interval):
            measure_undisturbed(context.run, partial(_play, turn, context.run))


def _play(turn: JobsTurn, run: Run) -> None:
    """Replay jobs once and add everything to the run."""
    session = turn.fabric.session
    schedule = turn.jobs.schedule
    queue_s = longest_queue_s(schedule, session.plan, session.windows)
    shown = observers.replay_callbacks(schedule)
    if turn.predicted is not None:
        show_jobs(session.label, session.plan, turn.jobs, turn.predicted)
    # ports are counted since the fabric was built
    before = turn.fabric.counters.read()
    with session.relaxed_tcp_timers(queue_s), session.watch().record_load(run, turn.interval):
        done = replay(schedule, session.windows, turn.fabric.seed, turn.limit_s, **shown)
    counted = _counted_since(before, turn.fabric.counters)
    played = PlayedTurn(turn, done, counted)
    uses = _add(played, turn.predicted, run)
    routes = JobRoutes(turn.jobs, session.plan)
    run.rows(JOB_PORTS).extend(port_records(turn.interval, turn.mode, counted, routes))
    _add_interleaving(turn, uses, run)


def _counted_since(before: Mapping[Port, int], counters: PortCounters) -> dict[Port, int]:
    """Return the bytes that each port has counted since an earlier reading."""
    return {port: size - before[port] for port, size in counters.read().items()}


def _play_faulted_turns(context: RunContext, fabric: JobsFabric, number: int, repeat: int, suffix: str) -> None:
    """Run all jobs once for each fault of a fabric, which is injected and repaired meanwhile.

    `number`: of the fabric in the experiment. `suffix`: of the titles of the steps.
    """
    spec = context.spec
    for fault in faults_on(spec, number):
        turn = faulted_turn(fabric, fault, repeat, spec.heartbeats != "off")
        title = f"{fabric.session.label}: {ALL_JOBS}, {fault.label}{suffix}"
        with context.steps.step(title), surviving_interruptions(context.run, turn.interval):
            measure_undisturbed(context.run, partial(_play_faulted, turn, fault, context))


def _play_faulted(turn: JobsTurn, fault: FaultSpec, context: RunContext) -> None:
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
        show_jobs(session.label, session.plan, turn.jobs, simulated.together)
        done, active = _replay_with_fault(turn, fault)
    injection = (active.injected_ns, active.repaired_ns)
    session.record_fault(run, turn.interval, fault.fault, *injection)
    # its prediction has the fault when it was due
    record_late_injection(run, turn.interval, fault.fault, active.injected_ns, active.late_ns)
    session.await_detours_withdrawn()
    played = PlayedTurn(turn, done, _counted_since(before, turn.fabric.counters), injection)
    # detours carry transfers over links that the policy's routes don't name
    routed = None if faulted else simulated.together
    _add(played, routed, run)


def _replay_with_fault(turn: JobsTurn, fault: FaultSpec) -> tuple[Replay, ActiveFault]:
    """Replay a turn, and inject and repair a fault meanwhile. CheckFailed if it is over before the fault."""
    session = turn.fabric.session
    schedule = turn.jobs.schedule
    limit_s = turn.limit_s + fault.repair
    started = Future[int]()
    shown = observers.replay_callbacks(schedule, started.set_result)
    active = ActiveFault(session.net, fault.fault, observers.show_fault)
    with ThreadPoolExecutor(1, "jobs") as pool, active:
        replaying = pool.submit(replay, schedule, session.windows, turn.fabric.seed, limit_s, **shown)
        replaying.add_done_callback(lambda done: started.cancel())
        begun_s = started.result(CONNECT_S) / 1e9
        # so that the injection is not late
        sleep_until(begun_s + fault.at - PREPARE_S)
        active.prepare()
        sleep_until(begun_s + fault.at)
        active.inject(round((begun_s + fault.at) * 1e9))
        active.confirm()
        sleep_until(begun_s + fault.at + fault.repair)
        active.repair()
        done = replaying.result()
    if active.injected_ns > done.end_ns:
        raise CheckFailed(f"{fault.label} was injected after the end of the jobs: they need more iterations")
    return done, active


def _add(played: PlayedTurn, routed: FluidRun | None, run: Run) -> list[PortUse]:
    """Add a replay to the run: its events, its flows, its jobs, and their use of links, which is returned.

    `routed`: a simulation with the routes of its transfers; None if they took others.
    """
    turn = played.turn
    done = played.done
    jobs = turn.jobs
    run.events.append(Event(done.start_ns, "jobs", "started", turn.interval.as_dict()))
    finished = {**turn.interval.as_dict(), "broken": list(done.broken)}
    run.events.append(Event(done.end_ns, "jobs", "finished", finished))
    run.flows.extend(flows_of(turn.fabric.session, jobs.schedule, turn.interval, done))
    run.rows(JOB_ITERATIONS).extend(job_iterations(played))
    run.measurements.extend(iteration_times(played))
    run.rows(JOB_RUNS).extend(job_runs(played))
    if routed is None:
        return []
    uses = measured_uses(routed, played.spans_s, jobs)
    links, sharings = link_records(turn.interval, uses, jobs)
    run.rows(JOB_LINKS).extend(links)
    run.rows(LINK_SHARING).extend(sharings)
    return uses


def _add_interleaving(turn: JobsTurn, uses: list[PortUse], run: Run) -> None:
    """Add the bursts of the jobs of a turn to the run, and their shifts if it is interleaved. `uses`: of all ports."""
    predictions = turn.fabric.predictions
    shared_port = predictions.shared_port
    if shared_port is not None and turn.mode != ALONE:
        run.rows(JOB_BURSTS).extend(job_bursts(turn.interval, turn.mode, shared_port, uses, turn.jobs))
    if turn.mode == INTERLEAVED and predictions.interleaving is not None and predictions.interleaved is not None:
        spreads = (predictions.together.jobs, predictions.interleaved.jobs)
        run.rows(JOB_SHIFTS).extend(job_shifts(turn.interval, predictions.interleaving, *spreads))


def _add_slow_downs(fabric: JobsFabric, repeat: int, run: Run) -> None:
    """Add the slow-downs of the jobs of a repeat to the run, in each mode in which all run."""
    session = fabric.session
    rows = [row for row in run.rows(JOB_RUNS) if row.repeat == repeat and row.fabric == session.label]
    for mode, prediction in fabric.predictions.by_mode.items():
        interval = session.interval(prediction.workload, repeat)
        run.measurements.extend(slow_downs(rows, interval, mode, prediction))
