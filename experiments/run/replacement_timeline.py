"""Something fails for good under a running job: noticed, decided, taken over, each step on one clock.

The job runs in a thread, and what strikes comes from another, so that the controller's word is acted on at once. No
heartbeats are sent here: what dies for good takes its carrier along, and the switch tells the controller of that.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from railyard.core.errors import CheckFailed, RailyardError
from railyard.experiments.run.replacement_job import TakeoverJob
from railyard.experiments.run.session import Stage
from railyard.failure.faults import Fault, inject
from railyard.failure.probes.replacement import Prober
from railyard.topologies.build.gpu_replacement import FIRST_IN_LINE, Adoption
from railyard.topologies.build.network import FabricNet
from railyard.workloads.replay.job import fitting
from railyard.workloads.replay.run import Aborted, Replay, replay
from railyard.workloads.schedule import Schedule

NOTICED: Final = frozenset({"port-down"})
NOT_CROSSED: Final = "not-crossed"
LOOK_S: Final = 0.0005
ASK_S: Final = 0.005  # when they are reached is in the prober's log: to ask it often would only keep it busy
NOTICE_S: Final = 5.0
RECENT: Final = 200  # of the controller's words, among which the one that is waited for must be
MIDDLE: Final = 0.5  # of an iteration: where something fails
SPARE: Final = 10  # an iteration that takes so many times what it should has failed
SPARE_S: Final = 30.0


@dataclass
class Course:
    """A takeover on a fabric that stands. `at`: when each step was, in monotonic ns, by its name."""

    stage: Stage
    job: TakeoverJob
    seed: int
    at: dict[str, int] = field(default_factory=dict)

    def step(self, what: str, at_ns: int | None = None) -> int:
        """It happened now, or at that time; when."""
        self.at[what] = time.monotonic_ns() if at_ns is None else at_ns
        return self.at[what]

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

    def fail_and_take_over(self, fault: Fault, iteration_s: float, prober: Prober) -> int:
        """Let it fail in the middle of an iteration, act on it, and return when replacements answer: from which moment
        on their answers count (ns). CheckFailed if the fault doesn't bite, or one of the steps doesn't come.
        """
        abort, begun, net = threading.Event(), Future[int](), self.stage.net
        optical = self.job.way == "optical"
        with ExitStack() as until_adopted, ThreadPoolExecutor(2) as pool:
            moves = self.job.moves.to.items() if optical else ()
            adoptions = [until_adopted.enter_context(Adoption(net, new, old)) for old, new in moves]
            try:
                iteration = pool.submit(self.play, self.job.before, begun.set_result, abort)
                either: tuple[Future[Any], ...] = (begun, iteration)
                wait(either, return_when=FIRST_COMPLETED)
                if iteration.done():
                    iteration.result()
                time.sleep(max(0.0, begun.result() / 1e9 + iteration_s * MIDDLE - time.monotonic()))
                until_adopted.enter_context(_first_in_line())  # the job's manager has a processor of its own
                since_ns = time.monotonic_ns()
                struck = pool.submit(_strike, net, fault)
                self.step("detected", self._noticed(since_ns, struck))
                since_ns = self.step("decided")
                abort.set()
                if optical:
                    since_ns = self._bring_in(adoptions, struck)
            finally:
                abort.set()
            self.step("fault", struck.result())
            with suppress(Aborted, CheckFailed):  # the latter if a connection broke before we ended it
                iteration.result()
                raise RailyardError("an iteration was over before something failed in its middle")
        deadline = time.monotonic() + NOTICE_S
        while not prober.reaches_all(since_ns):
            if time.monotonic() > deadline:
                raise CheckFailed(f"no replacement is reached {NOTICE_S:g} s after it was to take over")
            time.sleep(ASK_S)
        if optical:  # not before: peers needn't wait until the controller has sockets at the replacements
            by_name = self.job.by_name
            for name in (*by_name, *by_name.values()):  # a spare's name is the failed one's now: nothing is lost there
                self.stage.controller.relearn(name)
        return since_ns

    def _bring_in(self, adoptions: Sequence[Adoption], struck: Future[int]) -> int:
        """Let light lead to the spares, and while it is off, give them names and addresses; when both are done (ns)."""
        controller, decided_ns = self.stage.controller, self.at["decided"]
        controller.cross({new: old for old, new in self.job.by_name.items()})
        for adoption in adoptions:
            adoption.take_identity()
        struck.result()  # who breaks a GPU, and looks whether it is broken, goes by its name
        for adoption in adoptions:
            adoption.take_name()
        adopted_ns = self.step("adopted")
        self.step("light-off", self._lit("light-off", decided_ns))
        lit_ns = self.step("light-on", self._lit("light-on", decided_ns))
        return max(adopted_ns, lit_ns)

    def _noticed(self, since_ns: int, struck: Future[int]) -> int:
        """Wait until the controller tells of what has failed; when it did."""
        names = self.job.noticed_by
        try:
            return self._hear(since_ns, NOTICED, names, f"of {', '.join(sorted(names))}, which has failed")[0]
        except CheckFailed:
            struck.result()  # if it didn't bite, this says so
            raise

    def _lit(self, what: str, since_ns: int) -> int:
        """Wait until the controller tells this of the optical switches; when it did."""
        at, told = self._hear(since_ns, frozenset({what, NOT_CROSSED}), frozenset(), f"of {what}")
        if told["what"] == NOT_CROSSED:
            raise CheckFailed(f"no fibre was moved: {told['why']}")
        return at

    def _hear(
        self, since_ns: int, wanted: frozenset[str], names: frozenset[str], meant: str
    ) -> tuple[int, dict[str, Any]]:
        """When it was told, and the detail, with `what` it is. If there are names, one of them must be in it."""
        deadline, looked_at = time.monotonic() + NOTICE_S, max(0, len(self.stage.told) - RECENT)
        while time.monotonic() < deadline:
            news = self.stage.told[looked_at:]
            looked_at += len(news)
            for at, what, detail in news:
                if at >= since_ns and what in wanted and (not names or names & set(map(str, detail.values()))):
                    return at, {**detail, "what": what}
            time.sleep(LOOK_S)
        raise CheckFailed(f"the controller told nothing in {NOTICE_S:g} s {meant}")


def _strike(net: FabricNet, fault: Fault) -> int:
    """Inject it; when it was (ns)."""
    with _first_in_line():  # names can't move before it is known to bite
        return inject(net, fault)


@contextmanager
def _first_in_line() -> Iterator[None]:
    """This thread, and what it starts meanwhile, go before others, like the controller: real ones don't share a
    processor with all GPUs. An ordinary user may not.
    """
    me = threading.get_native_id()
    usual = os.getpriority(os.PRIO_PROCESS, me)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, me, FIRST_IN_LINE)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, me, usual)
