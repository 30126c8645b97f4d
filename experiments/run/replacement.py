"""A job before, during and after a takeover, on a fabric with spares, and its row in the records.

The job runs iteration by iteration. In the middle of one, something dies; the controller's word of it is what the job's
manager acts on. It ends the iteration, lets a spare take over, has the state sent to it by whoever has the same, does
again what no checkpoint holds, and goes on.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from railyard.core.errors import CheckFailed
from railyard.experiments.run.replacement_job import TakeoverJob, lost
from railyard.experiments.run.replacement_timeline import Course
from railyard.experiments.run.session import Stage
from railyard.experiments.spec.replacements import TakeoverSpec
from railyard.failure.probes.replacement import Prober, taken_over_ns
from railyard.results.runs.records import Event, Run, Takeover
from railyard.topologies.build.tcp_timers import patient
from railyard.workloads.replay.run import Replay
from railyard.workloads.schedule import Schedule


def run_takeover(
    stage: Stage, takeover: TakeoverSpec, job: TakeoverJob, label: str, what: str, repeat: int, seed: int, run: Run
) -> None:
    """Let it happen once, on a fabric that is good for nothing afterwards, and add everything to the run.

    `label` is the experiment's fabric, `what` the takeover's name there. CheckFailed if the fault doesn't bite, isn't
    noticed, or the job can't go on.
    """
    course = Course(stage, job, seed)
    with patient(_names(stage, job.before)), stage.watched(run, f"{what}: before", repeat):
        before = [course.play(job.before) for _ in range(takeover.iterations)]
    with ExitStack() as until_the_end:
        with stage.watched(run, f"{what}: takeover", repeat, faulted=True) as watch:
            with Prober(job.asked) as prober:
                since_ns = course.fail_and_take_over(takeover.fault, _median_s(before), prober)
                first_ns = taken_over_ns(prober.stop(), since_ns)  # probes would take a share of what comes next
            if first_ns is None:
                raise CheckFailed(f"{what}: a replacement was never reached")
            course.step("taken-over", first_ns)
            until_the_end.enter_context(patient(_names(stage, job.after)))
            state = course.play(job.state)
            course.step("state-moved", state.end_ns)
            for _ in range(lost(takeover.iterations, takeover.checkpoint_every)):
                course.play(job.after)
        # nothing was sent since that one's end: to count anew would only make the interruption longer
        with stage.watched(run, f"{what}: after", repeat, since=watch.counted):
            after = [course.play(job.after) for _ in range(takeover.iterations)]
    course.step("job-goes-on", after[0].start_ns)
    told = {"fabric": label, "case": takeover.case, "way": job.way, "failed": takeover.failed, "repeat": repeat}
    run.events += [Event(at, "takeover", name, told) for name, at in course.at.items()]
    run.takeovers.append(_row(course, takeover, label, repeat, (before, state, after)))


def _row(
    course: Course,
    takeover: TakeoverSpec,
    label: str,
    repeat: int,
    played: tuple[Sequence[Replay], Replay, Sequence[Replay]],
) -> Takeover:
    """`played`: iterations before, the state, iterations after."""
    job, stage, (before, state, after) = course.job, course.stage, played
    ms = {what: (at - course.at["fault"]) / 1e6 for what, at in course.at.items()}
    optical = stage.plan.spec.optical
    return Takeover(
        fabric=label,
        policy=stage.policy,
        repeat=repeat,
        case=takeover.case,
        way=job.way,
        failed=takeover.failed,
        replaced_by=job.replaced_by,
        t_fault=course.at["fault"],
        detect_ms=ms["detected"],
        light_off_ms=optical.light_off * 1e3 if optical else 0.0,
        taken_over_ms=ms["taken-over"],
        state_ms=state.seconds * 1e3,
        state_predicted_ms=job.state_s * 1e3,
        interruption_ms=ms["job-goes-on"],
        iterations_lost=1 + lost(takeover.iterations, takeover.checkpoint_every),
        moved_bytes=sum(state.delivered.values()),
        before_s=_median_s(before),
        after_s=_median_s(after),
        before_predicted_s=job.iteration_s,
        after_predicted_s=job.after_s,
    )


def _median_s(played: Sequence[Replay]) -> float:
    return median(done.seconds for done in played)


def _names(stage: Stage, schedule: Schedule) -> list[str]:
    """Those who take part."""
    return [stage.plan.gpus[n].name for n in sorted({gpu for pair in schedule.matrix for gpu in pair})]
