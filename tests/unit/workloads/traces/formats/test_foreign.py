"""Traces as other tools write them, with their own meaning of sizes, dependencies and times."""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Program
from railyard.workloads.traces import common
from railyard.workloads.traces.formats import chakra
from tests.unit.traces import read, replayable

COLLECTIVE = chakra.NODE_TYPES.index("COMM_COLL_NODE")
COMPUTE = chakra.NODE_TYPES.index("COMP_NODE")
ALL_REDUCE_OF_8 = [
    {"comms": "all_reduce", "in_msg_size": 1024, "out_msg_size": 1024, "dtype": "Float", "world_size": 8}
]


def node(number: int, kind: int, **more: Any) -> Any:
    """Return a Chakra node; `attributes` are whole numbers or text."""
    message = chakra.NodeMessage(id=number, name=f"node {number}", type=kind)
    message.duration_micros = more.get("duration_micros", 0)
    message.data_deps.extend(more.get("data_deps", ()))
    message.ctrl_deps.extend(more.get("ctrl_deps", ()))
    for name, value in more.get("attributes", {}).items():
        field = "string_val" if isinstance(value, str) else "int64_val"
        message.attr.add(name=name, **{field: value})
    return message


def all_reduce(number: int, size: int = 4096, group: str = "", **more: Any) -> Any:
    return node(number, COLLECTIVE, attributes={"comm_type": 0, "comm_size": size, "pg_name": group}, **more)


def write_ranks(folder: Path, ranks: Sequence[Sequence[Any]]) -> Path:
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(chakra.encode(chakra.GlobalMetadata(version="0.0.4"), nodes))
    return folder


def sent_bytes(path: Path, fabric: FabricSpec | None = None) -> int:
    fabric = fabric or FabricSpec(kind="rail-only", domains=4, rails=4)
    return sum(transfer.bytes for _, transfer in replayable(path, fabric).schedule.transfers)


def test_a_control_dependency_on_an_absent_node_orders_nothing(tmp_path: Path) -> None:
    nodes = [node(1, COMPUTE, ctrl_deps=[0], duration_micros=20), all_reduce(2, 2**20, data_deps=[1])]
    trace = read(write_ranks(tmp_path, [nodes, nodes]))
    assert trace.ranks[0][0].after == ()
    assert trace.ranks[0][1].after == (0,)
    assert sent_bytes(tmp_path) == 2 * 2**20


def test_a_data_dependency_on_an_absent_node_is_refused(tmp_path: Path) -> None:
    nodes = [all_reduce(1, data_deps=[0])]
    with pytest.raises(BadInput, match="'node 0' is what it waits for, but isn't in this file"):
        read(write_ranks(tmp_path, [nodes, nodes]))


@pytest.mark.parametrize(
    ("attributes", "seconds", "note"),
    [
        ({"num_ops": 10**9}, True, "2 nodes have num_ops and no duration: they take num_ops / (peak x efficiency)"),
        ({}, False, "2 computing nodes have neither a duration nor num_ops, and take no time"),
    ],
    ids=["num_ops", "nothing"],
)
def test_a_note_says_where_the_time_of_computing_is_from(
    attributes: dict[str, int], seconds: bool, note: str, tmp_path: Path
) -> None:
    nodes = [node(1, COMPUTE, attributes=attributes), all_reduce(2, data_deps=[1])]
    trace = read(write_ranks(tmp_path, [nodes, nodes]))
    assert trace.notes == (note,)
    action = trace.ranks[1][0].action
    assert isinstance(action, common.Gap)
    assert (action.seconds > 0) == seconds


def test_a_deadlock_across_ranks_names_the_file_of_each_wait(tmp_path: Path) -> None:
    ranks = [
        [all_reduce(2, group="2"), all_reduce(1, group="1", data_deps=[2])],
        [all_reduce(1, group="1"), all_reduce(2, group="2", data_deps=[1])],
    ]
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0, 1], "2": [0, 1]}')
    (tmp_path / "trace").mkdir()
    with pytest.raises(BadInput) as error:
        read_and_lower(write_ranks(tmp_path / "trace", ranks), groups)
    assert "t.0.et: node 1 waits for node 2; t.1.et: node 2 waits for node 1' is a cycle" in str(error.value)


def read_and_lower(path: Path, groups: Path) -> None:
    replayable(path, groups=str(groups))


@pytest.mark.parametrize(
    ("header", "expected_bytes", "notes"),
    [
        ("MODEL", 16 * 15 * 2**20, 1),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 16", 16 * 15 * 2**20, 1),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 16 ep: 1 pp: 1 all_gpus: 16", 15 * 2**20, 0),
    ],
    ids=["model", "astra-sim", "simai"],
)
def test_an_all_gather_has_the_size_that_its_tool_means(
    header: str, expected_bytes: int, notes: int, tmp_path: Path
) -> None:
    path = tmp_path / "ag.txt"
    path.write_text(f"{header}\n1\nl -1 1000 ALLGATHER 1048576 1000 NONE 0 1 NONE 0 100\n")
    assert sent_bytes(path) == expected_bytes
    assert len(read(path).notes) == notes


def test_a_note_says_which_bytes_between_stages_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pp.txt"
    layer = "l -1 1000 ALLREDUCE 1024 1000 NONE 0 1 NONE 0 100"
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 pp: 2 vpp: 1 ga: 4 all_gpus: 8"
    path.write_text(f"{header} pp_comm: 50331648\n1\n{layer}\n")
    (note,) = read(path).notes
    assert "line 1 has pp_comm: 50331648, ga: 4, vpp: 1, all left out" in note
    path.write_text(f"HYBRID_TRANSFORMER model_parallel_NPU_group: 2 pp: 2 all_gpus: 8\n1\n{layer}\n")
    (note,) = read(path).notes
    assert note.endswith("line 1 has no pp_comm")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("form", ["param", "graph", "text", "groups"])
def test_a_byte_order_mark_changes_nothing(form: str, encoding: str, tmp_path: Path) -> None:
    """Editors on Windows write one; redirection in PowerShell writes UTF-16."""
    files = {
        "param": ("x.json", json.dumps(ALL_REDUCE_OF_8), 57344),
        "text": ("x.txt", "MICRO\n1\nm -1 1 NONE 0 1 NONE 0 1 ALLTOALL 1600 1\n", 38400),
    }
    if form in files:
        name, text, expected_bytes = files[form]
        (tmp_path / name).write_bytes(text.encode(encoding))
        assert sent_bytes(tmp_path / name) == expected_bytes
        return
    group = "g" if form == "groups" else "0"
    item = {"Id": 1, "Name": "a", "NodeType": COLLECTIVE, "comm_type": 0, "comm_size": 4096, "pg_name": group}
    (tmp_path / "trace").mkdir()
    for rank in range(2):
        graph = json.dumps({"workload_graph": [item]})
        (tmp_path / f"trace/x.{rank}.json").write_bytes(graph.encode(encoding if form == "graph" else "utf-8"))
    groups = tmp_path / "groups.json"
    groups.write_bytes(json.dumps({"g": [0, 1]}).encode(encoding))
    assert replayable(tmp_path / "trace", groups=str(groups)).schedule.transfers


def test_half_of_utf16_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(codecs.BOM_UTF16_LE + b"M")
    with pytest.raises(BadInput, match="is no text in UTF-8"):
        read(path)


@pytest.mark.parametrize("dtype", ["signed char", "unsigned char", "Char", "torch.int8"])
def test_a_dtype_of_one_byte(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{**ALL_REDUCE_OF_8[0], "dtype": dtype}]))
    assert sent_bytes(path) == 14336


def test_a_trace_too_large_is_told_its_sum_and_the_limit(tmp_path: Path) -> None:
    for rank in range(2):
        with (tmp_path / f"t.{rank}.json").open("wb") as file:
            file.truncate(9_000_000)
    message = r"has 18,000,000 bytes in 2 files together: 16,777,216 \(16MiB\) or fewer can be read; take fewer ranks"
    with pytest.raises(BadInput, match=message):
        read(tmp_path)


def test_too_many_transfers_are_counted_and_the_steps_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railyard.workloads.schedule.MAX_TASKS", 300)
    monkeypatch.setattr(Program.__init__, "__defaults__", (1,))  # tasks of a GPU
    path = tmp_path / "many.txt"
    path.write_text("MICRO\n5\n" + "m -1 1 NONE 0 1 NONE 0 1 ALLTOALL 1600 1\n" * 5)
    message = (
        r"path: '.*many.txt' makes 480 transfers and computations: 300 or fewer are allowed on its 16 GPUs; "
        r"the first 3 of its 5 steps fit; take fewer domains or rails"
    )
    with pytest.raises(BadInput, match=message):
        replayable(path)


def pytorch_call(number: int, name: str, inputs: Sequence[Any] = (), **attributes: Any) -> dict[str, Any]:
    """Return a node as PyTorch's observer writes it."""
    attributes["collective_name"] = name
    listed = [{"name": key, "type": "string", "value": value} for key, value in attributes.items()]
    values = {"values": list(inputs), "shapes": [], "types": []}
    return {"id": number, "name": "record_param_comms", "ctrl_deps": 1, "inputs": values, "attrs": listed}


def write_pytorch(folder: Path, nodes: Sequence[dict[str, Any]], ranks: int) -> Path:
    for rank in range(ranks):
        data = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes, "finish_ts": 9}
        (folder / f"rank{rank}.json").write_text(json.dumps(data))
    return folder


def test_a_pytorch_trace_has_its_collectives(tmp_path: Path) -> None:
    groups = json.dumps([{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "0", "ranks": []}])
    init = {"id": 2, "name": "## process_group:init ##", "inputs": {"values": [groups]}}
    sizes: dict[str, Any] = {"in_msg_nelems": 1024, "out_msg_nelems": 1024, "dtype": "BFloat16"}
    nodes = [
        {"id": 1, "name": "[pytorch|profiler|execution_trace|thread]"},
        init,
        pytorch_call(3, "init"),
        pytorch_call(4, "allreduce", [[3], [7, False], ["1", ""]], pg_name="1", **sizes),
        pytorch_call(5, "alltoallv", pg_name="0", in_split_size="[]", out_split_size="[]", **sizes),
        pytorch_call(6, "wait", [[7, False], ["1", ""]], pg_name="1"),
    ]
    trace = read(write_pytorch(tmp_path, nodes, 2))
    calls = [node for node in trace.ranks[1] if isinstance(node.action, common.Call)]
    assert [node.where for node in calls] == ["rank1.json: node 4", "rank1.json: node 5"]
    assert isinstance(calls[0].action, common.Call)
    assert calls[0].action.group == (0, 1)
    assert sent_bytes(tmp_path) == 2 * 2048 + 2 * 1024
    assert trace.ranks[1][-1].after == (3, 2)  # the all-to-all, and the all-reduce that it waits for
    assert "no times" in trace.notes[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (pytorch_call(2, "send"), "rank0.json: node 2: 'send' has no peer in a PyTorch execution trace: convert it"),
        (pytorch_call(2, ""), "rank0.json: node 2: 'collective_name' is missing"),
        (pytorch_call(2, "alltoallv", in_split_size="[1, ...]"), "is no in_split: PyTorch has shortened it"),
        (pytorch_call(2, "allreduce", dtype="Float"), "rank0.json: node 2: None is no in_msg_size"),
        ({"id": 2, "name": "record_param_comms"}, "rank0.json: node 2: 'attrs' is no list of attributes"),
        ({"id": 2, "name": "process_group:init"}, "rank0.json: node 2: 'its input' is no list of process groups"),
    ],
    ids=range(6),
)
def test_a_pytorch_trace_is_refused_by_its_node(call: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        read(write_pytorch(tmp_path, [call], 2))
    assert message in str(error.value)


def test_one_file_of_a_pytorch_trace_is_named_as_such(tmp_path: Path) -> None:
    write_pytorch(tmp_path, [], 1)
    path = (tmp_path / "rank0.json").rename(tmp_path / "dlrm_eg_0.json")
    with pytest.raises(BadInput, match="is a PyTorch execution trace, which has a file for each rank: name them"):
        read(path)


def test_a_length_beyond_any_file_is_damage(tmp_path: Path) -> None:
    (tmp_path / "t.0.et").write_bytes(b"\xff" * 9 + b"\x01" + b"abc")
    (tmp_path / "t.1.et").write_bytes(b"")
    with pytest.raises(BadInput, match="'message 0' is cut off or damaged"):
        read(tmp_path)
