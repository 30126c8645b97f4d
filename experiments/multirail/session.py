"""Session on a multi-rail fabric: its rails as predictions take them, and the allreduce engines that run on it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.host import Datapath
from railyard.core.wait import poll
from railyard.experiments.multirail.measured import check_complete
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.session import Session
from railyard.results.runs.allreduce import Skipped
from railyard.results.runs.records import LinkCheck, Run
from railyard.topologies.measure.rates import calibration_options, measured_bps, start_flow
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, engine_of, rails_of

PAUSE_S: Final = 0.05
_SHARED_ENGINE: Final = "nezha"
"""The policy that the shared processes start with."""


@dataclass
class MultirailSession(Session):
    """A built multi-rail fabric. Whatever is measured goes into `run`."""

    net: MultirailNet
    run: Run = field(repr=False)

    @property
    def plan(self) -> MultirailPlan:
        """The plan of its network."""
        return self.net.plan

    @property
    def dilation(self) -> float:
        """Slowdown of time in its plan."""
        return self.plan.dilation

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.plan.spec.nodes

    @cached_property
    def rails(self) -> tuple[Rail, ...]:
        """The rails as predictions take them: rates are those of payload."""
        return rails_of(self.plan)

    @contextmanager
    def recording_skips(self, policy: str) -> Iterator[None]:
        """Record a policy that can't run here, or fails, and go on."""
        try:
            yield
        except MissingRequirement as error:
            Skipped(self.label, policy, error.what, failed=False).add_to(self.run)
        except (RailyardError, GroupBroken) as error:
            Skipped(self.label, policy, str(error), failed=True).add_to(self.run)

    def engine(self, policy: str) -> Group:
        """Return the ranks of a policy, not yet started; `recording_skips` takes what they raise."""
        return engine_of(policy).start(self.net, policy)


@contextmanager
def built(label: str, plan: MultirailPlan, datapath: Datapath, run: Run, steps: Steps) -> Iterator[MultirailSession]:
    """Build a fabric, measure a NIC of each rail, and take it down again."""
    net = MultirailNet(plan, datapath)
    slower = f", time {plan.dilation:g} times slower" if plan.dilation > 1 else ""
    with ExitStack() as cleanup:
        with steps.step(f"{label}: building and calibrating{slower}"):
            net.start()
            cleanup.callback(net.stop)
            run.links += check_links(label, plan, slower)
        yield MultirailSession(label, net, run)


def check_links(label: str, plan: MultirailPlan, slower: str) -> list[LinkCheck]:
    """Measure all rails at once by iperf3 from node 1 to node 0 (3 s, more below 10 Mbit/s)."""
    flows = [
        (
            rail.name,
            plan.payload_bps(number),
            start_flow("n1", "n0", Nic(number, 0).ip, calibration_options(plan.payload_bps(number))),
        )
        for number, rail in enumerate(plan.rails)
    ]
    return [
        LinkCheck(label, f"rail {name}{slower}", "n1 -> n0", expected, measured_bps(flow), plan.dilation)
        for name, expected, flow in flows
    ]


class MonitoredEngine:
    """An allreduce engine, and the rails that it has lost and that aren't back.

    When the machine stands still for a while, an engine may declare a rail dead that no fault broke. Engines that
    report no rails lose none.
    """

    def __init__(self, ranks: Group) -> None:
        self.lost: frozenset[int] = frozenset()
        self._abandoned: frozenset[int] = frozenset()
        self._ranks = ranks
        self.pause, self.resume = ranks.pause, ranks.resume

    def run(self, operations: Operations) -> Sequence[RankReport]:
        """Run operations on all ranks."""
        reports = self._ranks.run(operations)
        self.lost |= _lost_rails(reports)
        return reports

    def wait_for_rails(self, operations: Operations, within_s: float) -> None:
        """Repeat `operations`, which should be minimal, until no rail is lost.

        A rail that isn't back in time isn't waited for again. CheckFailed if a rank fails.
        """

        def all_back() -> bool:
            reports = self._ranks.run(operations)
            check_complete(reports)
            self.lost = _lost_rails(reports)
            return not self.lost

        if self.lost:
            poll(all_back, 0 if self.lost <= self._abandoned else within_s, PAUSE_S)
        self._abandoned = self.lost


def _lost_rails(reports: Sequence[RankReport]) -> frozenset[int]:
    died = {rail for report in reports for migration in report.migrations for rail in migration.rails}
    return frozenset(died.union(*(report.dead_rails for report in reports)))


class EnginePool:
    """Processes of several engines on one fabric; one engine at a time works, the others are paused.

    A machine may be slower from one second to the next (its host has other guests), so policies that are compared take
    turns. All policies of Railyard's own engine share its processes and connections. An engine is started when it is
    first needed.
    """

    def __init__(self, session: MultirailSession) -> None:
        self._session = session
        self._started: dict[str, tuple[ExitStack, MonitoredEngine]] = {}
        self._active: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:  # an engine that can't be ended keeps no other from it
            for name in reversed(self._started):
                ends.callback(self._end, name)

    def engine_for(self, policy: str) -> MonitoredEngine:
        """Return a policy's engine, running, with all others paused. Raises what the engine raises at its start."""
        name = _engine_name(policy)
        if self._active != name:
            active, self._active = self._active, None
            if active is not None:
                self._started[active][1].pause()
            if name in self._started:
                self._started[name][1].resume()
            else:
                stack = ExitStack()
                self._started[name] = stack, MonitoredEngine(stack.enter_context(self._session.engine(name)))
            self._active = name
        return self._started[name][1]

    @staticmethod
    def share_engine(policy: str, other: str) -> bool:
        """Return whether two policies have the same processes."""
        return _engine_name(policy) == _engine_name(other)

    def drop(self, policy: str) -> None:
        """End a policy's engine, which failed; the next policy that needs it gets new processes."""
        if _engine_name(policy) in self._started:
            self._end(_engine_name(policy))

    def _end(self, name: str) -> None:
        stack, _ = self._started.pop(name)
        self._active = None if self._active == name else self._active
        stack.close()


def _engine_name(policy: str) -> str:
    return _SHARED_ENGINE if engine_of(policy).runs_policies else policy
