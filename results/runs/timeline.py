"""timeline.json: the run in Chrome's trace-event format, to open in Perfetto (ui.perfetto.dev) or chrome://tracing.

A process for each fabric and workload run, in it a thread for each GPU with what it sent, and one for the phases.
Slices of one thread must not overlap, but a GPU has several transfers in flight: those go to further lanes, which are
threads `d0g1 +1`, `d0g1 +2` ... Times are microseconds from the first thing that the run recorded.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Final

from railyard.results.analysis.aggregate import grouped, labels
from railyard.results.analysis.recovery import FROM_REPAIR, STEP_NAMES
from railyard.results.runs.records import Event, Run
from railyard.results.views.format import size, workload_label
from railyard.topologies.addresses import gpu_of_name

_CONTROL: Final = 1  # the process of faults, recovery and controller events; workload runs follow
_LANES: Final = 1000  # thread numbers that each GPU has to itself

Span = tuple[int, int, str, dict[str, Any]]  # start ns, end ns, name, args


def trace(run: Run) -> dict[str, Any]:
    """Return the whole run as one trace object."""
    starts = (
        *(f.start_ns for f in run.flows),
        *(e.monotonic_ns for e in run.events),
        *(c.monotonic_ns for c in run.connectivity_checks),
        *(r.t_fault for r in run.recoveries),
    )
    zero, names = min(starts, default=0), labels(run)
    events = _control(run, zero)
    for pid, (interval, flows) in enumerate(grouped(run.flows, "interval").items(), start=_CONTROL + 1):
        fabric = names.get((interval.fabric, interval.policy), interval.fabric)
        title = f"{fabric} · {workload_label(interval)} · repeat {interval.repeat}"
        events.append(_name("process_name", pid, 0, title))
        # its phases, first transfer to last; then the GPUs by name
        phases = [
            (min(f.start_ns for f in part), max(f.end_ns for f in part), phase, {"transfers": len(part)})
            for phase, part in grouped(flows, "phase").items()
        ]
        events += _threads(pid, 0, "phases", phases, zero)
        senders = grouped(flows, "src")
        for number, gpu in enumerate(sorted(senders, key=gpu_of_name), start=1):
            sent: list[Span] = []
            for f in senders[gpu]:
                args = {"phase": f.phase, "bytes": f.bytes, "delivered": f.delivered}
                sent.append((f.start_ns, f.end_ns, f"{f.kind} → {f.dst} {size(f.bytes)}", args))
            events += _threads(pid, number * _LANES, gpu, sent, zero)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": run.name, "started_utc": run.started_utc},
        "traceEvents": events,
    }


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
        times = {"ts": (start - zero) / 1e3, "dur": max(0, end - start) / 1e3}
        events.append({"ph": "X", "name": what, "pid": pid, "tid": tid + lane, **times, "args": args})
    return events


def _control(run: Run, zero: int) -> list[dict[str, Any]]:
    """Return events and connectivity checks as instants; faults and the steps of each recovery as slices."""
    rows = [_name("process_name", _CONTROL, 0, "faults and controller")]
    checks = []
    for check in run.connectivity_checks:
        result = "differs from the oracle" if check.mismatch_count else "matches the oracle"
        counts = ("broken", "pairs", "reachable", "answered", "not_recovered", "unexpected_answers")
        values = {name: getattr(check, name) for name in (*counts, "forwarding_failed_parts", "mismatches")}
        what = f"{result if check.done else 'not done'} after {check.last_event}"
        checks.append(Event(check.monotonic_ns, "connectivity check", what, values))
    sources = grouped([*run.events, *checks], "source")
    for tid, (source, events) in enumerate(sources.items(), start=1):
        scope = "g" if "fault" in source or "fail" in source else "p"  # g: a line across every process
        where = {"pid": _CONTROL, "tid": tid * _LANES}
        rows.append(_name("thread_name", _CONTROL, tid * _LANES, source))
        for event in events:
            time_us = (event.monotonic_ns - zero) / 1e3
            rows.append({"ph": "i", "name": event.what, "s": scope, **where, "ts": time_us, "args": event.detail})
    faults: list[Span] = []
    steps: list[Span] = []
    for r in run.recoveries:
        name = f"{r.fault} {r.target} ({r.fabric}{f', reroute {r.reroute}' if r.reroute else ''})"
        faults.append((r.t_fault, r.t_repair, name, {"script": r.script, "repeat": r.repeat}))
        for column, step in STEP_NAMES.items():
            step_ms, start = getattr(r, column), r.t_repair if column in FROM_REPAIR else r.t_fault
            if step_ms is not None:
                steps.append((start, start + round(step_ms * 1e6), f"{name}: until {step}", {}))
    rows += _threads(_CONTROL, (len(sources) + 1) * _LANES, "from fault to repair", faults, zero)
    return rows + _threads(_CONTROL, 0, "recovery", steps, zero)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
