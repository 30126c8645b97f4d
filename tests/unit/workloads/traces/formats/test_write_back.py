"""Measurements in the trace's own form; protobuf round trip."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.workloads.spec import build
from railyard.workloads.tasks import Compute
from railyard.workloads.traces.common import Gap, Measured
from railyard.workloads.traces.formats import chakra as pb
from railyard.workloads.traces.lower import durations
from tests.unit.traces import FABRIC, RANKS, TRACES, read, replayable, spec_of


@given(
    nodes=st.lists(st.tuples(st.integers(0, 2**40), st.text(max_size=5), st.binary(max_size=9)), max_size=6),
    cut=st.integers(1, 40),
)
def test_protobuf_goes_there_and_back(nodes: list[tuple[int, str, bytes]], cut: int) -> None:
    made = [pb.NodeMessage(id=i, duration_micros=n, name=text) for i, (n, text, _) in enumerate(nodes)]
    for node, (*_, value) in zip(made, nodes, strict=True):
        node.attr.append(pb.Attribute(name="kept", bytes_val=value))
    metadata = pb.GlobalMetadata(version="0.0.4")
    content = pb.encode(metadata, made)
    again = pb.decode(content, "x")
    assert (again[0].SerializeToString(), again[1]) == (metadata.SerializeToString(), made)
    assert [pb.attribute_values(node)["kept"] for node in again[1]] == [value for *_, value in nodes]
    # cut off between two nodes it is a shorter trace
    with suppress(BadInput):
        assert len(pb.decode(content[:-cut], "x")[1]) < len(made)


def test_unknown_fields_of_a_node_survive() -> None:
    storage = b"\x5a\x02\x08\x01"  # field 11, which the table leaves out
    node = pb.NodeMessage.FromString(pb.NodeMessage(id=3).SerializeToString() + storage)
    _, (again,) = pb.decode(pb.encode(pb.GlobalMetadata(), [node]), "x")
    assert again.SerializeToString().endswith(storage)


@pytest.mark.parametrize("name", sorted(RANKS))
def test_measured_times_return_in_the_traces_format(name: str, tmp_path: Path) -> None:
    """Task n takes 2 n + 1 us; a second reading finds the same trace, but for the times of gaps."""
    lowered = replayable(TRACES / name)
    spans = {n: (5_000_000, 5_000_000 + 1000 * (2 * n + 1)) for n in range(len(lowered.schedule.tasks))}
    measured = durations(lowered, spans, time_factor=0.5)
    assert set(measured) == set(lowered.tasks)
    files = lowered.trace.rewrite(measured)
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    if name.endswith(".txt"):
        lines = files[f"{lowered.trace.name}.measured.csv"].decode().splitlines()
        assert len(lines) - 1 == len({place[1] for place in lowered.tasks})
        return
    again = read(tmp_path)
    for rank, nodes in enumerate(again.ranks):
        for position, node in enumerate(nodes):
            before = lowered.trace.node((rank, position))
            assert node.after == before.after
            if isinstance(before.action, Gap) and (rank, position) in measured:
                seconds = measured[rank, position].seconds
                assert node.action == Gap(pytest.approx(seconds))  # type: ignore[arg-type]
            else:
                assert node.action == before.action


def test_measured_times_are_in_the_usual_fields() -> None:
    measured = {(0, 1): Measured(0.5, 0.00123), (0, 3): Measured(1.0, 2.0)}
    (node,) = [n for n in pb.decode(read(TRACES / "pipeline").rewrite(measured)["pipeline.0.et"], "x")[1] if n.id == 3]
    assert (node.start_time_micros, node.duration_micros) == (1_000_000, 2_000_000)
    graph = json.loads(read(TRACES / "ring").rewrite(measured)["ring.0.json"])["workload_graph"]
    assert [item.get("runtime") for item in graph] == [500, 1230, None, 2_000_000, None]
    entries = json.loads(read(TRACES / "dlrm").rewrite(measured)["dlrm.0.json"])
    assert (entries[1]["latency_us"], entries[1]["global_latency_us"]) == (1230.0, 1230.0)
    text = read(TRACES / "experts").rewrite(measured)["experts.0.json"].decode()
    assert '"durationMicros": "1230"' in text
    assert '"startTimeMicros": "500000"' in text


def test_an_operation_of_which_a_part_never_ended_has_no_time() -> None:
    lowered = replayable(TRACES / "ring")
    (send,) = lowered.tasks[0, 1]
    spans = {n: (0, 1000) for n in range(len(lowered.schedule.tasks)) if n != send}
    missing = set(lowered.tasks) - set(durations(lowered, spans, 1.0))
    assert missing == {(0, 1), (1, 2)}


@pytest.mark.parametrize("name", ["pipeline", "moe.txt"])
def test_a_duration_scales_bytes_and_gaps_alike(name: str) -> None:
    short, long = (
        build(spec_of(TRACES / name, duration=duration, compute=0.5), FABRIC, 10**8, 12 * 10**8)
        for duration in ("1s", "2s")
    )
    assert long[1].bytes_factor == pytest.approx(2 * short[1].bytes_factor)
    gaps = [sum(t.seconds for t in s.tasks if isinstance(t, Compute)) for s, *_ in (short, long)]
    assert gaps[1] == pytest.approx(2 * gaps[0])
    assert sum(long[0].matrix.values()) == pytest.approx(2 * sum(short[0].matrix.values()), rel=1e-3)
    assert short[1].as_dict()["factors"]["bytes_per_transfer"]["factor"] == short[1].bytes_factor
