"""Plausible runs under policies that steer routes, made from a seed, and parts that tests change.

- `steered_run`: the same transfers under each policy, beside two rails that are busy.
- `scenes_run`: a message in each scene of a grid, which finds the scores and takes the times that the test says.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.records import CHOICES, HEALTH, Choice, HealthSample
from railyard.results.runs.records import ByteCheck, Event, FabricRun, Flow, LinkCheck, Load, Measurement, Run
from railyard.workloads.background.spec import GridSpec, Scene
from railyard.workloads.jobs.transfers import RECEIPT
from tests.unit.sample_runs import POLICY, RAIL, SECOND, fabric

POLICIES = ("dr", "rd", "ecmp", "random", "health", "health-drd", "health-spray", "health-best", "oracle")
TIMES = dict(zip(POLICIES, (9.6, 9.4, 8.9, 5.2, 6.1, 4.1, 3.4, 1.06, 1.0), strict=True))
PERIOD, SETTLE = 50_000_000, 10**9
DWELL_S, BUSY = 0.2, 0.9
PHASES = ("near", "far")


@dataclass
class SteeredSample:
    """Its size, its policies, the rails that are busy, and the clock."""

    domains: int
    rails: int
    policies: tuple[str, ...]
    dice: random.Random
    run: Run
    clock: int = 5 * SECOND
    busy: tuple[int, ...] = field(default=(0, 1))

    def pairs(self) -> list[tuple[str, str]]:
        """Return each GPU of even domains to the next rank of the next domain, and one to its own rail."""
        far = [
            (f"d{d}g{g}", f"d{d + 1}g{(g + 1) % self.rails}")
            for d in range(0, self.domains - 1, 2)
            for g in range(self.rails)
        ]
        return [*far, ("d0g0", "d1g0"), ("d0g0", "d0g1")]


def steered_run(
    domains: int = 2,
    rails: int = 4,
    repeats: int = 2,
    policies: tuple[str, ...] = POLICIES,
    kinds: tuple[str, ...] = ("rail-only",),
    workloads: tuple[str, ...] = ("transfers",),
) -> Run:
    """The whole run. The same arguments give the same run."""
    spec = {
        "name": "hot-rail", "title": "A hot rail", "seed": 7, "repeats": repeats,
        "fabrics": [{"kind": kind, "domains": domains, "rails": rails} for kind in kinds],
        "workloads": [{"kind": name} for name in workloads],
        "routing": {"policies": list(policies), "margin": 10, "dwell": "200ms", "delta": 10, "settle": "1s"},
        "background": [{"rails": [0, 1], "load": BUSY}],
    }  # fmt: skip
    run = Run("hot-rail", spec, {"cores": 2}, "2026-11-21T01:00:00Z", duration_s=60.0)
    s = SteeredSample(domains, rails, policies, random.Random(7), run)
    for kind in kinds:
        run.links.append(LinkCheck(kind, "rail", "d0g0:rail0", RAIL, RAIL * 0.999))
        run.fabrics.append(fabric(domains, rails, kind, POLICY[kind]))
        for repeat in range(repeats):
            for workload in workloads:
                for policy in policies:
                    add_steered_interval(s, kind, policy, workload, repeat)
    return run


def add_steered_interval(s: SteeredSample, kind: str, policy: str, workload: str, repeat: int) -> None:
    """Background, a second later the transfers; those who go by scores leave the busy rails in between."""
    begun = s.clock
    started, predicted = begun + SETTLE, TIMES.get(policy, 2.0) * (1 + 0.1 * repeat)
    took = predicted * s.dice.uniform(1.0, 1.05)
    ended, where = started + round(took * SECOND), IntervalId(kind, workload, policy, repeat=repeat)
    what = where.as_dict()
    background = {**what, "rails": list(s.busy), "domains": [], "spine": False, "load": BUSY}
    s.run.events += [
        Event(begun + 2, "background", "on", background),
        Event(started, "workload", "started", what),
        Event(ended, "workload", "finished", what),
    ]
    scored = policy.startswith("health")
    for at in range(begun, ended, PERIOD):
        add_scores(s, where, at, begun, leaves=scored)
    for src, dst in s.pairs()[:-1]:
        add_choices(s, where, src, dst, begun)
    if scored:
        detail = {
            **what,
            "routes": 6,
            "sources": 3,
            "ms": 7.5 + repeat,
            "version": 1,
        }
        s.run.events += [Event(begun + 4 * PERIOD, "steering", "changed", detail)]
        s.run.events += [Event(started + 2 * PERIOD, "steering", "changed", detail | {"ms": 12.5, "version": 2})]
    add_measured(s, where, took, predicted, started)
    s.run.events.append(Event(ended + 1, "background", "off", background))
    s.clock = ended + SECOND // 10


def add_scores(s: SteeredSample, where: IntervalId, at: int, begun: int, leaves: bool) -> None:
    for rail in range(s.rails):
        warm = min(1.0, (at - begun) / (6 * PERIOD))
        load = BUSY * warm if rail in s.busy else (0.6 if at > begun + SETTLE and leaves else 0.05)
        load = min(1.0, load * s.dice.uniform(0.97, 1.0))
        s.run.rows(HEALTH).append(HealthSample(where, at, "rail", rail, load, round(100 * (1 - load))))
    for domain in range(s.domains):
        load = 0.1 * s.dice.random() if at > begun + SETTLE else 0.0
        s.run.rows(HEALTH).append(HealthSample(where, at, "domain", domain, load, round(100 * (1 - load))))


def add_choices(s: SteeredSample, where: IntervalId, src: str, dst: str, begun: int) -> None:
    """Under any policy first the steered_fabric's own path; then away from the busy rails, and once back and forth."""
    own, to = int(src.partition("g")[2]), int(dst.partition("g")[2])
    path = f"r by rail {own}" if own == to else f"dr by rail {to}"
    s.run.rows(CHOICES).append(Choice(where, begun + 1, src, dst, path))
    if where.policy.startswith("health") and to in s.busy:
        other = f"drd by rail {s.rails - 1 - to}"
        paths = f"{other} + drd by rail 2" if "spray" in where.policy else other
        for after, what in ((4, paths), (26, path), (31, paths)):
            s.run.rows(CHOICES).append(Choice(where, begun + after * PERIOD + to, src, dst, what))


def add_measured(s: SteeredSample, where: IntervalId, took: float, predicted: float, started: int) -> None:
    """The whole and its phases, each with what was sent."""
    for part, phase in enumerate(("", *PHASES)):
        share = part / len(PHASES) if phase else 1
        row = ("completion_time", took * share, "s", predicted * share)
        s.run.measurements.append(Measurement(where, phase, *row))
    end = started + round(took * SECOND)
    for number, (src, dst) in enumerate(s.pairs()):
        phase = PHASES[number % 2]
        s.run.flows.append(Flow(where, phase, "collective", src, dst, 10**6, 10**6, started, end))
    total = len(s.pairs()) * 10**6
    s.run.bytes.append(ByteCheck(where, total, total, 0, 9 * total, 0, 0))
    s.run.loads.append(Load(where, 0.5, 0.01, 1.0, 0, total // 8000, 0))


SCENE_RAIL, SCENE_HB = 20_000_000, 40_000_000
MS = 10**6
WAYS = {"dr": "rail-only", "ecmp": "spine"}
ROUNDS = 3
Loads = tuple[float, float, float]
"""Of domain, rail and spine."""


@dataclass(frozen=True)
class Found:
    """What a message found: scores in percent (domain, rail, spine, far rail), and ms by each way."""

    scores: tuple[int, int, int, int] = (100, 100, 100, 100)
    rail_only_ms: float = 30.0
    spine_ms: float = 30.0


def scenes_run(found: Mapping[Loads, Found], repeats: int = 1, hb_bps: int = SCENE_HB, **grid: Any) -> Run:
    """One pair, d0g0 to d1g1, in all scenes of a grid; those that `found` doesn't have are idle."""
    spec = {"domains": [0], "rails": [0], "spine": True, "loads": [0, 0.5, 0.9]} | grid
    run = Run(
        "rail-only-vs-optimized",
        {
            "name": "rail-only-vs-optimized", "seed": 1, "repeats": repeats, "grid": spec,
            "fabrics": [{"kind": "rail-optimized"}], "workloads": [{"kind": "transfers"}],
            "routing": {"policies": list(WAYS), "dwell": "200ms"},
        },
        {"cores": 2}, "2026-11-21T01:00:00Z", duration_s=60.0,
    )  # fmt: skip
    run.links.append(LinkCheck("rail-optimized", "rail", "d0g0:rail0", SCENE_RAIL, SCENE_RAIL))
    size = (4, 4, SCENE_RAIL, hb_bps, 9000, "a100", 1, SCENE_RAIL)
    run.fabrics.append(FabricRun("rail-optimized", "spine", "rail-optimized", *size, ("rail0",), "userspace", 0.6, 0.1))
    clock = 5 * SECOND
    for repeat in range(repeats):
        for scene in GridSpec.model_validate(spec).scenes:
            for policy in WAYS:
                clock = add_scene(run, scene, policy, repeat, clock, found)
    return run


def add_scene(run: Run, scene: Scene, policy: str, repeat: int, begun: int, found: Mapping[Loads, Found]) -> int:
    """Scores rise to what is found before the messages begin, and fall while they run. When it ended."""
    here = found.get((scene.domain, scene.rail, scene.spine), Found())
    where = IntervalId("rail-optimized", "transfers", policy, scene.name, repeat=repeat)
    started = begun + 600 * MS
    took = round((here.rail_only_ms if WAYS[policy] == "rail-only" else here.spine_ms) * MS)
    ended = started + ROUNDS * 2 * took
    for at in range(begun, ended, 50 * MS):
        fresh, own = at < begun + 350 * MS, 30 if at >= started else 0
        elements = zip(("domain", "rail", "spine", "rail"), (0, 0, 0, 1), here.scores, strict=True)
        for element, index, score in (*elements, ("domain", 1, 100)):
            seen = 100 if fresh else max(1, score - own)
            run.rows(HEALTH).append(HealthSample(where, at, element, index, 1 - seen / 100, seen))
    what = where.as_dict()
    run.events += [Event(started, "workload", "started", what), Event(ended, "workload", "finished", what)]
    for number in range(ROUNDS):
        at, longer = started + number * 2 * took, took + (number - 1) * MS
        run.flows.append(Flow(where, "transfer", "collective", "d0g0", "d1g1", 64_000, 64_000, at, at + longer))
        run.flows.append(Flow(where, RECEIPT, "collective", "d1g1", "d0g0", 1, 1, at + took, at + 2 * took))
    time_s = (ended - started) / SECOND
    run.measurements.append(Measurement(where, "", "completion_time", time_s, "s"))
    run.bytes.append(ByteCheck(where, 1000, 1000, 0, 2000, 0, 0))
    run.loads.append(Load(where, 0.5, 0.01, 1.0, 0, 1000, 0))
    return ended + 400 * MS
