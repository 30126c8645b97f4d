"""A GPU or a server that fails for good under a running job, on a built fabric: what happens then, step by step.

The job runs iteration by iteration. In the middle of one, something dies; the controller's word of it is what the job's
manager acts on. It ends the iteration, lets a spare take over, has the state sent to it by whoever has the same, does
again what no checkpoint holds, and goes on.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from controller.handle import ControllerProcess
from experiments.stage import Stage
from experiments.takeover_job import TakeoverJob, lost
from experiments.takeovers import TakeoverSpec
from failure.faults import inject
from failure.takeover import Prober, taken_over_ns
from results.records import Event, Run, Takeover
from topologies.adoption import Adoption
from topologies.errors import CheckFailed, RailyardError
from topologies.patience import patient
from workloads.replay.job import fitting
from workloads.replay.run import Aborted, Replay, replay
from workloads.schedule import Schedule

NOTICED: Final = frozenset({"port-down", "silent"})
LOOK_S: Final = 0.0005
NOTICE_S: Final = 5.0
MIDDLE: Final = 0.5  # of an iteration: where something fails
SPARE: Final = 10  # an iteration that takes so many times what it should has failed
SPARE_S: Final = 30.0


@dataclass
class _Course:
    """What happens, in the order of time: (ns, what)."""

    stage: Stage
    job: TakeoverJob
    seed: int
    steps: list[tuple[int, str]] = field(default_factory=list)

    def step(self, what: str, at_ns: int | None = None) -> int:
        """It happened now, or at that time; when."""
        at = time.monotonic_ns() if at_ns is None else at_ns
        self.steps.append((at, what))
        return at

    def play(
        self,
        schedule: Schedule,
        started: Callable[[int], None] = lambda start_ns: None,
        abort: threading.Event | None = None,
    ) -> Replay:
        """Replay it. CheckFailed if some of it didn't arrive."""
        plan = self.job.plan
        windows = fitting(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
        deadline_s = (self.job.paced_s + self.job.state_s) * SPARE + SPARE_S
        done = replay(schedule, windows, self.seed, deadline_s, started=started, abort=abort)
        if len(done.delivered) < len(schedule.transfers):
            missing = len(schedule.transfers) - len(done.delivered)
            raise CheckFailed(f"{schedule.name}: {missing} transfers didn't arrive: {'; '.join(done.broken[:2])}")
        return done

    def noticed(self, since_ns: int) -> int:
        """Wait until the controller tells of what has failed; when it did. CheckFailed if it doesn't."""
        names = self.job.noticed_by
        return self._hear(since_ns, NOTICED, names, f"of {', '.join(sorted(names))}, which has failed")

    def told(self, what: str, since_ns: int) -> int:
        """Wait until the controller tells this; when it did. CheckFailed if it doesn't."""
        return self._hear(since_ns, frozenset({what}), frozenset(), f"of {what}")

    def _hear(self, since_ns: int, wanted: frozenset[str], names: frozenset[str], meant: str) -> int:
        """If there are names, one of them must be in it."""
        deadline = time.monotonic() + NOTICE_S
        while time.monotonic() < deadline:
            for at, what, detail in list(self.stage.told):
                if at >= since_ns and what in wanted and (not names or names & set(map(str, detail.values()))):
                    return at
            time.sleep(LOOK_S)
        raise CheckFailed(f"the controller told nothing in {NOTICE_S:g} s {meant}")


def run_takeover(
    stage: Stage, takeover: TakeoverSpec, job: TakeoverJob, label: str, repeat: int, seed: int, run: Run
) -> None:
    """Let it happen once, on a fabric that is good for nothing afterwards, and add everything to the run.

    `label` is the experiment's fabric. CheckFailed if the fault doesn't bite, isn't noticed, or the job can't go on.
    """
    course = _Course(stage, job, seed)
    what = f"{takeover.case} by {job.way}"
    names = [stage.plan.gpus[n].name for n in _gpus(job.before)]
    with patient(names), stage.watched(run, f"{what}: before", repeat):
        before = [course.play(job.before).seconds for _ in range(takeover.iterations)]
    prober = Prober(job.asked)
    try:
        fault_ns, there_ns = _fail_and_take_over(course, takeover, median(before), prober)
    except BaseException:
        prober.end()
        raise
    with patient(stage.plan.gpus[n].name for n in _gpus(job.after)):
        state = course.play(job.state)
        course.step("state-moved", state.end_ns)
        again = lost(takeover.iterations, takeover.checkpoint_every)
        for _ in range(again):
            course.play(job.after)
        with stage.watched(run, f"{what}: after", repeat):
            after = [course.play(job.after) for _ in range(takeover.iterations)]
    on_ns = course.step("job-goes-on", after[0].start_ns)
    first_ns = taken_over_ns(prober.stop(), there_ns)
    if first_ns is None:
        raise CheckFailed(f"{what}: a replacement was never reached")
    course.step("taken-over", first_ns)
    told = {"fabric": label, "case": takeover.case, "way": job.way, "failed": takeover.failed, "repeat": repeat}
    run.events += [Event(at, "takeover", name, told) for at, name in sorted(course.steps)]

    def ms(at_ns: int) -> float:
        return (at_ns - fault_ns) / 1e6

    detected_ns = next(at for at, name in course.steps if name == "detected")
    optical = stage.plan.spec.optical if job.way == "optical" else None
    run.takeovers.append(
        Takeover(
            fabric=label,
            policy=stage.policy,
            repeat=repeat,
            case=takeover.case,
            way=job.way,
            failed=takeover.failed,
            replaced_by=job.replaced_by,
            t_fault=fault_ns,
            detect_ms=ms(detected_ns),
            light_off_ms=optical.light_off * 1e3 if optical else 0.0,
            taken_over_ms=ms(first_ns),
            state_ms=state.seconds * 1e3,
            state_predicted_ms=job.state_s * 1e3,
            interruption_ms=ms(on_ns),
            iterations_lost=again + 1,
            moved_bytes=sum(state.delivered.values()),
            before_s=median(before),
            after_s=median(done.seconds for done in after),
            before_predicted_s=job.iteration_s,
            after_predicted_s=job.after_s,
        )
    )


def _fail_and_take_over(course: _Course, takeover: TakeoverSpec, iteration_s: float, prober: Prober) -> tuple[int, int]:
    """In the middle of an iteration; return when a replacement is reached: (when it failed, from when that counts)."""
    abort, begun = threading.Event(), Future[int]()
    net, optical = course.stage.net, course.job.way == "optical"
    adoptions = [Adoption(net, new, old) for old, new in course.job.moves.to.items()] if optical else []
    with ThreadPoolExecutor(3) as pool:
        try:
            iteration = pool.submit(course.play, course.job.before, begun.set_result, abort)
            either: tuple[Future[Any], ...] = (begun, iteration)
            wait(either, return_when=FIRST_COMPLETED)
            if iteration.done():
                iteration.result()
            time.sleep(max(0.0, begun.result() / 1e9 + iteration_s * MIDDLE - time.monotonic()))
            since_ns = time.monotonic_ns()
            struck = pool.submit(inject, net, takeover.fault)
            course.step("detected", course.noticed(since_ns))
            there_ns = course.step("decided")
            abort.set()
            if optical:
                there_ns = _bring_in(course, adoptions, there_ns, struck, pool)
        finally:
            abort.set()
        fault_ns = course.step("fault", struck.result())
        with suppress(Aborted, CheckFailed):  # the latter if a connection broke before we ended it
            iteration.result()
            raise RailyardError("an iteration was over before something failed in its middle")
    deadline = time.monotonic() + NOTICE_S
    while not prober.reaches_all(there_ns):
        if time.monotonic() > deadline:
            raise CheckFailed(f"no replacement is reached {NOTICE_S:g} s after it was to take over")
        time.sleep(LOOK_S)
    return fault_ns, there_ns


def _bring_in(
    course: _Course, adoptions: list[Adoption], decided_ns: int, struck: Future[int], pool: ThreadPoolExecutor
) -> int:
    """Let light lead to the spares, and while it is off, give them names and addresses; when both are done (ns).

    The pool has a thread free, in which the controller opens sockets at the spares: peers don't wait for that.
    """
    controller = course.stage.controller
    controller.cross({new: old for old, new in course.job.by_name.items()})
    struck.result()  # who breaks a GPU, and looks whether it is broken, goes by its name
    for adoption in adoptions:
        adoption.carry_out()
    adopted_ns = course.step("adopted")
    learning = pool.submit(_relearn, controller, list(course.job.by_name))
    course.step("light-off", course.told("light-off", decided_ns))
    lit_ns = course.step("light-on", course.told("light-on", decided_ns))
    learning.result()
    return max(adopted_ns, lit_ns)


def _relearn(controller: ControllerProcess, gpus: list[str]) -> None:
    for gpu in gpus:
        controller.relearn(gpu)


def _gpus(schedule: Schedule) -> list[int]:
    """The numbers of those who take part."""
    return sorted({gpu for pair in schedule.matrix for gpu in pair})
