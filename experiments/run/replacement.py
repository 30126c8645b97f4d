"""A job before, during and after a takeover, on a fabric with spares, and its row in the records.

The job runs iteration by iteration. In the middle of one, something dies; the controller's word of it is what the job's
manager acts on. It ends the iteration, lets a spare take over, has the state sent to it by whoever has the same, does
again what no checkpoint holds, and goes on.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from railyard.core.errors import CheckFailed
from railyard.core.records import IntervalId
from railyard.experiments.run.replacement_job import ReplacementJob, iterations_to_redo
from railyard.experiments.run.replacement_timeline import ReplacementTimeline
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.replacements import ReplacementSpec
from railyard.failure.probes.replacement import Prober, taken_over_ns
from railyard.results.analysis.replacements import INTERVAL_PARTS
from railyard.results.runs.records import Event, Replacement, Run
from railyard.topologies.build.namespaces import relaxed_tcp_timers
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
    """Let it happen once, on a fabric that is good for nothing afterwards, and add everything to the run.

    `label` is the experiment's fabric, `what` the takeover's name there. CheckFailed if the fault doesn't bite, isn't
    noticed, or the job can't go on.
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
            timeline.step("taken-over", first_ns)
            cleanup.enter_context(relaxed_tcp_timers(_names(session, job.after)))
            state = timeline.play(job.state)
            timeline.step("state-moved", state.end_ns)
            for _ in range(iterations_to_redo(replacement.iterations, replacement.checkpoint_every)):
                timeline.play(job.after)
        # nothing was sent since that one's end: to count anew would only make the interruption longer
        with session.watched(run, after_interval, since=watch.counted):
            after = [timeline.play(job.after) for _ in range(replacement.iterations)]
    timeline.step("job-goes-on", after[0].start_ns)
    detail = {**interval.as_dict(), "case": replacement.case, "way": job.way, "failed": replacement.failed}
    run.events += [Event(at, "takeover", name, detail) for name, at in timeline.at.items()]
    run.takeovers.append(_row(timeline, replacement, interval, (before, state, after)))


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
        way=job.way,
        failed=replacement.failed,
        replaced_by=job.replaced_by,
        t_fault=timeline.at["fault"],
        detect_ms=ms["detected"],
        light_off_ms=optical.switching_time * 1e3 if optical else 0.0,
        taken_over_ms=ms["taken-over"],
        state_ms=state.seconds * 1e3,
        state_predicted_ms=job.state_s * 1e3,
        interruption_ms=ms["job-goes-on"],
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
    """Those who take part."""
    return [session.plan.gpus[n].name for n in sorted({gpu for pair in schedule.matrix for gpu in pair})]
