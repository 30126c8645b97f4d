"""GPU replacements of an experiment: a job before, during and after, each on a fabric with spares that is built for it.

The job runs iteration by iteration. In the middle of one, a GPU or server fails, and the controller reports it. The
job manager then aborts the iteration, lets a spare take over, sends it the state from GPUs that have the same, repeats
the iterations since the last checkpoint, and continues.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

from railyard.core.errors import CheckFailed
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.replacement_job import ReplacementJob, iterations_to_redo, replacement_job
from railyard.experiments.run.replacement_timeline import ReplacementTimeline
from railyard.experiments.run.session import FabricSession, built
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.replacements import ReplacementSpec, with_spares
from railyard.failure.probes.replacement import Prober, taken_over_ns
from railyard.results.analysis.recovery import INTERVAL_PARTS, replacement_name
from railyard.results.runs.records import Event, Replacement, Run
from railyard.topologies.build.namespaces import relaxed_tcp_timers
from railyard.topologies.measure.rates import auto_rail_bps
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.replay.run import Replay
from railyard.workloads.schedule import Schedule


def run_replacement(
    session: FabricSession,
    replacement: ReplacementSpec,
    job: ReplacementJob,
    label: str,
    what: str,
    repeat: int,
    seed: int,
    run: Run,
) -> None:
    """Replace GPUs once, on a fabric that can't be used afterwards, and add everything to the run.

    `label` is the experiment's fabric, `what` the replacement's name there. CheckFailed if the fault has no effect
    or isn't detected, or if the job can't continue.
    """
    timeline = ReplacementTimeline(session, job, seed)
    interval = IntervalId(label, policy=session.policy, script=what, repeat=repeat)
    before_interval, during, after_interval = (replace(interval, part=part) for part in INTERVAL_PARTS)
    with relaxed_tcp_timers(_names(session, job.before)), session.watched(run, before_interval):
        before = [timeline.play(job.before) for _ in range(replacement.iterations)]
    with ExitStack() as cleanup:
        with session.watched(run, during, faulted=True) as watch:
            with Prober(job.probed) as prober:
                since_ns = timeline.fail_and_replace(replacement.fault, _median_s(before), prober)
                first_ns = taken_over_ns(prober.stop(), since_ns)  # probes would take a share of what comes next
            if first_ns is None:
                raise CheckFailed(f"{what}: a replacement was never reached")
            timeline.step("replaced", first_ns)
            cleanup.enter_context(relaxed_tcp_timers(_names(session, job.after)))
            state = timeline.play(job.state)
            timeline.step("state-moved", state.end_ns)
            for _ in range(iterations_to_redo(replacement.iterations, replacement.checkpoint_every)):
                timeline.play(job.after)
        # nothing was sent since that one's end: to count anew would only make the interruption longer
        with session.watched(run, after_interval, since=watch.counted):
            after = [timeline.play(job.after) for _ in range(replacement.iterations)]
    timeline.step("job-resumed", after[0].start_ns)
    detail = {**interval.as_dict(), "case": replacement.case, "way": job.way, "failed": replacement.failed}
    run.events += [Event(at, "replacement", name, detail) for name, at in timeline.at.items()]
    run.replacements.append(_row(timeline, replacement, interval, (before, state, after)))


def _row(
    timeline: ReplacementTimeline,
    replacement: ReplacementSpec,
    interval: IntervalId,
    played: tuple[Sequence[Replay], Replay, Sequence[Replay]],
) -> Replacement:
    """`played`: iterations before, the state, iterations after."""
    job, session, (before, state, after) = timeline.job, timeline.session, played
    ms = {what: (at - timeline.at["fault"]) / 1e6 for what, at in timeline.at.items()}
    optical = session.plan.spec.optical
    return Replacement(
        interval=interval,
        case=replacement.case,
        method=job.way,
        failed=replacement.failed,
        replaced_by=job.replaced_by,
        t_fault=timeline.at["fault"],
        detect_ms=ms["detected"],
        optical_links_down_ms=optical.switching_time * 1e3 if optical else 0.0,
        replaced_ms=ms["replaced"],
        state_transfer_ms=state.seconds * 1e3,
        state_transfer_predicted_ms=job.state_s * 1e3,
        interruption_ms=ms["job-resumed"],
        iterations_lost=1 + iterations_to_redo(replacement.iterations, replacement.checkpoint_every),
        moved_bytes=sum(state.delivered.values()),
        before_s=_median_s(before),
        after_s=_median_s(after),
        before_predicted_s=job.iteration_s,
        after_predicted_s=job.after_s,
    )


def _median_s(played: Sequence[Replay]) -> float:
    return median(done.seconds for done in played)


def _names(session: FabricSession, schedule: Schedule) -> list[str]:
    """Return the GPUs of a schedule."""
    return [session.plan.gpus[n].name for n in sorted({gpu for pair in schedule.matrix for gpu in pair})]


@dataclass(frozen=True)
class Planned:
    """A replacement, by its number and its fabric's in the experiment, and the plan of that fabric with spares."""

    number: int
    fabric: int
    replacement: ReplacementSpec
    plan: Plan


def planned(spec: ExperimentSpec, frames_per_s: float) -> list[Planned]:
    """Fabric by fabric. A replacement has one auto rate on all its fabrics, so that they can be compared.

    Not one for all: where optical switches carry HB domains, rates are far lower than necessary elsewhere.
    """
    found = []
    for number, replacement in enumerate(spec.replacements):
        on = [n for n in range(len(spec.fabrics)) if replacement.on is None or n in replacement.on]
        fabrics = [with_spares(replacement, spec.fabrics[n]) for n in on]
        auto = auto_rail_bps(fabrics, frames_per_s)
        found += [
            Planned(number, n, replacement, make_plan(fabric, auto)) for n, fabric in zip(on, fabrics, strict=True)
        ]
    return sorted(found, key=lambda one: (one.fabric, one.number))


def replacement_label(one: Planned, planned_runs: Sequence[Planned], fabric: FabricSpec) -> str:
    """Its name on that fabric: with what fails, if several differ in that alone."""
    case, way = one.replacement.case, one.replacement.way_on(fabric)
    same_case = [
        other
        for other in planned_runs
        if other.fabric == one.fabric and (other.replacement.case, other.replacement.way_on(fabric)) == (case, way)
    ]
    return replacement_name(case, way, one.replacement.failed if len(same_case) > 1 else "")


def run_replacements(
    spec: ExperimentSpec, planned_runs: Sequence[Planned], datapath: Datapath, run: Run, steps: Steps
) -> None:
    """Each `replacement_repeats` times. What is gone is gone: so none is like new for the next."""
    for one in planned_runs:
        label, fabric, replacement = spec.labels[one.fabric], spec.fabrics[one.fabric], one.replacement
        job = replacement_job(replacement, fabric, one.plan, spec.seed, f"replacements.{one.number}")
        what = replacement_label(one, planned_runs, fabric)
        where = {"workload": replacement.workload.label(), "fabric": label, "replacement": what}
        run.scale.append({**where, **job.scale.as_dict()})
        for repeat in range(spec.replacement_repeats):
            shown = f", {repeat + 1} of {spec.replacement_repeats}" if spec.replacement_repeats > 1 else ""
            built_for = f"{label}, {what}"
            with steps.step(f"{built_for}{shown}"), built(built_for, one.plan, datapath, True, run) as session:
                run_replacement(session, replacement, job, label, what, repeat, spec.seed, run)
