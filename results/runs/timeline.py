"""timeline.json: the run in Chrome's trace-event format, to open in Perfetto (ui.perfetto.dev) or chrome://tracing.

A process for each fabric and workload run, in it a thread for each GPU with what it sent, and one for the phases.
Slices of one thread must not overlap, but a GPU has several transfers in flight: those go to further lanes, which are
threads `d0g1 +1`, `d0g1 +2` ... Times are microseconds from the first thing that the run recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from railyard.core.records import IntervalId, Recovery
from railyard.results.analysis.aggregate import labels
from railyard.results.analysis.recovery import FROM_REPAIR, matches_oracle
from railyard.results.runs.records import ConnectivityCheck, Event, Flow, Run
from railyard.results.views.format import size, workload_label
from railyard.topologies.addresses import gpu_of_name

_CONTROL: Final = 1  # the process of faults, recovery and controller events; workload runs follow
_STEPS: Final = {
    "detect_ms": "detect",
    "decided_ms": "decided",
    "reroute_ms": "reroute",
    "source_side_ms": "first packet, source side",
    "far_side_ms": "first packet, far side",
    "first_packet_ms": "first_packet",
    "goodput_ms": "goodput",
    "goodput_after_repair_ms": "goodput after repair",
    "primary_path_ms": "primary path",
}
_LANES: Final = 1000  # thread numbers that each GPU has to itself

Span = tuple[int, int, str, dict[str, Any]]  # start ns, end ns, name, args


def trace(run: Run) -> dict[str, Any]:
    """The whole run as one trace object."""
    names = labels(run)
    groups: defaultdict[IntervalId, list[Flow]] = defaultdict(list)
    for flow in run.flows:
        groups[flow.interval].append(flow)
    starts = (
        *(f.start_ns for f in run.flows),
        *(e.monotonic_ns for e in run.events),
        *(r.t_fault for r in run.recoveries),
        *(c.monotonic_ns for c in run.connectivity_checks),
    )
    zero = min(starts, default=0)
    events = [*_control(run, zero)]
    for pid, (interval, flows) in enumerate(groups.items(), start=_CONTROL + 1):
        fabric = names.get((interval.fabric, interval.policy), interval.fabric)
        title = f"{fabric} · {workload_label(interval)} · repeat {interval.repeat}"
        events += [_name("process_name", pid, 0, title)]
        events += _workload(pid, flows, zero)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": run.name, "started_utc": run.started_utc},
        "traceEvents": events,
    }


def _workload(pid: int, flows: Sequence[Flow], zero: int) -> list[dict[str, Any]]:
    """Thread 0 on: phases. Then the GPUs, in the order of their names, each with its lanes."""
    events = _threads(pid, 0, "phases", _phases(flows), zero)
    senders: defaultdict[str, list[Span]] = defaultdict(list)
    for f in flows:
        args = {"phase": f.phase, "bytes": f.bytes, "delivered": f.delivered}
        senders[f.src].append((f.start_ns, f.end_ns, f"{f.kind} → {f.dst} {size(f.bytes)}", args))
    for number, gpu in enumerate(sorted(senders, key=gpu_of_name), start=1):
        events += _threads(pid, number * _LANES, gpu, senders[gpu], zero)
    return events


def _phases(flows: Iterable[Flow]) -> list[Span]:
    """From the first transfer of a phase to its last."""
    found: defaultdict[str, list[Flow]] = defaultdict(list)
    for flow in flows:
        found[flow.phase].append(flow)
    return [
        (min(f.start_ns for f in part), max(f.end_ns for f in part), phase, {"transfers": len(part)})
        for phase, part in found.items()
    ]


def _threads(pid: int, tid: int, name: str, spans: Iterable[Span], zero: int) -> list[dict[str, Any]]:
    """Complete events on as few lanes as keep them apart. The name of a lane comes with its first event."""
    free: list[int] = []  # lanes that are idle again, lowest first
    busy: list[tuple[int, int]] = []  # (end ns, lane)
    lanes, events = 0, []
    for start, end, what, args in sorted(spans, key=lambda s: s[:2]):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
            order = {"name": "thread_sort_index", "args": {"sort_index": tid + lane}}
            events.append(_name("thread_name", pid, tid + lane, f"{name} +{lane}" if lane else name))
            events.append({"ph": "M", "pid": pid, "tid": tid + lane, **order})
        heappush(busy, (end, lane))
        events.append(_slice(pid, tid + lane, what, start - zero, end - start, args))
    return events


def _control(run: Run, zero: int) -> list[dict[str, Any]]:
    """Events and connectivity checks as instants; faults and the steps of each recovery as slices."""
    rows = [_name("process_name", _CONTROL, 0, "faults and controller")]
    connectivity_checks = [_as_event(connectivity_check) for connectivity_check in run.connectivity_checks]
    events = [*run.events, *connectivity_checks]
    threads = {
        source: number * _LANES for number, source in enumerate(dict.fromkeys(e.source for e in events), start=1)
    }
    rows += [_name("thread_name", _CONTROL, tid, source) for source, tid in threads.items()]
    for event in events:
        scope = "g" if "fault" in event.source or "fail" in event.source else "p"  # g: a line across every process
        where = {"pid": _CONTROL, "tid": threads[event.source], "ts": (event.monotonic_ns - zero) / 1e3}
        rows.append({"ph": "i", "name": event.what, "s": scope, **where, "args": event.detail})
    faults: list[Span] = []
    steps: list[Span] = []
    for r in run.recoveries:
        name = f"{r.fault} {r.target} ({r.fabric}{f', reroute {r.reroute}' if r.reroute else ''})"
        faults.append((r.t_fault, r.t_repair, name, {"script": r.script, "repeat": r.repeat}))
        steps += _steps(r, name)
    faults_tid = (len(threads) + 1) * _LANES
    rows += _threads(_CONTROL, faults_tid, "from fault to repair", faults, zero)
    return rows + _threads(_CONTROL, 0, "recovery", steps, zero)


def _steps(r: Recovery, name: str) -> Iterator[Span]:
    """Each from the fault on; `back` from the repair on."""
    for column, step in _STEPS.items():
        step_ms, start = getattr(r, column), r.t_repair if column in FROM_REPAIR else r.t_fault
        if step_ms is not None:
            yield start, start + round(step_ms * 1e6), f"{name}: to {step}", {}


def _as_event(check: ConnectivityCheck) -> Event:
    result = "matches the oracle" if matches_oracle(check) else "differs from the oracle"
    counts = ("broken", "pairs", "reachable", "answered", "not_recovered", "unexpected_answers")
    values = {name: getattr(check, name) for name in (*counts, "forwarding_failed_parts", "mismatches")}
    text = f"{result if check.done else 'not done'} after {check.last_event}"
    return Event(check.monotonic_ns, "connectivity check", text, values)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(pid: int, tid: int, name: str, start: int, length: int, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start / 1e3, "dur": max(0, length) / 1e3}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}
