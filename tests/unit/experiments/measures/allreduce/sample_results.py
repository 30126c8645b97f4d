"""A sample of results: two multi-rail fabrics on which every performance target is met."""

from collections.abc import Mapping

from railyard.core.records import IntervalId
from railyard.experiments.measures.allreduce.records import (
    RAILS,
    AllreduceResults,
    Cut,
    DdpRun,
    LostRails,
    Point,
    Rails,
    Skipped,
    Training,
    allreduce_interval,
)
from railyard.experiments.measures.faults.records import GOODPUT
from railyard.results.runs.records import GoodputTrace, Run
from tests.unit.replaced import replaced

KIB, MIB = 2**10, 2**20
SCALE = 50.0
SIZES = (2 * KIB, 64 * MIB)
PAIR = Rails(
    "tcp+tcp, 4 nodes", 4, "tcp+tcp", ("tcp0", "tcp1"), ("tcp", "tcp"), (5.5e7, 5.5e7), (1e-4, 1e-4), SCALE, 9000,
    threshold=48_224.0,
)  # fmt: skip
UNLIKE = Rails(
    "tcp+sharp, 4 nodes", 4, "tcp+sharp", ("tcp0", "sharp1"), ("tcp", "sharp"), (5.5e7, 6e7), (1e-4, 1e-6), SCALE, 9000
)
SECONDS: dict[str, dict[str, tuple[float, float]]] = {
    PAIR.label: {
        "nezha": (0.001, 0.157),
        "mrib": (0.0015, 0.158),
        "mptcp": (0.0015, 0.170),
        "slicing": (0.001, 0.180),
        "single:tcp0": (0.001, 0.3),
        "gloo": (0.0005, 0.31),
    },
    UNLIKE.label: {
        "nezha": (0.0001, 0.113),
        "mrib": (0.001, 0.144),
        "mptcp": (0.001, 0.170),
        "slicing": (0.001, 0.180),
        "equal": (0.001, 0.160),
        "weights:99:1": (0.001, 0.298),
        "single:tcp0": (0.001, 0.3),
        "single:sharp1": (0.0001, 0.18),
    },
}
"""Fabric -> policy -> seconds of the small size and of the large one."""


def shares_of(policy: str, size: int) -> tuple[float, float]:
    if policy.startswith("single"):
        return (1.0, 0.0) if policy.endswith("0") else (0.0, 1.0)
    return (0.4, 0.6) if size > MIB or policy != "nezha" else (0.0, 1.0)


def point_of(fabric: str, policy: str, size: int, seconds: float, **changed: object) -> Point:
    shares = shares_of(policy, size)
    what = {
        "interval": allreduce_interval(fabric, policy, size), "size": size, "sent": int(size / SCALE) // 4 * 4,
        "operations": 50, "measured": 10, "mean_s": seconds, "typical_s": seconds, "p99_s": None,
        "shares": shares, "rail_s": tuple(seconds * 0.97**n for n in range(2)) if all(shares) else (seconds, 0.0),
        "settled_after": 25 if policy == "nezha" else 0, "wrong": 0, "checked": 12, "copied": 1.0,
        "predicted_s": seconds * 0.97,
    }  # fmt: skip
    return Point(**{**what, **changed})  # type: ignore[arg-type]


def points(seconds: Mapping[str, Mapping[str, tuple[float, float]]] = SECONDS) -> list[Point]:
    return [
        point_of(fabric, policy, size, time)
        for fabric, by in seconds.items()
        for policy, times in by.items()
        for size, time in zip(SIZES, times, strict=True)
    ]


def started(by: Point, *seconds: float, **changed: object) -> list[Point]:
    """A point of several starts that took so long."""
    times = ({"mean_s": time, "typical_s": time, "repeat": number} for number, time in enumerate(seconds))
    return [replaced(by, **time, **changed) for time in times]


def faulted(repeat: int) -> IntervalId:
    return allreduce_interval(PAIR.label, "nezha", 16 * MIB, repeat, "link-down", "tcp0 of n1")


def cut_of(repeat: int = 0, **changed: object) -> Cut:
    what = {
        "interval": faulted(repeat), "fault": "link-down", "target": "tcp0 of n1",
        "size": 16 * MIB, "t_fault": 10**9, "t_repair": 2 * 10**9, "inside": True,
        "detect_ms": 20.0 + repeat, "migrate_ms": 22.0 + repeat, "home_ms": 300.0, "median_s": 0.04, "worst_s": 0.09,
        "operations": 40, "wrong": 0, "checked": 1000, "carried": True,
    }  # fmt: skip
    return Cut(**{**what, **changed})  # type: ignore[arg-type]


def training_of(policy: str, step_s: float) -> Training:
    interval = IntervalId(PAIR.label, "vgg-11 batch 64", policy)
    times = {"compute_s": 0.5, "step_s": step_s, "predicted_s": step_s * 0.98}
    return Training(interval=interval, steps=3, samples_per_s=64.0 / step_s, bytes=10_000_000, **times)


def sample() -> AllreduceResults:
    rates = [
        GoodputTrace(faulted(0), "link-down", "tcp0 of n1", (-40.0, -20.0, 0.0, 20.0), bps, (), 700.0, link=name)
        for name, bps in (("tcp0", (4e7, 4e7, 0.0, 0.0)), ("tcp1", (4e7, 4e7, 5e7, 5e7)))
    ]
    trainings = [training_of("nezha", 1.0), training_of("single:tcp0", 1.4), training_of("gloo", 1.5)]
    ddp_run = DdpRun(
        interval=IntervalId(PAIR.label, "DDP", "nezha"),
        bytes=10**6,
        gloo_losses=(1.4, 0.7, 0.2),
        losses=(1.4, 0.7, 0.2),
        losses_apart=1e-6,
        gloo_step_s=0.25,
        step_s=0.14,
    )
    return AllreduceResults([PAIR, UNLIKE], points(), [cut_of(n) for n in range(20)], rates, trainings, [ddp_run])


def run_of(results: AllreduceResults) -> Run:
    """A run that recorded them."""
    run = Run("mine", {"title": "Two rails", "seed": 1}, {"kernel": "6.18"}, "2025-01-01T00:00:00+00:00")
    run.rows(RAILS).extend(results.fabrics)
    run.rows(GOODPUT).extend(results.rates)
    for rows in (results.points, results.trainings, results.ddp_runs, results.cuts):
        for row in rows:
            row.add_to(run)
    events: list[Skipped | LostRails] = [*results.skipped, *results.lost]
    for event in events:
        event.add_to(run)
    return run
