"""Expected time of a workload under health routing, by max-min fair shares, and the input of the oracle. Pure.

Only where one path carries all of a pair's traffic and the background doesn't change: a hash decides for several paths,
and no formula covers damping while the background moves.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor

from railyard.controller.agent.steering import ActivePaths, Steering, damp
from railyard.controller.health.oracle import Background, Flow, assign, by_pair, finish_s
from railyard.controller.health.policy import BEST, HEALTH_POLICIES, Scores, idle
from railyard.core.errors import RailyardError
from railyard.experiments.measures.steering.spec import RoutingSpec, background_of, grid_of, routing_of
from railyard.experiments.measures.workloads.spec import labelled_workloads
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.forwarding import Path, Shares
from railyard.topologies.plan import Plan
from railyard.workloads.background.flows import BackgroundFlow, flows_of
from railyard.workloads.background.spec import BackgroundSpec, Wave
from railyard.workloads.jobs.transfers import RECEIPT
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import Workload, build


def flows_in(schedule: Schedule, gpus: Sequence[Gpu]) -> tuple[Flow, ...]:
    """Return one flow for each pair of GPUs of different domains, with all of its bytes; receipts don't count."""
    total = schedule.matrix
    if any(phase.name == RECEIPT for phase in schedule.phases):
        total = defaultdict(int)
        for _, transfer in schedule.transfers:
            if schedule.phases[transfer.phase].name != RECEIPT:
                total[transfer.src, transfer.dst] += transfer.bytes
    flows = (Flow(gpus[src], gpus[dst], size) for (src, dst), size in total.items())
    return tuple(flow for flow in flows if flow.src.domain != flow.dst.domain)


@dataclass(frozen=True)
class Pattern:
    """Background over time, in seconds since it began."""

    plan: Plan
    specs: tuple[BackgroundSpec, ...]

    @property
    def steady(self) -> bool:
        """True if it never changes."""
        return all(spec.wave == Wave() for spec in self.specs)

    def at(self, t_s: float) -> frozenset[int]:
        """Return the numbers of the entries that are on."""
        numbers = (i for i, spec in enumerate(self.specs) if spec.wave.is_on(t_s))
        return frozenset(numbers)

    def flows(self, on: Iterable[int]) -> tuple[BackgroundFlow, ...]:
        """Return the flows of these entries."""
        flows: list[BackgroundFlow] = []
        for number in sorted(on):
            flows += flows_of(self.specs[number], self.plan)
        return tuple(flows)

    def next_change(self, t_s: float) -> float | None:
        """Return the next time after `t_s` at which an entry begins or ends; None if there is none."""
        changes = list[float]()
        for spec in self.specs:
            wave = spec.wave
            # of a load that comes again, the changes of this period and of the next one
            starts = [wave.first]
            if wave.every:
                period = floor(max(0.0, t_s - wave.first) / wave.every)
                starts = [wave.first + period * wave.every, wave.first + (period + 1) * wave.every]
            changes += starts
            if wave.lasts is not None:
                changes += [start + wave.lasts for start in starts]
        return min((at for at in changes if at > t_s), default=None)


def as_fair_share(flows: Iterable[BackgroundFlow]) -> list[Background]:
    """Return the background as the max-min model takes it: at a fixed rate, which never yields, as UDP."""
    return [Background(flow.src, flow.dst, Path(flow.path, flow.src.rank), flow.bps) for flow in flows]


def expected_scores(plan: Plan, background: Iterable[BackgroundFlow]) -> Scores:
    """Return the h-scores of the background alone: of mean utilisation, each link by its busier direction."""
    out: defaultdict[tuple[Gpu, str], float] = defaultdict(float)
    into: defaultdict[tuple[Gpu, str], float] = defaultdict(float)
    across = 0.0
    for flow in background:
        out[flow.src, flow.device] += flow.bps
        into[flow.dst, flow.device] += flow.bps
        if flow.path == "spine" or _is_between_leaves(plan, flow):
            across += flow.bps

    by_rank: defaultdict[int, float] = defaultdict(float)
    by_domain: defaultdict[int, float] = defaultdict(float)
    for gpu in plan.gpus:
        by_rank[gpu.rank] += max(out[gpu, "rail0"], into[gpu, "rail0"])
        by_domain[gpu.domain] += max(out[gpu, "hb0"], into[gpu, "hb0"])
    rail_capacity_bps = plan.rail_bps * plan.spec.domains
    domain_capacity_bps = plan.hb_bps * plan.spec.rails
    uplinks_bps = sum(link.rate_bps for link in plan.uplinks)
    return Scores(
        rails=tuple(_score(by_rank[rank], rail_capacity_bps) for rank in range(plan.spec.rails)),
        domains=tuple(_score(by_domain[number], domain_capacity_bps) for number in range(plan.spec.domains)),
        spine=_score(across, uplinks_bps),
    )


def _is_between_leaves(plan: Plan, flow: BackgroundFlow) -> bool:
    """Return whether a flow on a rail crosses the spines, since its ends are on switches of different domains."""
    if flow.path != "r" or not plan.spec.definition.is_graph:
        return False
    return plan.graph.switch_of[flow.src] != plan.graph.switch_of[flow.dst]


def _score(used_bps: float, capacity_bps: float) -> int:
    """Return the h-score of links that carry `used_bps` together; the best one if there are none."""
    if not capacity_bps:
        return BEST
    used_share = min(1.0, used_bps / capacity_bps)
    # 0 means blocked: no policy would choose a path through it
    return max(1, round(BEST * (1 - used_share)))


def oracle_paths(
    plan: Plan, flows: Sequence[Flow], background: Sequence[BackgroundFlow]
) -> dict[tuple[Gpu, Gpu], Shares]:
    """Return the paths that the oracle assigns while this background is on."""
    return by_pair(flows, assign(plan, flows, as_fair_share(background)))


def settled_paths(steering: Steering, src: Gpu, dst: Gpu, scores: Scores) -> Shares:
    """Return the paths of a pair once these scores have lasted, after an idle fabric; damping may keep the old ones.

    RailyardError if the policy, which may be a plugin's, raises.
    """
    choose = HEALTH_POLICIES[steering.policy].choose
    context = steering.context
    try:
        first = ActivePaths(choose(src, dst, idle(len(scores.domains), len(scores.rails)), context), 0)
        preferred = choose(src, dst, scores, context)
        return damp(first, preferred, src, dst, scores, steering.damping.dwell_ns, steering).shares
    except Exception as error:
        raise RailyardError(f"policy {steering.policy} failed: {type(error).__name__}: {error}") from error


def completion_s(pattern: Pattern, flows: Sequence[Flow], steering: Steering) -> float | None:
    """Return the seconds until the last flow is done, if all start together.

    Pairs keep the paths that they have by the scores of the background alone. Max-min fair shares of what the
    background leaves, headers counted. None where a pair has several paths, or the background comes and goes.
    """
    if not pattern.steady:
        return None
    plan = pattern.plan
    background = pattern.flows(pattern.at(0.0))
    scores = expected_scores(plan, background)
    paths = []
    for flow in flows:
        shares = settled_paths(steering, flow.src, flow.dst, scores)
        if len(shares) != 1:
            return None
        paths.append(shares[0].path)
    wire = payload_fraction(plan.spec.mtu)
    on_the_wire = [Flow(flow.src, flow.dst, round(flow.size / wire)) for flow in flows]
    return max(finish_s(plan, on_the_wire, paths, as_fair_share(background)), default=None)


@dataclass(frozen=True)
class InitialState:
    """One workload on one fabric with one seed, beside a background, before anything of it is sent.

    For `predict` and `dry-run`; a run does the same with scores that are measured.
    """

    plan: Plan
    routing: RoutingSpec
    workload: Workload
    background: tuple[BackgroundSpec, ...]
    seed: int
    workload_label: str = ""

    @cached_property
    def schedule(self) -> Schedule:
        """The workload's schedule."""
        return build(self.workload, self.plan.spec, self.plan.rail_bps, self.plan.hb_bps, seed=self.seed)[0]

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """The flows that cross domains."""
        return flows_in(self.schedule, self.plan.gpus)

    @cached_property
    def pattern(self) -> Pattern:
        """The background over time."""
        return Pattern(self.plan, self.background)

    @cached_property
    def scores(self) -> Scores:
        """Scores by the background alone, as it begins."""
        return expected_scores(self.plan, self.pattern.flows(self.pattern.at(0.0)))

    def steering(self, policy: str) -> Steering:
        """Return how agents apply a policy; one that knows the load has its paths for the background as it begins."""
        assigned: dict[tuple[Gpu, Gpu], Shares] = {}
        if HEALTH_POLICIES[policy].knows_load:
            assigned = oracle_paths(self.plan, self.flows, self.pattern.flows(self.pattern.at(0.0)))
        return self.routing.steering(policy, self.plan.spec, self.seed, assigned)

    def chosen(self, policy: str, pairs: Iterable[tuple[Gpu, Gpu]] | None = None) -> dict[tuple[Gpu, Gpu], Shares]:
        """Return the paths of some pairs (None: of all that send) once those scores have lasted."""
        if pairs is None:
            pairs = [(flow.src, flow.dst) for flow in self.flows]
        steering = self.steering(policy)
        return {(src, dst): settled_paths(steering, src, dst, self.scores) for src, dst in pairs}


def initial_states(spec: ExperimentSpec, seeds: int | None = None) -> Iterator[tuple[str, str, InitialState]]:
    """Yield (fabric, workload, initial state) for the first `seeds` (None: all) of each workload on each fabric.

    A scene of a grid makes a workload of its own. Nothing if routes are not steered.
    """
    routing = routing_of(spec)
    if routing is None:
        return
    background = background_of(spec)
    grid = grid_of(spec)
    seed_count = spec.repeats if seeds is None else seeds
    for label, fabric in zip(spec.labels, spec.gpu_fabrics, strict=True):
        plan = nominal_plan(fabric)
        for workload_label, workload in labelled_workloads(spec):
            scenes = [(workload_label, background)]
            if grid:
                scenes = []
                for scene in grid.on(fabric).scenes:
                    name = ", ".join(filter(None, (workload_label, scene.name)))
                    scenes.append((name, scene.background(fabric)))
            for name, scene_background in scenes:
                for seed in range(spec.seed, spec.seed + seed_count):
                    initial = InitialState(plan, routing, workload, scene_background, seed, workload_label)
                    yield label, name, initial
