"""A steered run in scenes, in which a message finds scores and takes times that the test says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.records import HEALTH, HealthSample
from railyard.results.runs.records import (
    ByteCheck,
    Event,
    FabricRun,
    Flow,
    LinkCheck,
    Load,
    Measurement,
    Run,
)
from railyard.workloads.background.spec import GridSpec, Scene
from railyard.workloads.jobs.transfers import RECEIPT

RAIL, HB = 20_000_000, 40_000_000
MS, SECOND = 10**6, 10**9
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


def scenes_run(found: Mapping[Loads, Found], repeats: int = 1, hb_bps: int = HB, **grid: Any) -> Run:
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
    run.links.append(LinkCheck("rail-optimized", "rail", "d0g0:rail0", RAIL, RAIL))
    size = (4, 4, RAIL, hb_bps, 9000, "a100", 1, RAIL)
    run.fabrics.append(FabricRun("rail-optimized", "spine", "rail-optimized", *size, ("rail0",), "userspace", 0.6, 0.1))
    clock = 5 * SECOND
    for repeat in range(repeats):
        for scene in GridSpec.model_validate(spec).scenes:
            for policy in WAYS:
                clock = add_interval(run, scene, policy, repeat, clock, found)
    return run


def add_interval(run: Run, scene: Scene, policy: str, repeat: int, begun: int, found: Mapping[Loads, Found]) -> int:
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
