"""The timeline: every transfer is there once, slices of one track nest, and arrows lead from faults to routes."""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import IntervalId
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from railyard.results.analysis.link_rates import delivered, link_rates
from railyard.results.runs.records import Event, Flow, MachineSample, Run
from railyard.results.timeline import add_links, timeline
from railyard.results.views import chrome_trace, perfetto
from railyard.results.views.tracks import Slice, Track
from railyard.topologies.spec import parse_fabric
from tests.unit.sample_runs import sample_run
from tests.unit.steered_runs import steered_run

INTERVAL = IntervalId("f", "w", "dr")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def flow(start_ns: int, end_ns: int, **other: Any) -> Flow:
    return Flow(**{
        "interval": INTERVAL, "phase": "p", "kind": "TP", "src": "d0g1", "dst": "d0g2", "bytes": 1_200_000,
        "delivered": 1_200_000, "start_ns": start_ns, "end_ns": end_ns, **other,
    })  # fmt: skip


def run_with(**records: Any) -> Run:
    return Run("r", {}, {}, "now", **records)


class Decoded:
    """Tracks of a trace by path, with their events in the order of time."""

    def __init__(self, data: bytes) -> None:
        self.packets = list(perfetto.Trace.FromString(data).packet)
        names: dict[int, str] = {}
        described = {p.track_descriptor.uuid: p.track_descriptor for p in self.packets if p.track_descriptor.uuid}
        self.events: defaultdict[int, list[tuple[int, int, str, Any]]] = defaultdict(list)
        for packet in self.packets:
            names |= {name.iid: name.name for name in packet.interned_data.event_names}
            event = packet.track_event
            if event.type:
                self.events[event.track_uuid].append(
                    (packet.timestamp, event.type, names.get(event.name_iid, ""), event)
                )
        for events in self.events.values():
            events.sort(key=lambda e: e[0])  # stable, as Perfetto sorts
        self.paths = {uuid: self._path(uuid, described) for uuid in described}
        self.described = described

    def _path(self, uuid: int, described: dict[int, Any]) -> tuple[str, ...]:
        own = described[uuid]
        return (*(self._path(own.parent_uuid, described) if own.parent_uuid else ()), own.name)

    def named(self, *path: str) -> list[tuple[int, int, str, Any]]:
        return [event for uuid, found in self.paths.items() if found[1:] == path for event in self.events[uuid]]


def test_workload_has_a_track_per_gpu_with_each_transfer() -> None:
    run = sample_run(2, 2, 2)
    found = Decoded(perfetto.encode(timeline(run)))
    work = "rail-only · gpt · repeat 0"
    of_gpus = {path[3] for path in found.paths.values() if path[1:3] == (work, "transfers") and len(path) == 4}
    assert of_gpus == {"d0g0", "d0g1", "d1g0", "d1g1"}
    begun = sum(kind == BEGIN and "→" in name for events in found.events.values() for _, kind, name, _ in events)
    assert begun == len(run.flows)


def test_transfer_has_its_times_and_its_bytes() -> None:
    run = run_with(flows=[flow(5_000_000, 7_500_000, step="forward 1")])
    found = Decoded(perfetto.encode(timeline(run)))
    begin, end = found.named("f · w · repeat 0", "transfers", "d0g1")
    assert (begin[0], begin[2], end[0]) == (5_000_000, "TP → d0g2 1.200\u00a0MB", 7_500_000)
    values = {note.int_value or note.string_value for note in begin[3].debug_annotations}
    assert values == {"p", 1_200_000, "forward 1"}


SHIFT_NS = 10_000  # more than nesting can take a start below 0
slices = st.recursive(
    st.tuples(st.integers(0, 1000), st.integers(0, 300)).map(lambda made: Slice(made[0], sum(made), "s")),
    lambda inner: st.tuples(inner, st.integers(0, 50), st.integers(0, 50)).map(
        lambda made: Slice(made[0].start_ns - made[1], made[0].last_ns + made[2], "s", {}, (made[0],))
    ),
)


@given(st.lists(slices | st.integers(0, 1300).map(lambda at: Slice(at, None, "i")), max_size=40))
def test_slices_of_a_lane_nest_and_none_is_lost(made: list[Slice]) -> None:
    made = [
        Slice(s.start_ns + SHIFT_NS, s.end_ns and s.end_ns + SHIFT_NS, s.name, {}, _shifted(s.nested)) for s in made
    ]
    root = Track("r")
    root.child("t").slices += made
    found = Decoded(perfetto.encode(root))
    depth = begun = 0
    for events in found.events.values():
        for _, kind, _, _ in events:
            depth += {BEGIN: 1, END: -1}.get(kind, 0)
            begun += kind in (BEGIN, INSTANT)
            assert depth >= 0
        assert depth == 0
    assert begun == sum(map(_count, made))
    for lane in root.children["t"].lanes():
        ends = [each for each in lane if each.end_ns is not None]
        assert all(a.last_ns <= b.start_ns for a, b in pairwise(ends))


def _shifted(nested: tuple[Slice, ...]) -> tuple[Slice, ...]:
    return tuple(Slice(s.start_ns + SHIFT_NS, s.last_ns + SHIFT_NS, s.name, {}, _shifted(s.nested)) for s in nested)


def _count(each: Slice) -> int:
    return 1 + sum(map(_count, each.nested))


def test_steps_of_a_recovery_are_nested_in_its_fault() -> None:
    run = sample_run(2, 2, 1)
    r = next(r for r in run.rows(RECOVERIES) if r.recovered and r.detect_ms and r.reroute == "on")
    faults = timeline(run).children["faults"].children[f"{r.fabric}, reroute on"].slices
    each: Slice | None = next(s for s in faults if s.start_ns == r.t_fault)
    ends = dict[str, int]()
    while each:
        assert each.start_ns == r.t_fault
        assert each.last_ns <= min(ends.values(), default=each.last_ns)
        ends[each.name] = each.last_ns
        each = each.nested[0] if each.nested else None
    assert ends[f"{r.fault} {r.target}"] == r.t_repair
    assert ends["until detected"] == r.t_fault + round(1e6 * (r.detect_ms or 0))
    assert {"until decided", "until installed", "until first packet", "until goodput back"} <= set(ends)


def test_arrow_leads_from_the_fault_to_the_routes() -> None:
    run = sample_run(2, 2, 1)
    r = next(r for r in run.rows(RECOVERIES) if r.recovered and r.detect_ms and r.decided_ms and r.reroute_ms)
    times = {"port-down": r.detect_ms, "decided": r.decided_ms, "rerouted": r.reroute_ms}
    detail = {"fabric": r.fabric, "routes": 24}
    run.records[RECOVERIES.name] = [r]
    run.events = [Event(r.t_fault + round(1e6 * (ms or 0)), "controller", what, detail) for what, ms in times.items()]
    found = Decoded(perfetto.encode(timeline(run)))
    through = [(at, path[1]) for uuid, path in found.paths.items() for at, _, _, e in found.events[uuid] if e.flow_ids]
    assert [track for _, track in sorted(through)] == ["faults", "controller", "controller", "routes"]
    assert {tuple(e.flow_ids) for events in found.events.values() for *_, e in events if e.flow_ids} == {(1,)}
    (begin, end) = found.named("routes", r.fabric)
    assert (begin[2], end[0]) == ("24 routes", r.t_fault + round(1e6 * (r.reroute_ms or 0)))


def test_passes_are_slices_of_their_pipeline_stage() -> None:
    passes = [("stage 0", "forward 0"), ("stage 0", "forward 1"), ("stage 1", "forward 0"), ("", "")]
    flows = [flow(10 * n, 10 * n + 10, stage=stage, step=step) for n, (stage, step) in enumerate(passes)]
    stages = timeline(run_with(flows=flows)).children["f · w · repeat 0"].children["iteration"].children
    assert {stage: [s.name for s in track.slices] for stage, track in stages.items()} == {
        "stage 0": ["forward 0", "forward 1"], "stage 1": ["forward 0"],
    }  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(0, 10**7)), min_size=1))
def test_goodput_adds_up_to_the_bytes_that_arrived(made: list[tuple[int, int, int]]) -> None:
    samples = delivered([flow(start, start + length, delivered=size) for start, length, size in made])
    bits = sum(rate * (after[0] - at) / 1e9 for (at, rate), after in pairwise(samples))
    total = 8 * sum(size for *_, size in made)
    assert bits == pytest.approx(total, rel=0.01, abs=100)  # edges of bins are whole ns
    assert samples[-1] == (max(start + length for start, length, _ in made), 0.0)


@pytest.mark.parametrize(
    ("kind", "dst", "links"),
    [
        ("rail-only", "d0g1", {"d0g0 to the HB domain", "d0g1 from the HB domain"}),
        ("rail-only", "d1g0", {"d0g0 to the rail", "d1g0 from the rail"}),
        ("rail-optimized", "d1g1", {"d0g0 to the rail", "d1g1 from the rail"}),
        (  # by the neighbour of the destination's rank
            "rail-only", "d1g1",
            {"d0g0 to the HB domain", "d0g1 from the HB domain", "d0g1 to the rail", "d1g1 from the rail"},
        ),
    ],
)  # fmt: skip
def test_links_carry_the_transfers_on_their_path(kind: str, dst: str, links: set[str]) -> None:
    fabric = parse_fabric({"kind": kind, "domains": 2, "rails": 2})
    flows = [flow(0, 2_000_000, src="d0g0", dst=dst), flow(2_000_000, 3_000_000, src="d0g0", dst=dst)]
    found = {f"{gpu} {link}": samples for gpu, link, samples in link_rates(flows, fabric)}
    assert set(found) == links
    for samples in found.values():
        bits = sum(rate * (end - at) / 1e9 for (at, rate), (end, _) in pairwise(samples))
        assert bits == pytest.approx(8 * 2_400_000)


def test_links_are_drawn_with_constant_paths() -> None:
    run = sample_run(2, 2, 1)
    run.spec["fabrics"] = [{"kind": fabric.kind, "domains": 2, "rails": 2} for fabric in run.fabrics]
    works = [track for name, track in timeline(run).children.items() if " · " in name]
    assert works
    assert all(any(work.child("links").used()) for work in works)
    run.spec["fabrics"] = [{"kind": "of-a-plugin", "domains": 2, "rails": 2} for _ in run.fabrics]
    assert not any(any(work.child("links").used()) for work in timeline(run).children.values())


def test_a_pair_has_its_detour_from_new_routes_to_the_old_path() -> None:
    run = sample_run(3, 3, 1)
    run.spec["fabrics"] = [{"kind": fabric.kind, "domains": 3, "rails": 3} for fabric in run.fabrics]
    fault = next(r for r in run.rows(RECOVERIES) if (r.fabric, r.fault, r.reroute) == ("rail-only", "link-down", "on"))
    pairs = timeline(run).child("detours").child("rail-only")
    hit = {name for name, track in pairs.children.items() for s in track.slices if s.start_ns < fault.t_repair}
    gpus = [(domain, rank) for domain in range(3) for rank in range(3)]
    by_the_cable = {  # of GPU d0g1: on rail 1, and by dr to any GPU of rank 1
        f"d{a}g{x} → d{b}g{y}" for a, x in gpus for b, y in gpus if y == 1 and a != b and (a == 0 or b == 0)
    }
    assert (fault.target, hit) == ("d0g1", by_the_cable)
    (detour,) = pairs.child(f"{fault.target} → d2g1").slices[:1]
    assert detour.name == "drd by rail 2"
    assert detour.start_ns == fault.t_fault + round((fault.reroute_ms or 0) * 1e6)
    assert (detour.end_ns or 0) >= fault.t_repair


def test_counters_have_scores_load_and_the_machine() -> None:
    run = steered_run(2, 4, 2)
    run.machine = [MachineSample(INTERVAL, 10**9 * n, 0.5, 0.1, 2.5) for n in range(3)]
    found = Decoded(perfetto.encode(timeline(run)))
    scores = [event.double_counter_value for *_, event in found.named("health scores", "rail 0")]
    assert scores == [
        s.score for s in sorted(run.rows(HEALTH), key=lambda s: s.monotonic_ns) if (s.element, s.index) == ("rail", 0)
    ]
    assert [event.double_counter_value for *_, event in found.named("machine", "CPU busy")] == [50, 50, 50]
    units = {path[-1]: found.described[uuid].counter.unit_name for uuid, path in found.paths.items()}
    assert (units["CPU busy"], units["scheduling lag"]) == ("%", "ms")
    pairs = {path[3] for path in found.paths.values() if path[2:3] == ("paths",) and len(path) == 4}
    assert pairs == {f"{c.src} → {c.dst}" for c in run.rows(CHOICES)}


def test_links_come_from_the_record_of_the_live_page() -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "run", "data": {"title": "r"}},
        {"kind": "fabric", "data": {"label": "f", "links": [{"a": "d0g0", "b": "rail0", "rate": 20_000_000}]}},
        {"kind": "sample", "data": {"ns": 5, "links": [[True], [500], [250], [0], [0]]}},
        {"kind": "sample", "data": {"ns": 6, "links": [[True], [0], [0], [1500], [2]]}},
        {"kind": "fabric", "data": None},
    ]
    root = Track("r")
    record = "\n".join(map(json.dumps, lines)).encode()
    add_links(root, record + b'\n{"kind": "sam')
    link = root.children["links"].children["f"].children["d0g0 – rail0"].children
    assert {name: track.samples for name, track in link.items()} == {
        "to the network": [(5, 1e7), (6, 0.0)], "from the network": [(5, 5e6), (6, 0.0)],
        "queue": [(6, 1500.0)], "drops": [(6, 2.0)],
    }  # fmt: skip


def test_json_has_the_same_slices_and_instants_of_threads() -> None:
    run = sample_run(2, 2, 1)
    run.events.append(Event(run.flows[0].start_ns, "controller", "port-down", {"fabric": "rail-only"}))
    root = timeline(run)
    events = chrome_trace.encode(root)["traceEvents"]
    found = Decoded(perfetto.encode(root))
    kinds = [kind for of_track in found.events.values() for _, kind, _, _ in of_track]
    assert sum(e["ph"] == "X" for e in events) == kinds.count(BEGIN)
    assert Counter(event.get("s") for event in events).keys() == {None, "t"}
    drawn: set[tuple[int, int]] = set()
    named: set[tuple[int, int]] = set()
    for event in events:
        if event["ph"] in "Xi":
            drawn.add((event["pid"], event["tid"]))
        elif event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
    assert drawn <= named
    json.dumps(events, allow_nan=False)


def test_messages_equal_the_messages_of_perfetto() -> None:
    published = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs perfetto")
    data = perfetto.encode(timeline(sample_run(2, 2, 1)))
    ours, theirs = perfetto.Trace.FromString(data), published.Trace.FromString(data)
    names = {"InternedName": "EventName"}

    def same(our: Any, their: Any) -> None:
        for field in our.fields:
            other = their.fields_by_name[field.name]
            assert (field.number, field.is_repeated) == (other.number, other.is_repeated), field.full_name
            is_enum = other.type == other.TYPE_ENUM
            assert field.type == (field.TYPE_INT32 if is_enum else other.type), field.full_name
            if field.message_type:
                assert names.get(field.message_type.name, field.message_type.name)[-4:] == other.message_type.name[-4:]
                same(field.message_type, other.message_type)

    same(ours.DESCRIPTOR, theirs.DESCRIPTOR)
    assert len(theirs.packet) == len(ours.packet) > 100
    kinds = published.TrackEvent.Type
    assert (kinds.TYPE_SLICE_BEGIN, kinds.TYPE_SLICE_END, kinds.TYPE_INSTANT, kinds.TYPE_COUNTER) == (1, 2, 3, 4)


def test_an_empty_run_has_an_empty_timeline() -> None:
    root = timeline(run_with())
    assert list(root.used()) == []
    assert chrome_trace.encode(root)["traceEvents"] == []
