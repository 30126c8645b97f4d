"""A plausible run, made from a seed: two fabrics, a dense iteration and an MoE step on each, three faults.

Recovery beyond these (scripts, connectivity checks, replacements, heartbeats): recovery_sample.py.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from railyard.core.records import IntervalId, Recovered, Recovery
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
)

RAIL, HB = 100_000_000, 1_200_000_000
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
        run.fabrics.append(fabric(s, kind, policy))
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


def fabric(s: Sample, kind: str, policy: str) -> FabricRun:
    spines = 2 if kind == "rail-optimized" else 0
    switches = (*(f"rail{g}" for g in range(s.rails)), *(f"spine{i}" for i in range(spines)))
    uplink = RAIL * s.domains // 2 if spines else 0
    size = (s.domains, s.rails, RAIL, HB, 9000, "a100", spines, uplink)
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
    """One repeat of a workload on a fabric; returns when it ended (ns)."""
    wire, interval = HB if workload == "gpt" else RAIL, IntervalId(kind, workload, POLICY[kind], repeat=repeat)
    sent = list(dense(s) if workload == "gpt" else mixture(s))
    free: dict[int, int] = {}
    ended: dict[str, int] = {}
    for phase, label, src, dst, size in sent:
        start = free.get(src, clock)
        end = start + round(size * 8 / wire * SECOND * s.dice.uniform(1.0, 1.03)) + 20_000
        free[src] = start + (end - start) // 4  # four transfers in flight
        ended[phase] = max(ended.get(phase, 0), end)
        operation = "all-to-all" if label == "EP" else ""
        run.flows.append(Flow(interval, phase, label, s.name(src), s.name(dst), size, size, start, end, operation))
    slower = 1.089 if (kind, workload) == ("rail-only", "moe") else 1.0
    for phase, end in ended.items():
        expected = (end - clock) / SECOND * slower
        row = (phase, "completion_time", expected * s.dice.uniform(0.99, 1.04), "s", expected)
        run.measurements.append(Measurement(interval, *row))
    whole = (max(ended.values()) - clock) / SECOND * slower * 1.4
    row = ("", "iteration_time", whole * s.dice.uniform(0.99, 1.04), "s", whole)
    run.measurements.append(Measurement(interval, *row))
    for metric, factor in (("projected_same_shape", 4.735), ("projected_full_size", 1.9)):
        projected = whole / factor
        run.measurements.append(Measurement(interval, "", metric, projected, "s"))
    total = sum(size for *_, size in sent)
    on_rails = sum(size for *_, src, dst, size in sent if src // s.rails != dst // s.rails)
    cross = sum(z for *_, a, b, z in sent if a // s.rails != b // s.rails and a % s.rails != b % s.rails)
    crossed = cross if kind == "rail-optimized" else 0
    run.measurements.append(Measurement(interval, "", "throughput", total * 8 / whole, "bit/s"))
    expected_bytes = round(on_rails * 1.0075)
    counted = round(expected_bytes * s.dice.uniform(1.0, 1.006))
    run.bytes.append(ByteCheck(interval, total, total, 0, counted, expected_bytes, crossed))
    busy, lag = s.dice.uniform(0.3, 0.6), s.dice.uniform(0.4, 2.2)
    run.loads.append(Load(interval, busy, s.dice.uniform(0, 0.03), lag, total // 10**8, total // 8000 + 1, 0))
    return max(ended.values())


def add_faults(run: Run, s: Sample, kind: str, repeat: int, clock: int) -> int:
    """Return each fault with rerouting on and off; returns when the last was repaired (ns)."""
    for fault, target, took in FAULTS:
        for reroute in ("on", "off"):
            healed = reroute == "on"
            at, ms = clock + SECOND // 5, took * s.dice.uniform(0.8, 1.3)
            rerouted, first, good = (ms * 0.7, ms, ms + 18) if healed else (None, None, None)
            lost = 0 if healed else 4_200_000
            broken, probes, back = 0 if healed else 2, round(ms) if healed else 300, s.dice.uniform(9, 14)
            identity = IntervalId(kind, "", POLICY[kind], repeat=repeat, reroute=reroute, part=f"{fault} {target}")
            where = (identity, fault, target, at, at + SECOND // 2)
            decided = ms * 0.6 if healed else None
            source = s.dice.uniform(1.0, 3.0) if fault == "link-down" else None
            steps = (ms * 0.5, decided, rerouted, first, source, first, good, back)
            watched = (back / 2, 0 if source is None else 2, 2, 0)  # primary_path_ms, probed pairs, above_max_flow
            run.recoveries.append(Recovery(*where, *steps, *watched, lost, probes, 0, broken, Recovered.of(healed)))
            run.goodput.append(trace(s, identity, fault, target, ms + 18 if healed else None))
            run.events.append(Event(at, "fault", f"{fault} {target}", {"repeat": repeat}))
            run.events.append(Event(at + round(ms * 5e5), "controller", f"port down at {target}"))
            clock = at + SECOND * 3 // 4
            run.loads.append(Load(identity, 0.4, 0.01, 1.5, 900, 20_000, 700, transfers_faulted=True))
    return clock


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
