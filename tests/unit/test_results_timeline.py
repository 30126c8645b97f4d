"""The trace opens in Perfetto: every transfer is there once, and slices of one thread don't overlap."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import IntervalId
from railyard.results.runs.records import Event, Flow, Run
from railyard.results.runs.timeline import trace
from tests.unit.results_sample import sample_run


def named(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == kind}


def test_trace_has_a_process_per_workload_and_a_thread_per_gpu() -> None:
    run = sample_run(2, 2, 2)
    events = trace(run)["traceEvents"]
    processes = set(named(events, "process_name").values())
    assert "rail-only · gpt · repeat 0" in processes
    assert len(processes) == 1 + 2 * 2 * 2  # faults and controller; fabrics x workloads x repeats
    assert {"phases", "d0g0", "d0g1", "d1g0", "d1g1"} <= set(named(events, "thread_name").values())
    json.dumps(trace(run), allow_nan=False)


def test_every_transfer_is_a_complete_event_in_microseconds() -> None:
    one = Flow(IntervalId("f", "w", "dr"), "p", "TP", "d0g1", "d0g2", 1_200_000, 1_200_000, 5_000_000, 7_500_000)
    run = Run("r", {}, {}, "now", flows=[one], events=[Event(4_000_000, "fault", "link-down d0g1", {})])
    events = trace(run)["traceEvents"]
    (sent,) = [e for e in events if e["ph"] == "X" and e["name"].startswith("TP")]
    assert sent["name"] == "TP → d0g2 1.200\u00a0MB"
    assert (sent["ts"], sent["dur"]) == (1000.0, 2500.0)
    assert named(events, "thread_name")[sent["pid"], sent["tid"]] == "d0g1"
    (fault,) = [e for e in events if e["ph"] == "i"]
    assert (fault["name"], fault["ts"], fault["s"]) == ("link-down d0g1", 0.0, "g")


spans = st.tuples(st.integers(0, 1000), st.integers(0, 300), st.integers(0, 2))


@given(st.lists(spans, min_size=1, max_size=60))
def test_slices_of_a_thread_never_overlap_and_none_is_lost(made: list[tuple[int, int, int]]) -> None:
    flows = [
        Flow(IntervalId("f", "w", "dr"), f"p{i % 3}", "TP", f"d0g{src}", "d1g0", 8, 8, start, start + length)
        for i, (start, length, src) in enumerate(made)
    ]
    events = trace(Run("r", {}, {}, "now", flows=flows))["traceEvents"]
    threads: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        slices.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(slices))
    assert sum(e["ph"] == "X" and "→" in e["name"] for e in events) == len(flows)
    names = named(events, "thread_name")
    assert set(threads) == set(names)


def test_recovery_steps_are_slices_from_the_fault() -> None:
    run = sample_run(2, 2, 1)
    events = trace(run)["traceEvents"]
    done = next(r for r in run.recoveries if r.recovered)
    name = f"{done.fault} {done.target} ({done.fabric}, reroute on): until goodput back"
    (step,) = [e for e in events if e["name"] == name]
    assert abs(step["dur"] / 1e3 - (done.goodput_ms or 0)) < 1e-3


def test_an_empty_run_has_an_empty_trace() -> None:
    assert [e["ph"] for e in trace(Run("r", {}, {}, "now"))["traceEvents"]] == ["M"]
