"""Plausible runs for tests, made from a seed: one function for each kind of run, and parts that tests change.

- `sample_run`: two fabrics of GPUs, a dense iteration and an MoE step on each, three faults.
- `recovery_run`: also failure scripts, connectivity checks, replacements and heartbeats.

Runs under policies that steer routes are in steered_runs.py.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from railyard.core.records import ConnectivityCheck, IntervalId, Recovered, Recovery
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.replacement.records import REPLACEMENTS, Replacement
from railyard.results.runs.records import (
    ByteCheck,
    Event,
    FabricRun,
    Flow,
    GoodputTrace,
    LinkCheck,
    Load,
    Measurement,
    Run,
)  # fmt: skip

RAIL = 100_000_000
HB = 1_200_000_000
POLICY = {"rail-only": "dr", "rail-optimized": "spine"}
FAULTS = (("link-down", "d0g1", 9.0), ("rail-switch-crash", "rail1", 70.0), ("gpu-crash", "d2g1", 60.0))
SECOND = 1_000_000_000


@dataclass
class Sample:
    """What the run is made of: its size, its repeats, and the dice."""

    domains: int
    rails: int
    repeats: int
    dice: random.Random

    def name(self, number: int) -> str:
        return f"d{number // self.rails}g{number % self.rails}"


def sample_run(domains: int = 4, rails: int = 4, repeats: int = 3, seed: int = 7) -> Run:
    """The whole run. The same arguments give the same run."""
    s = Sample(domains, rails, repeats, random.Random(seed))
    run = Run(
        name="quickstart",
        spec={
            "name": "quickstart",
            "title": "Rail-only beside rail-optimized",
            "description": "One Megatron iteration and one MoE step on both fabrics, then three faults on each.",
            "fabrics": [{"kind": kind, "domains": domains, "rails": rails} for kind in POLICY],
            "workloads": [{"name": "gpt"}, {"name": "moe"}],
            "faults": [{"kind": kind, "target": target} for kind, target, _ in FAULTS],
            "seed": seed,
            "repeats": repeats,
        },
        provenance={
            "kernel": "6.18.0", "ovs": "3.1.0", "datapath": "userspace", "datapath_why": "no kernel module", "cores": 2,
            "libraries": {"os-ken": "4.0.0", "mininet": "2.3.0.dev6"}, "git_commit": "f16d53f", "seed": seed,
        },
        started_utc="2026-11-21T01:00:00Z",
        scale=[
            {**scaled(w, gpus), "fabric": kind} for kind in POLICY for w, gpus in (("gpt", 1536), ("moe", 128))
        ],
        duration_s=94.2,
    )  # fmt: skip
    clock = 5 * SECOND
    for kind, policy in POLICY.items():
        run.fabrics.append(fabric(domains, rails, kind, policy))
        run.links += links(s, kind)
        for workload in ("gpt", "moe"):
            for repeat in range(repeats):
                clock = add_workload(run, s, kind, workload, repeat, clock) + SECOND // 10
        for repeat in range(repeats):
            clock = add_faults(run, s, kind, repeat, clock)
    return run


def scaled(workload: str, gpus: int) -> dict[str, Any]:
    """As `Scale.as_dict` has it."""
    factors = {
        "gpus": (gpus, 16),
        "layers_per_stage": (10, 10),
        "rail_bytes_per_s": (25e9, 12.4e6),
        "seconds": (1, 4.735),
    }
    plain = {name: {"real": r, "emulated": e, "factor": e / r} for name, (r, e) in factors.items()}
    return {"workload": workload, "platform": "a100", "compute_kept": 0.1, "factors": plain}


def fabric(domains: int, rails: int, kind: str, policy: str) -> FabricRun:
    spines = 2 if kind == "rail-optimized" else 0
    switches = (*(f"rail{g}" for g in range(rails)), *(f"spine{i}" for i in range(spines)))
    uplink = RAIL * domains // 2 if spines else 0
    size = (domains, rails, RAIL, HB, 9000, "a100", spines, uplink)
    return FabricRun(kind, policy, kind, *size, switches, "userspace", 0.61, 0.12)


def links(s: Sample, kind: str) -> Iterator[LinkCheck]:
    for name, link, expected in (("hb", "d0g0:hb0", HB), ("rail", "d0g0:rail0", RAIL), ("rail", "d1g1:rail0", RAIL)):
        payload = expected * 0.9926
        yield LinkCheck(kind, name, link, payload, payload * s.dice.uniform(0.994, 1.004))


def dense(s: Sample) -> Iterator[tuple[str, str, int, int, int]]:
    """(phase, kind, src, dst, bytes): TP in the domain, PP and DP on the rails."""
    gpus = s.domains * s.rails
    for n in range(gpus):
        d, g = divmod(n, s.rails)
        yield "TP AllGather", "TP", n, d * s.rails + (g + 1) % s.rails, 3_000_000
        yield "TP ReduceScatter", "TP", n, d * s.rails + (g + 1) % s.rails, 3_000_000
        if d < s.domains // 2:
            yield "PP activations", "PP", n, n + gpus // 2, 120_000
            yield "PP gradients", "PP", n + gpus // 2, n, 120_000
        yield "DP AllReduce", "DP", n, ((d ^ 1) * s.rails + g) % gpus, 400_000


def mixture(s: Sample) -> Iterator[tuple[str, str, int, int, int]]:
    gpus = s.domains * s.rails
    for n in range(gpus):
        for step in range(1, gpus):
            yield "all-to-all", "EP", n, (n + step) % gpus, 65_536
        yield "DP AllReduce", "DP", n, (n + s.rails) % gpus, 260_000


def add_workload(run: Run, s: Sample, kind: str, workload: str, repeat: int, clock: int) -> int:
    """Add one repeat of a workload on a fabric; return when it ended (ns)."""
    interval = IntervalId(kind, workload, POLICY[kind], repeat=repeat)
    sent = list(dense(s) if workload == "gpt" else mixture(s))
    ended = add_flows(run, s, interval, sent, clock)
    slower = 1.089 if (kind, workload) == ("rail-only", "moe") else 1.0
    for phase, end in ended.items():
        expected = (end - clock) / SECOND * slower
        value = expected * s.dice.uniform(0.99, 1.04)
        run.measurements.append(Measurement(interval, phase, "completion_time", value, "s", expected))
    whole = (max(ended.values()) - clock) / SECOND * slower * 1.4
    value = whole * s.dice.uniform(0.99, 1.04)
    run.measurements.append(Measurement(interval, "", "iteration_time", value, "s", whole))
    for metric, factor in (("projected_same_shape", 4.735), ("projected_full_size", 1.9)):
        run.measurements.append(Measurement(interval, "", metric, whole / factor, "s"))
    total = sum(size for *_, size in sent)
    run.measurements.append(Measurement(interval, "", "throughput", total * 8 / whole, "bit/s"))
    add_counts(run, s, interval, sent)
    return max(ended.values())


Sent = tuple[str, str, int, int, int]
"""Phase, kind, source, destination and bytes of a transfer."""


def add_flows(run: Run, s: Sample, interval: IntervalId, sent: list[Sent], clock: int) -> dict[str, int]:
    """Add the transfers, four of each GPU in flight; return when each phase ended (ns)."""
    wire = HB if interval.workload == "gpt" else RAIL
    free: dict[int, int] = {}
    ended: dict[str, int] = {}
    for phase, label, src, dst, size in sent:
        start = free.get(src, clock)
        end = start + round(size * 8 / wire * SECOND * s.dice.uniform(1.0, 1.03)) + 20_000
        free[src] = start + (end - start) // 4
        ended[phase] = max(ended.get(phase, 0), end)
        operation = "all-to-all" if label == "EP" else ""
        run.flows.append(Flow(interval, phase, label, s.name(src), s.name(dst), size, size, start, end, operation))
    return ended


def add_counts(run: Run, s: Sample, interval: IntervalId, sent: list[Sent]) -> None:
    """Add the bytes that were counted in an interval, and the load of the machine."""
    total = on_rails = cross_rail = 0
    for _, _, src, dst, size in sent:
        total += size
        if src // s.rails != dst // s.rails:
            on_rails += size
            if src % s.rails != dst % s.rails and interval.fabric == "rail-optimized":
                cross_rail += size
    expected = round(on_rails * 1.0075)
    counted = round(expected * s.dice.uniform(1.0, 1.006))
    run.bytes.append(ByteCheck(interval, total, total, 0, counted, expected, cross_rail))
    busy = s.dice.uniform(0.3, 0.6)
    lag_ms = s.dice.uniform(0.4, 2.2)
    run.loads.append(Load(interval, busy, s.dice.uniform(0, 0.03), lag_ms, total // 10**8, total // 8000 + 1, 0))


def add_faults(run: Run, s: Sample, kind: str, repeat: int, clock: int) -> int:
    """Add each fault with rerouting on and off; return when the last was repaired (ns)."""
    for fault, target, took_ms in FAULTS:
        for reroute in ("on", "off"):
            interval = IntervalId(kind, "", POLICY[kind], repeat=repeat, reroute=reroute, part=f"{fault} {target}")
            add_fault(run, s, interval, fault, target, took_ms, clock + SECOND // 5)
            clock += SECOND // 5 + SECOND * 3 // 4
    return clock


def add_fault(run: Run, s: Sample, interval: IntervalId, fault: str, target: str, took_ms: float, at: int) -> None:
    """Add a fault at a time (ns), and what was watched of it; it recovers if it is rerouted."""
    ms = took_ms * s.dice.uniform(0.8, 1.3)
    back_ms = s.dice.uniform(9, 14)
    source_ms = s.dice.uniform(1.0, 3.0) if fault == "link-down" else None
    is_rerouted = interval.reroute == "on"
    goodput_ms = ms + 18 if is_rerouted else None
    run.rows(RECOVERIES).append(
        Recovery(
            interval,
            fault,
            target,
            t_fault=at,
            t_repair=at + SECOND // 2,
            detect_ms=ms * 0.5,
            decided_ms=ms * 0.6 if is_rerouted else None,
            reroute_ms=ms * 0.7 if is_rerouted else None,
            first_packet_ms=ms if is_rerouted else None,
            source_side_ms=source_ms,
            far_side_ms=ms if is_rerouted else None,
            goodput_ms=goodput_ms,
            goodput_after_repair_ms=back_ms,
            primary_path_ms=back_ms / 2,
            source_side_probed=0 if source_ms is None else 2,
            far_side_probed=2,
            above_max_flow=0,
            lost_bytes=0 if is_rerouted else 4_200_000,
            probes_lost=round(ms) if is_rerouted else 300,
            probes_lost_after_repair=0,
            connections_lost=0 if is_rerouted else 2,
            recovered=Recovered.of(is_rerouted),
        )
    )
    run.rows(GOODPUT).append(trace(s, interval, fault, target, goodput_ms))
    run.events.append(Event(at, "fault", f"{fault} {target}", {"repeat": interval.repeat}))
    run.events.append(Event(at + round(ms * 5e5), "controller", f"port down at {target}"))
    run.loads.append(Load(interval, 0.4, 0.01, 1.5, 900, 20_000, 700, transfers_faulted=True))


def trace(
    s: Sample, interval: IntervalId, fault: str, target: str, goodput_after_repair_ms: float | None
) -> GoodputTrace:
    """10 ms bins from 200 ms before the fault to 600 ms after; repair at 300 ms."""
    times = tuple(float(t) for t in range(-200, 600, 10))
    flows, hit = s.domains * s.rails, s.domains
    every, affected = [], []
    for t in times:
        down = 0 <= t < min(goodput_after_repair_ms if goodput_after_repair_ms is not None else 310.0, 310.0)
        part = 0.0 if down else hit * RAIL * 0.97 * s.dice.uniform(0.95, 1.0)
        affected.append(part)
        every.append(part + (flows - hit) * RAIL * 0.97 * s.dice.uniform(0.96, 1.0))
    return GoodputTrace(interval, fault, target, times, tuple(every), tuple(affected), 300.0)


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
        run.rows(RECOVERIES).append(row(fault, target, repeat, clock, clock + down, dice.uniform(5, 90), "storm"))
        acts += [(clock, f"inject {fault} {target}"), (clock + down, f"repair {fault} {target}")]
        clock += round(dice.uniform(0.4, 1.8) * SECOND)
    for at, act in sorted(acts):
        run.rows(CONNECTIVITY_CHECKS).append(connectivity_check(at + SECOND // 2, act, repeat))
    count = (acts[-1][0] - begun) // (20 * 10**6)
    bps = tuple(RAIL * dice.uniform(0.9, 1.0) for _ in range(count))
    zero = run.rows(RECOVERIES)[-faults]
    where = (zero.interval, zero.fault, zero.target)
    run.rows(GOODPUT).append(GoodputTrace(*where, tuple(20.0 * i for i in range(count)), bps, bps, 500.0))
    run.loads.append(Load(zero.interval, 0.4, 0.01, 1.5, 900, 20_000, 700, transfers_faulted=True))
    return acts[-1][0]


def add_away(run: Run, clock: int, far_side_ms: float | None) -> None:
    """A cable that is cut 100 ms after the controller died, which is back 500 ms later."""
    back = clock + 600 * 10**6
    run.rows(RECOVERIES).append(row("controller-crash", "controller", 0, clock, back, 0.0, "controller-away"))
    cut = row("link-down", "d0g1", 0, clock + SECOND // 10, clock + 2 * SECOND, far_side_ms, "controller-away", 2.5)
    run.rows(RECOVERIES).append(cut)


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
    steps = (early, early, early, ms, source, ms, good, 12.0, 5.0)
    probed = (0 if source is None else 2, 2, 0)
    return Recovery(*where, *steps, *probed, *ends, Recovered.of(ms is not None))


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
