"""The traces in tests/traces, in every format: read as their formats mean them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.traces.common import Call, Gap, Recv, Send, format_of, read_files, trace_name
from railyard.workloads.traces.formats import chakra as pb
from tests.traces import make
from tests.unit.traces import FABRIC, FORMATS, RANKS, TRACES, read, replayable, spec_of
from tests.unit.workloads.messages import CheckMessages


def test_stored_traces_equal_their_makers_output() -> None:
    """Protobuf's JSON may be spaced otherwise by other versions."""
    for name, content in make.everything().items():
        kept = (TRACES / name).read_bytes()
        assert kept.split() == content.split(), name


@pytest.mark.parametrize("name", sorted(RANKS))
def test_a_trace_becomes_a_schedule(name: str) -> None:
    trace = read(TRACES / name)
    assert (format_of(read_files(str(TRACES / name), "path"), "path"), len(trace.ranks)) == (
        FORMATS.get(name, "simai"),
        RANKS[name],
    )
    assert trace.name == trace_name(str(TRACES / name)) == name.split(".")[0]
    lowered = replayable(TRACES / name)
    lowered.schedule.check()
    assert {place[0] for place in lowered.tasks} == set(range(RANKS[name]))


@pytest.mark.parametrize("path", ["pipeline.0.et", "pipeline.3.et", "experts.0.json"])
def test_any_of_its_files_names_a_trace(path: str) -> None:
    assert len(read(TRACES / path).ranks) == RANKS[path.split(".")[0]]


def test_folder_of_rank_files_is_a_trace(tmp_path: Path) -> None:
    for rank in range(8):
        (tmp_path / f"{rank}.json").write_bytes((TRACES / f"dlrm.{rank}.json").read_bytes())
    assert len(read(tmp_path).ranks) == 8


def test_a_pipeline_has_its_groups_its_tags_and_its_microseconds() -> None:
    trace = read(TRACES / "pipeline")
    last = [node.action for node in trace.ranks[7]]
    assert last[1] == Recv(3, 1 << 20, 0)
    assert last[2] == Gap(800e-6)
    assert last[3] == Call("all-reduce", (4, 5, 6, 7), 4 << 20, group_name="2")
    assert last[4] == Recv(3, 1 << 20, 1)
    assert trace.ranks[7][3].after == (2,)
    matrix = replayable(TRACES / "pipeline").schedule.matrix
    assert {pair: size for pair, size in matrix.items() if pair[0] // 4 != pair[1] // 4} == {
        pair: 2 << 20 for rank in range(4) for pair in ((rank, rank + 4), (rank + 4, rank))
    }
    assert matrix[4, 5] == 4 * 2 * 3 * (1 << 20)


def test_chakra_json_counts_as_its_protobuf_does() -> None:
    actions = [node.action for node in read(TRACES / "experts").ranks[0]]
    everyone = (0, 1, 2, 3)
    assert actions[0] == Call("barrier", everyone)
    assert actions[2] == Call("all-to-all", everyone, 2 << 20)
    assert actions[3] == Call("all-gather", everyone, 4 << 20)
    ring = [node.action for node in read(TRACES / "ring").ranks[1]]
    assert ring == [Gap(500e-6), Send(2, 300_000, 7), Recv(0, 300_000, 7), Send(2, 300_000, 8), Recv(0, 300_000, 8)]


def test_param_splits_count_elements_and_reach_their_ranks() -> None:
    """Two exchanges of (i + j) % 5 + 1 thousand floats; the rest of the matrix is the AllReduce and the barrier."""
    trace = read(TRACES / "dlrm")
    exchange = trace.ranks[2][1].action
    assert isinstance(exchange, Call)
    assert exchange.sends == tuple(4000 * ((2 + j) % 5 + 1) for j in range(8))
    schedule = replayable(TRACES / "dlrm").schedule
    uneven: dict[tuple[int, int], int] = {}
    for _, t in schedule.transfers:
        if schedule.phases[t.phase].name.startswith("all-to-allv"):
            uneven[t.src, t.dst] = uneven.get((t.src, t.dst), 0) + t.bytes
    assert uneven == {(i, j): 2 * 4000 * ((i + j) % 5 + 1) for i in range(8) for j in range(8) if i != j}


def test_node_waits_for_its_named_requests() -> None:
    """The gemm runs beside the first exchange; the second goes on beside nothing but the AllReduce."""
    nodes = read(TRACES / "dlrm").ranks[0]
    assert [node.after for node in nodes] == [(), (0,), (0,), (2, 1), (3,), (3,), (3, 5), (6, 4), (7,)]
    assert nodes[0].action == Gap(400e-6)
    assert nodes[2].action == Gap(4 * 2 * 1024**3 / (0.5 * PLATFORMS[FABRIC.platform].flops))


def test_one_param_trace_for_all_is_each_ranks_own_part() -> None:
    trace = read(TRACES / "ddp.json")
    sends = [[type(node.action).__name__ for node in nodes][6:8] for nodes in trace.ranks]
    assert sends == [["Send", "Gap"], ["Gap", "Gap"], ["Gap", "Gap"], ["Gap", "Recv"]]
    assert trace.ranks[3][8].after == (5, 6, 7)
    assert trace.ranks[1][5].action == Call("reduce-scatter", (1, 3), 160_000, group_name="2")


def test_simai_groups_are_simais() -> None:
    trace = read(TRACES / "moe.txt")
    groups = {c.group_name: c.group for node in trace.ranks[6] if isinstance(c := node.action, Call)}
    assert groups == {"model": (4, 5, 6, 7), "data": (2, 6, 10, 14), "EP": (2, 6), "DP_EP": (6, 14)}
    kinds = {c.group_name: c.kind for node in trace.ranks[6] if isinstance(c := node.action, Call)}
    assert kinds == {"model": "TP", "data": "DP", "EP": "EP", "DP_EP": "DP"}


def test_groups_may_come_from_a_file_of_their_own(tmp_path: Path, check_messages: CheckMessages) -> None:
    for rank in range(4):
        node = pb.NodeMessage(id=0, type="COMM_COLL_NODE")
        node.attr.append(pb.Attribute(name="comm_type", int64_val=0))
        node.attr.append(pb.Attribute(name="comm_size", int64_val=4096))
        node.attr.append(pb.Attribute(name="pg_name", string_val=str(1 + rank % 2)))
        (tmp_path / f"g.{rank}.et").write_bytes(pb.encode(pb.GlobalMetadata(), [node]))
    (tmp_path / "groups.json").write_text('{"1": [0, 2], "2": [1, 3]}')
    trace = read(tmp_path / "g", str(tmp_path / "groups.json"))
    assert trace.ranks[3][0].action == Call("all-reduce", (1, 3), 4096, group_name="2")
    (tmp_path / "others.json").write_text('{"1": [0, 2], "2": [1, 0]}')
    (tmp_path / "one.et").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    calls = {
        "a group that is not defined": partial(read, tmp_path / "g"),
        "a group without the calling rank": partial(read, tmp_path / "g", str(tmp_path / "others.json")),
        "groups for a format that takes none": partial(read, TRACES / "dlrm", str(tmp_path / "groups.json")),
        "a folder with several traces": partial(read, TRACES),
        "a folder without a trace": partial(read, tmp_path / "empty"),
        "a folder that doesn't exist": partial(read, tmp_path / "nothing/here"),
        "one file of a trace with one for each rank": partial(read, tmp_path / "one.et"),
    }
    check_messages(calls)


def test_messages_of_forbidden_keys(check_messages: CheckMessages) -> None:
    keys: tuple[dict[str, Any], ...] = (
        {"format": "kineto"},
        {"bytes_factor": 1.0, "duration": "1s"},
        {"bytes_factor": 0.0},
        {"bytes_factor": 1e308},
        {"duration": "2000min"},
        {"bytes": "1MB"},
    )
    check_messages({str(each): partial(spec_of, TRACES / "dlrm", **each) for each in keys})
