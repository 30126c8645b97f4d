"""GPU replacements of an experiment: a job before, during and after, each on a fabric with spares that is built for it.

The job runs iteration by iteration. In the middle of one, a GPU or server fails, and the controller reports it. The
job manager then aborts the iteration, lets a spare take over, sends it the state from GPUs that have the same, repeats
the iterations since the last checkpoint, and continues.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import NamedTuple

from railyard.core.errors import CheckFailed
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.experiments.run.progress import Steps, repeat_suffix
from railyard.experiments.run.replacement_job import ReplacementJob, replacement_job
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


def run_replacement(
    session: FabricSession, replacement: ReplacementSpec, job: ReplacementJob, interval: IntervalId, seed: int, run: Run
) -> None:
    """Replace GPUs once, on a fabric that can't be used afterwards, and add everything to the run.

    `interval`: the experiment's fabric, the replacement's name there as script, and the repeat. CheckFailed if the
    fault has no effect or isn't detected, or if the job can't continue.
    """
    timeline, gpus = ReplacementTimeline(session, job, seed), session.plan.gpus
    used = [[gpus[n].name for n in sorted({*chain(*s.matrix)})] for s in (job.before, job.after)]
    before_interval, during, after_interval = (replace(interval, part=part) for part in INTERVAL_PARTS)
    redone = replacement.iterations % replacement.checkpoint_every  # iterations since the last checkpoint
    with relaxed_tcp_timers(used[0]), session.watched(run, before_interval):
        before_s = median(timeline.play(job.before).seconds for _ in range(replacement.iterations))
    with ExitStack() as cleanup:
        with session.watched(run, during, faulted=True) as watch:
            with Prober(job.probed) as prober:
                since_ns = timeline.fail_and_replace(replacement.fault, before_s, prober)
                first_ns = taken_over_ns(prober.stop(), since_ns)  # probes would take a share of what comes next
            if first_ns is None:
                raise CheckFailed(f"{interval.script}: a replacement was never reached")
            timeline.step("replaced", first_ns)
            cleanup.enter_context(relaxed_tcp_timers(used[1]))
            state = timeline.play(job.state)
            timeline.step("state-moved", state.end_ns)
            for _ in range(redone):
                timeline.play(job.after)
        # nothing was sent since that one's end: to count anew would only make the interruption longer
        with session.watched(run, after_interval, since=watch.counted):
            after = [timeline.play(job.after) for _ in range(replacement.iterations)]
    timeline.step("job-resumed", after[0].start_ns)
    detail = {**interval.as_dict(), "case": replacement.case, "way": job.way, "failed": replacement.failed}
    run.events += [Event(at, "replacement", name, detail) for name, at in timeline.at.items()]
    ms = {what: (at - timeline.at["fault"]) / 1e6 for what, at in timeline.at.items()}
    optical = session.plan.spec.optical
    row = Replacement(
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
        iterations_lost=1 + redone,  # one was in progress
        moved_bytes=sum(state.delivered.values()),
        before_s=before_s,
        after_s=median(done.seconds for done in after),
        before_predicted_s=job.iteration_s,
        after_predicted_s=job.after_s,
    )
    run.replacements.append(row)


class Planned(NamedTuple):
    """A replacement on a fabric, both by their number in the experiment, and the plan of that fabric with spares."""

    fabric: int
    number: int
    name: str
    plan: Plan


def planned(spec: ExperimentSpec, frames_per_s: float) -> list[Planned]:
    """Return the replacements fabric by fabric, with names that are unique on a fabric.

    A replacement has one auto rate on all its fabrics, so that they can be compared. Not one for all replacements:
    where optical switches carry HB domains, rates are far lower than necessary elsewhere.
    """
    found = []
    names = [[(r.case, r.way_on(fabric)) for r in spec.replacements_on(n)] for n, fabric in enumerate(spec.gpu_fabrics)]
    for number, replacement in enumerate(spec.replacements):
        spared = {n: with_spares(replacement, f) for n, f in enumerate(spec.gpu_fabrics) if replacement.is_on(n)}
        auto = auto_rail_bps(list(spared.values()), frames_per_s)
        for n, fabric in spared.items():
            name = (replacement.case, replacement.way_on(spec.gpu_fabrics[n]))
            failed = replacement.failed if names[n].count(name) > 1 else ""
            found.append(Planned(n, number, replacement_name(*name, failed), make_plan(fabric, auto)))
    return sorted(found, key=lambda one: one[:2])


def run_replacements(
    spec: ExperimentSpec, planned_runs: Sequence[Planned], datapath: Datapath, run: Run, steps: Steps
) -> None:
    """Run each `replacement_repeats` times, on a fabric that is built for it."""
    for number, n, name, plan in planned_runs:
        label, replacement = spec.labels[number], spec.replacements[n]
        job = replacement_job(replacement, spec.gpu_fabrics[number], plan, spec.seed, f"replacements.{n}")
        where = {"workload": replacement.workload.label(), "fabric": label, "replacement": name}
        run.scale.append({**where, **job.scale.as_dict()})
        for repeat in range(spec.replacement_repeats):
            built_for, suffix = f"{label}, {name}", repeat_suffix(repeat, spec.replacement_repeats)
            with steps.step(built_for + suffix), built(built_for, plan, datapath, True, run) as session:
                interval = IntervalId(label, policy=session.policy, script=name, repeat=repeat)
                run_replacement(session, replacement, job, interval, spec.seed, run)
