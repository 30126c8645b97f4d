"""One multi-rail fabric, built for an experiment: its network, its rails as they are predicted with, what is noted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.host import Datapath
from railyard.core.host_load import LoadMeter
from railyard.core.records import IntervalId
from railyard.experiments.run.progress import Steps
from railyard.results.runs.allreduce import Skipped
from railyard.results.runs.records import LinkCheck, Load, Run
from railyard.topologies.measure.counters import Counters, count_in
from railyard.topologies.measure.rates import measured_bps, start_flow
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine.jobs import GroupBroken
from railyard.workloads.allreduce.engine_kind import Group, engine_of, rails_of


@dataclass(frozen=True)
class MultirailSession:
    """A fabric that stands. `label` is its name in every record; whatever is measured goes into `run`."""

    label: str
    net: MultirailNet
    run: Run = field(repr=False)

    @property
    def plan(self) -> MultirailPlan:
        return self.net.plan

    @property
    def nodes(self) -> int:
        return self.plan.spec.nodes

    @cached_property
    def rails(self) -> tuple[Rail, ...]:
        """With what is left of their rates for payload."""
        return rails_of(self.plan)

    @contextmanager
    def recording_skips(self, policy: str) -> Iterator[None]:
        """What can't run here, or breaks down, is noted, and the rest goes on."""
        try:
            yield
        except MissingRequirement as error:
            Skipped(self.label, policy, error.what, failed=False).add_to(self.run)
        except (RailyardError, GroupBroken) as error:
            Skipped(self.label, policy, str(error), failed=True).add_to(self.run)

    def engine(self, policy: str) -> AbstractContextManager[Group]:
        """Ranks of a policy, not yet started; what they raise is for `recording_skips`."""
        return engine_of(policy).start(self.net, policy)

    def watch(self) -> "Watch":
        """Begin to watch: what the kernel counted until now is no stretch's."""
        return Watch(self, count_in(self.plan.namespaces))


@dataclass
class _Interval:
    """What was seen of it so far; `row`: where it is among the run's loads, once it is."""

    row: int | None = None
    meter: LoadMeter = field(default_factory=LoadMeter)
    spent: Counters = field(default_factory=lambda: Counters(0, 0, 0))


@dataclass
class Watch:
    """Stretches of a run, one after the other. `counted` is what the kernel had counted when the last one ended."""

    session: MultirailSession
    counted: Counters
    _intervals: dict[IntervalId, _Interval] = field(default_factory=dict)

    @contextmanager
    def record_load(self, interval_id: IntervalId, faulted: bool = False) -> Iterator[None]:
        """Record how hard the machine worked meanwhile, and what TCP and queues lost. Of one that comes in several
        parts, with others between them, it's one record."""
        loads, interval = self.session.run.loads, self._intervals.setdefault(interval_id, _Interval())
        before = self.counted
        try:
            with interval.meter:
                yield
        finally:
            self.counted = count_in(self.session.plan.namespaces)  # what went wrong is nobody's but its own, too
        interval.spent += self.counted - before
        spent, load = interval.spent.non_negative, interval.meter.load
        interval.row = len(loads) if interval.row is None else interval.row
        loads[interval.row : interval.row + 1] = [
            Load(
                interval_id, load.busy, load.foreign, load.lag_p99_ms,
                spent.retransmits, spent.segments, spent.drops,
                transfers_faulted=faulted, dilation=self.session.plan.dilation,
            )
        ]  # fmt: skip


@contextmanager
def built(label: str, plan: MultirailPlan, datapath: Datapath, run: Run, steps: Steps) -> Iterator[MultirailSession]:
    """Build a fabric, measure a NIC of each rail, and take it down again."""
    net = MultirailNet(plan, datapath)
    slower = f", time {plan.dilation:g} times slower" if plan.dilation > 1 else ""
    with steps.step(f"{label}: building and calibrating{slower}"):
        net.start()
        try:
            run.links += check_links(label, plan, slower)
        except BaseException:
            net.stop()
            raise
    try:
        yield MultirailSession(label, net, run)
    finally:
        net.stop()


def check_links(label: str, plan: MultirailPlan, slower: str) -> list[LinkCheck]:
    """iperf3 from node 1 to node 0 on every rail at once: what each carries is its own (3 s, more below 10 Mbit/s)."""
    flows = [
        (rail.name, plan.payload_bps(number), start_flow("n1", "n0", Nic(number, 0).ip, plan.payload_bps(number)))
        for number, rail in enumerate(plan.rails)
    ]
    return [
        LinkCheck(label, f"rail {name}{slower}", "n1 -> n0", expected, measured_bps(flow), plan.dilation)
        for name, expected, flow in flows
    ]
