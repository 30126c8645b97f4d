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
from railyard.core.wait import wait_until
from railyard.experiments.run.replacement_job import ReplacementJob
from railyard.experiments.run.session import FabricSession
from railyard.failure.faults import Fault
from railyard.failure.probes.replacement import Prober
from railyard.failure.scenario.player import inject
from railyard.topologies.build.gpu_replacement import HIGH_PRIORITY_NICENESS, GpuReplacement
from railyard.topologies.build.network import FabricNet
from railyard.workloads.replay.job import windows_for_links
from railyard.workloads.replay.run import Aborted, Replay, replay
from railyard.workloads.schedule import Schedule

DETECTION_EVENTS: Final = frozenset({"port-down"})
CROSS_CONNECT_REFUSED: Final = "not-crossed"
EVENT_POLL_S: Final = 0.0005
PROBE_POLL_S: Final = 0.005  # when they are reached is in the prober's log: to ask it often would only keep it busy
EVENT_TIMEOUT_S: Final = 5.0
RECENT_EVENTS: Final = 200  # of the controller's words, among which the one that is waited for must be
FAULT_POSITION: Final = 0.5  # of an iteration: where something fails
TIMEOUT_FACTOR: Final = 10  # an iteration that takes so many times what it should has failed
TIMEOUT_MARGIN_S: Final = 30.0


@dataclass
class ReplacementTimeline:
    """A takeover on a fabric that stands. `at`: when each step was, in monotonic ns, by its name."""

    session: FabricSession
    job: ReplacementJob
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
        windows = windows_for_links(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
        deadline_s = (self.job.estimated_s + self.job.state_s) * TIMEOUT_FACTOR + TIMEOUT_MARGIN_S
        done = replay(schedule, windows, self.seed, deadline_s, started=started, abort=abort)
        if len(done.delivered) < len(schedule.transfers):
            missing = len(schedule.transfers) - len(done.delivered)
            raise CheckFailed(f"{schedule.name}: {missing} transfers didn't arrive: {'; '.join(done.broken[:2])}")
        return done

    def fail_and_replace(self, fault: Fault, iteration_s: float, prober: Prober) -> int:
        """Let it fail in the middle of an iteration, act on it, and return when replacements answer: from which moment
        on their answers count (ns). CheckFailed if the fault doesn't bite, or one of the steps doesn't come.
        """
        abort, begun, net = threading.Event(), Future[int](), self.session.net
        optical = self.job.way == "optical"
        with ExitStack() as cleanup, ThreadPoolExecutor(2) as pool:
            replacement_map = self.job.replacement_map.to.items() if optical else ()
            gpu_replacements = [cleanup.enter_context(GpuReplacement(net, new, old)) for old, new in replacement_map]
            try:
                iteration = pool.submit(self.play, self.job.before, begun.set_result, abort)
                pending: tuple[Future[Any], ...] = (begun, iteration)
                wait(pending, return_when=FIRST_COMPLETED)
                if iteration.done():
                    iteration.result()
                time.sleep(max(0.0, begun.result() / 1e9 + iteration_s * FAULT_POSITION - time.monotonic()))
                cleanup.enter_context(_raised_priority())  # the job's manager has a processor of its own
                since_ns = time.monotonic_ns()
                injection = pool.submit(_inject, net, fault)
                self.step("detected", self._await_detection(since_ns, injection))
                since_ns = self.step("decided")
                abort.set()
                if optical:
                    since_ns = self._connect_spares(gpu_replacements, injection)
            finally:
                abort.set()
            self.step("fault", injection.result())
            with suppress(Aborted, CheckFailed):  # the latter if a connection broke before we ended it
                iteration.result()
                raise RailyardError("an iteration was over before something failed in its middle")
        what = "replacements to answer at the addresses that they take over"
        wait_until(lambda: prober.reaches_all(since_ns), what, EVENT_TIMEOUT_S, PROBE_POLL_S, CheckFailed)
        if optical:  # not before: peers needn't wait until the controller has sockets at the replacements
            by_name = self.job.by_name
            for name in (*by_name, *by_name.values()):  # a spare's name is the failed one's now: nothing is lost there
                self.session.controller.replace_gpu(name)
        return since_ns

    def _connect_spares(self, gpu_replacements: Sequence[GpuReplacement], injection: Future[int]) -> int:
        """Let light lead to the spares, and while it is off, give them names and addresses; when both are done (ns)."""
        controller, decided_ns = self.session.controller, self.at["decided"]
        controller.cross_connect({new: old for old, new in self.job.by_name.items()})
        for gpu_replacement in gpu_replacements:
            gpu_replacement.apply_identity()
        injection.result()  # who breaks a GPU, and looks whether it is broken, goes by its name
        for gpu_replacement in gpu_replacements:
            gpu_replacement.apply_name()
        replaced_ns = self.step("adopted")
        self.step("light-off", self._await_optical_switch("light-off", decided_ns))
        enabled_ns = self.step("light-on", self._await_optical_switch("light-on", decided_ns))
        return max(replaced_ns, enabled_ns)

    def _await_detection(self, since_ns: int, injection: Future[int]) -> int:
        """Wait until the controller tells of what has failed; when it did."""
        names = self.job.detection_names
        try:
            return self._await_event(
                since_ns, DETECTION_EVENTS, names, f"of {', '.join(sorted(names))}, which has failed"
            )[0]
        except CheckFailed:
            injection.result()  # if it didn't bite, this says so
            raise

    def _await_optical_switch(self, what: str, since_ns: int) -> int:
        """Wait until the controller tells this of the optical switches; when it did."""
        at, received = self._await_event(since_ns, frozenset({what, CROSS_CONNECT_REFUSED}), frozenset(), f"of {what}")
        if received["what"] == CROSS_CONNECT_REFUSED:
            raise CheckFailed(f"no fibre was moved: {received['why']}")
        return at

    def _await_event(
        self, since_ns: int, event_kinds: frozenset[str], names: frozenset[str], description: str
    ) -> tuple[int, dict[str, Any]]:
        """Return when (ns) an event of one of these kinds was, and its detail, with its kind as `what`.

        If there are names, one of them must be in it. CheckFailed if there is none in time.
        """
        position = max(0, len(self.session.received) - RECENT_EVENTS)

        def find() -> tuple[int, dict[str, Any]] | None:
            nonlocal position
            new_events = self.session.received[position:]
            position += len(new_events)
            for at, what, detail in new_events:
                if at >= since_ns and what in event_kinds and (not names or names & set(map(str, detail.values()))):
                    return at, {**detail, "what": what}
            return None

        found = wait_until(
            find, f"an event of the controller {description}", EVENT_TIMEOUT_S, EVENT_POLL_S, CheckFailed
        )
        assert found is not None
        return found


def _inject(net: FabricNet, fault: Fault) -> int:
    """Inject it; when it was (ns)."""
    with _raised_priority():  # names can't move before it is known to bite
        return inject(net, fault)


@contextmanager
def _raised_priority() -> Iterator[None]:
    """This thread, and what it starts meanwhile, go before others, like the controller: real ones don't share a
    processor with all GPUs. An ordinary user may not.
    """
    thread_id = threading.get_native_id()
    usual_priority = os.getpriority(os.PRIO_PROCESS, thread_id)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread_id, HIGH_PRIORITY_NICENESS)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread_id, usual_priority)
