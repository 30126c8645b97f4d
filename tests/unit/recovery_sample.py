"""What failure scripts, takeovers and heartbeats leave behind, made from a seed, on the fabrics of results_sample."""

import random
from io import StringIO

from rich.console import Console

from railyard.core.records import ConnectivityCheck, IntervalId, Recovered, Recovery
from railyard.experiments.measures.replacement.records import REPLACEMENTS, Replacement
from railyard.results.runs.records import Event, GoodputTrace, Load, Measurement, Run
from tests.unit.results_sample import POLICY, RAIL, SECOND, sample_run
from tests.unit.shown import print_summary

KINDS = (
    ("link-down", "d0g1"), ("link-silent", "d1g0"), ("rail-switch-crash", "rail1"), ("gpu-crash", "d1g1"),
    ("link-flapping", "d0g0"), ("server-crash", "hb1"), ("hb-port-down", "d1g0"), ("rail-switch-hang", "rail0"),
)  # fmt: skip


def recovery_run(domains: int = 2, rails: int = 2, repeats: int = 1, faults: int = 8, seed: int = 3) -> Run:
    """Add to the sample: random faults in two repeats, faults during a controller outage, replacements, heartbeats."""
    run, dice = sample_run(domains, rails, repeats), random.Random(seed)
    run.flows = []
    clock = 900 * SECOND
    for repeat in range(2):
        clock = add_random_faults(run, dice, faults, repeat, clock) + SECOND
    add_away(run, clock, far_side_ms=700.0)
    add_replacements(run, clock + 10 * SECOND)
    figures = (("packets", 9600.0, "1/s"), ("rail_link_share", 0.0011, "share"), ("false_alarms", 2.0, "1"))
    for metric, value, unit in figures:
        run.measurements.append(Measurement(IntervalId("rail-only", "heartbeats", "dr"), "", metric, value, unit))
    return run


def add_random_faults(run: Run, dice: random.Random, faults: int, repeat: int, clock: int) -> int:
    """Add so many faults, some concurrent, a connectivity check after each action; return the last repair time, ns."""
    begun, acts = clock, list[tuple[int, str]]()
    for number in range(faults):
        fault, target = KINDS[number % len(KINDS)]
        down = round(dice.uniform(0.3, 1.5) * SECOND)
        run.recoveries.append(row(fault, target, repeat, clock, clock + down, dice.uniform(5, 90), "storm"))
        acts += [(clock, f"inject {fault} {target}"), (clock + down, f"repair {fault} {target}")]
        clock += round(dice.uniform(0.4, 1.8) * SECOND)
    for at, act in sorted(acts):
        run.connectivity_checks.append(connectivity_check(at + SECOND // 2, act, repeat))
    count = (acts[-1][0] - begun) // (20 * 10**6)
    bps = tuple(RAIL * dice.uniform(0.9, 1.0) for _ in range(count))
    zero = run.recoveries[-faults]
    where = (zero.interval, zero.fault, zero.target)
    run.goodput.append(GoodputTrace(*where, tuple(20.0 * i for i in range(count)), bps, bps, 500.0))
    run.loads.append(Load(zero.interval, 0.4, 0.01, 1.5, 900, 20_000, 700, transfers_faulted=True))
    return acts[-1][0]


def add_away(run: Run, clock: int, far_side_ms: float | None) -> None:
    """A cable that is cut 100 ms after the controller died, which is back 500 ms later."""
    back = clock + 600 * 10**6
    run.recoveries.append(row("controller-crash", "controller", 0, clock, back, 0.0, "controller-away"))
    cut = row("link-down", "d0g1", 0, clock + SECOND // 10, clock + 2 * SECOND, far_side_ms, "controller-away", 2.5)
    run.recoveries.append(cut)


def row(
    fault: str,
    target: str,
    repeat: int,
    at: int,
    until: int,
    ms: float | None,
    script: str,
    source: float | None = None,
) -> Recovery:
    """A fault on rail-only, after which packets flowed again `ms` later."""
    lost = 0 if ms is None else round(ms)
    where = (script_interval(script, repeat), fault, target, at, until)
    early = None if ms is None else ms / 2
    good = None if ms is None else ms + 18
    ends = (0, lost, 0, 0)
    return Recovery(
        *where,
        early,
        early,
        early,
        ms,
        source,
        ms,
        good,
        12.0,
        5.0,
        0 if source is None else 2,
        2,
        0,
        *ends,
        Recovered.of(ms is not None),
    )


def script_interval(script: str, repeat: int) -> IntervalId:
    """A script on rail-only with rerouting on."""
    return IntervalId("rail-only", "", POLICY["rail-only"], script=script, repeat=repeat, reroute="on")


def connectivity_check(at: int, act: str, repeat: int, not_recovered: int = 0) -> ConnectivityCheck:
    """Of twelve pairs on rail-only."""
    where = (script_interval("storm", repeat), at, act, 1)
    wrong = "\n".join(f"d0g{i} -> d1g1: a path is left, but it did not recover" for i in range(not_recovered))
    return ConnectivityCheck(*where, 12, 12, 12 - not_recovered, not_recovered, 0, 0, wrong)


def add_replacements(run: Run, clock: int) -> None:
    """An idle GPU by optics on rail-only, directly on rail-optimized; three times each."""
    for repeat in range(3):
        for kind, way, off, after in (("rail-only", "optical", 10.0, 0.100), ("rail-optimized", "direct", 0.0, 0.112)):
            took = (70.0 + repeat, off, off + 31.0 + repeat, 400.0, 390.0, 900.0)
            times = (1, 64_000_000, 0.100, after, 0.098, 0.098)
            interval = IntervalId(kind, "", POLICY[kind], script=f"idle-gpu by {way}", repeat=repeat)
            where = (interval, "idle-gpu", way, "d0g1", "d0g4", clock)
            run.rows(REPLACEMENTS).append(Replacement(*where, *took, *times))
            reported = {"fabric": kind, "case": "idle-gpu", "way": way, "failed": "d0g1", "repeat": repeat}
            light: dict[str, float] = {"optical-links-down": 9, "adopted": 14, "optical-links-up": 20} if off else {}
            steps: dict[str, float] = {"fault": 0, "detected": 7, "decided": 8, **light}
            steps |= {"replaced": 31 + off + repeat, "state-moved": 440, "job-resumed": 900 - repeat}
            run.events += [Event(clock + round(ms * 1e6), "replacement", what, reported) for what, ms in steps.items()]


def screen(run: Run, width: int) -> list[str]:
    """Return what is printed of it at the end, by lines."""
    out = StringIO()
    print_summary(run, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue().splitlines()
