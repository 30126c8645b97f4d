"""Traces as other tools write them, with their own meaning of sizes, dependencies and times."""

import codecs
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.core.errors import BadInput
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Program
from railyard.workloads.traces import common
from railyard.workloads.traces.formats import chakra
from tests.unit.traces import read, replayable
from tests.unit.workloads.messages import CheckMessages

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


ODD_CALLS: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "text as a group's id": ({"pg_id": "tp 0"}, 4 * 1000),
    "complex numbers": ({"dtype": "ComplexDouble"}, 16 * 1000),
    "numbers of a byte": ({"dtype": "Float8_e5m2fnuz"}, 1000),
    "no bytes": ({"in_msg_size": 0, "out_msg_size": 0}, 0),
    "a rank alone": ({"global_ranks": [0], "world_size": 1}, 0),
    "a whole number with a point": ({"in_msg_size": 1000.0, "out_msg_size": 1000.0}, 4 * 1000),
}
"""Of the second of two AllReduces among four ranks: what is unlike the first, and the bytes of its buffer."""


@pytest.mark.parametrize(("change", "buffer_bytes"), ODD_CALLS.values(), ids=ODD_CALLS.keys())
@pytest.mark.parametrize("name", ["trace.json", "my traces/a b.json"])
def test_odd_calls_have_the_bytes_of_an_independent_count(
    change: dict[str, Any], buffer_bytes: int, name: str, tmp_path: Path
) -> None:
    ranks = {"world_size": 4, "global_ranks": [0, 1, 2, 3]}
    call = {"comms": "all_reduce", "in_msg_size": 1000, "out_msg_size": 1000, "dtype": "Float"}
    odd = {"pg_id": 7, **ranks, **call, **change}
    first = {"pg_id": 1, **ranks, **call}
    inits = [{**{key: entry[key] for key in ("pg_id", *ranks)}, "comms": "init"} for entry in (first, odd)]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    # as an editor on another system saves it
    text = json.dumps([*inits, first, odd], indent=1).replace("\n", "\r\n")
    path.write_bytes(codecs.BOM_UTF8 + text.encode())
    # each byte of a ring's buffer is sent once less than there are ranks, to be reduced and to be gathered
    assert sent_bytes(path) == 2 * 3 * (4 * 1000 + buffer_bytes)


@pytest.mark.parametrize("size", [2**53 + 1, 2**60 + 1])
def test_counts_near_the_largest_number_keep_every_byte(size: int, tmp_path: Path) -> None:
    """A ring of four ranks, to be reduced and gathered: each part is sent six times, and sliced to the byte."""
    call = {"comms": "all_reduce", "in_msg_size": 4 * size, "out_msg_size": 4 * size, "dtype": "Byte", "world_size": 4}
    (tmp_path / "t.json").write_text(json.dumps([call]))
    assert abs(sent_bytes(tmp_path / "t.json") - 2 * 3 * 4 * size) <= 2 * 3 * 4 * size * 2.0**-52


@pytest.mark.parametrize("count", [2**63, 10**30, 1e300, float("inf")])
def test_counts_beyond_the_largest_number_are_refused(count: float, tmp_path: Path) -> None:
    call = {"comms": "all_reduce", "in_msg_size": count, "out_msg_size": 8, "dtype": "Byte", "world_size": 4}
    (tmp_path / "t.json").write_text(json.dumps([call]))
    with pytest.raises(BadInput, match="in_msg_size"):
        read(tmp_path / "t.json")


def test_thousands_of_groups_have_independently_counted_bytes(tmp_path: Path) -> None:
    """Pairs of 16 ranks, each with an AllReduce of its own size: a pair sends its buffer twice."""
    pairs = [(number % 16, (number + 1) % 16) for number in range(500)]
    definitions = [{"pg_name": f"pair {number}", "ranks": list(pair)} for number, pair in enumerate(pairs)]
    groups = node(0, chakra.NODE_TYPES.index("METADATA_NODE"))
    groups.name = "## process_group:init ##"
    groups.inputs.values = repr([json.dumps(definitions)])
    ranks = []
    for rank in range(16):
        calls = [all_reduce(i + 1, 2 * i + 2, f"pair {i}") for i, pair in enumerate(pairs) if rank in pair]
        ranks.append([groups, *calls])
    write_ranks(tmp_path, ranks)
    assert sent_bytes(tmp_path) == sum(2 * (2 * i + 2) for i in range(500))


def with_header(folder: Path, header: bytes, nodes: Sequence[Any]) -> Path:
    """Write four ranks whose first message has this content."""
    # an empty GlobalMetadata is its length alone, 0
    following = chakra.encode(chakra.GlobalMetadata(), nodes)[1:]
    for rank in range(4):
        (folder / f"t.{rank}.et").write_bytes(bytes([len(header)]) + header + following)
    return folder


def test_metadata_of_2023_has_its_attributes_in_another_field(tmp_path: Path) -> None:
    attribute = chakra.Attribute(name="peak", double_val=-1.5).SerializeToString()
    with_header(tmp_path, b"\x0a" + bytes([len(attribute)]) + attribute, [all_reduce(1)])
    assert sent_bytes(tmp_path) == 2 * 3 * 4096


def test_nodes_of_the_first_schema_are_refused(tmp_path: Path) -> None:
    """Fields of eg_def.proto: id 1, name, node_type 6 (a collective), comm_type 1, comm_size 4096."""
    first_node = b"\x08\x01\x12\x04COLL\x18\x06\x68\x01\x90\x01\x80\x20"
    with pytest.raises(BadInput, match=r"eg_def\.proto"):
        read(with_header(tmp_path, first_node, []))


def test_a_control_dependency_on_an_absent_node_orders_nothing(tmp_path: Path) -> None:
    nodes = [node(1, COMPUTE, ctrl_deps=[0], duration_micros=20), all_reduce(2, 2**20, ctrl_deps=[0, 1])]
    trace = read(write_ranks(tmp_path, [nodes, nodes]))
    assert trace.ranks[0][0].after == ()
    assert trace.ranks[0][1].after == (0,)
    assert sent_bytes(tmp_path) == 2 * 2**20


@pytest.mark.parametrize(
    ("attributes", "has_time"), [({"num_ops": 10**9}, True), ({}, False)], ids=["num_ops", "nothing"]
)
def test_computing_without_a_duration_takes_its_operations(
    attributes: dict[str, int], has_time: bool, tmp_path: Path, file_regression: FileRegressionFixture
) -> None:
    nodes = [node(1, COMPUTE, attributes=attributes), all_reduce(2, data_deps=[1])]
    trace = read(write_ranks(tmp_path, [nodes, nodes]))
    action = trace.ranks[1][0].action
    assert isinstance(action, common.Gap)
    assert (action.seconds > 0) == has_time
    (note,) = trace.notes
    file_regression.check(note)


@pytest.mark.parametrize(
    ("header", "gathered_share"),
    [
        ("MODEL", 16),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 16", 16),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 16 ep: 1 pp: 1 all_gpus: 16", 1),
    ],
    ids=["model", "astra-sim", "simai"],
)
def test_an_all_gather_has_the_size_that_its_tool_means(header: str, gathered_share: int, tmp_path: Path) -> None:
    path = tmp_path / "ag.txt"
    path.write_text(f"{header}\n1\nl -1 1000 ALLGATHER 1048576 1000 NONE 0 1 NONE 0 100\n")
    assert sent_bytes(path) == gathered_share * 15 * 2**20
    assert len(read(path).notes) == (gathered_share > 1)


@pytest.mark.parametrize("keys", ["", " vpp: 1 ga: 4 pp_comm: 50331648"], ids=["no size", "size"])
def test_note_says_which_bytes_between_stages_are_left_out(
    keys: str, tmp_path: Path, file_regression: FileRegressionFixture
) -> None:
    path = tmp_path / "pp.txt"
    header = f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 pp: 2 all_gpus: 8{keys}"
    path.write_text(f"{header}\n1\nl -1 1000 ALLREDUCE 1024 1000 NONE 0 1 NONE 0 100\n")
    (note,) = read(path).notes
    file_regression.check(note)


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


@pytest.mark.parametrize("dtype", ["signed char", "unsigned char", "Char", "torch.int8"])
def test_a_dtype_of_one_byte(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{**ALL_REDUCE_OF_8[0], "dtype": dtype}]))
    assert sent_bytes(path) == 14336


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


PYTORCH_CALLS: Final[dict[str, dict[str, Any]]] = {
    "PyTorch: send": pytorch_call(2, "send"),
    "PyTorch: call without a name": pytorch_call(2, ""),
    "PyTorch: shortened split": pytorch_call(2, "alltoallv", in_split_size="[1, ...]"),
    "PyTorch: call without a size": pytorch_call(2, "allreduce", dtype="Float"),
    "PyTorch: call without attributes": {"id": 2, "name": "record_param_comms"},
    "PyTorch: groups without a list": {"id": 2, "name": "process_group:init"},
}


def write_deadlock(folder: Path) -> Path:
    ranks = [
        [all_reduce(2, group="2"), all_reduce(1, group="1", data_deps=[2])],
        [all_reduce(1, group="1"), all_reduce(2, group="2", data_deps=[1])],
    ]
    return write_ranks(folder, ranks)


def write_some_dimensions(folder: Path) -> Path:
    call = all_reduce(1)
    call.attr.add(name="involved_dim").bool_list.values.extend([True, False])
    return write_ranks(folder, [[call], [call]])


def write_single_pytorch_file(folder: Path) -> Path:
    return (write_pytorch(folder, [], 1) / "rank0.json").rename(folder / "dlrm_eg_0.json")


def write_half_of_utf16(folder: Path) -> Path:
    (folder / "x.txt").write_bytes(codecs.BOM_UTF16_LE + b"M")
    return folder / "x.txt"


def write_too_many_bytes(folder: Path) -> Path:
    for rank in range(2):
        with (folder / f"t.{rank}.json").open("wb") as file:
            file.truncate(9_000_000)
    return folder


def write_too_many_transfers(folder: Path) -> Path:
    (folder / "many.txt").write_text("MICRO\n5\n" + "m -1 1 NONE 0 1 NONE 0 1 ALLTOALL 1600 1\n" * 5)
    return folder / "many.txt"


def test_messages_of_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_messages: CheckMessages) -> None:
    monkeypatch.setattr("railyard.workloads.schedule.MAX_TASKS", 300)
    monkeypatch.setattr(Program.__init__, "__defaults__", (1,))  # tasks of a GPU
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0, 1], "2": [0, 1]}')
    writers: dict[str, Callable[[Path], Path]] = {
        "a deadlock across ranks": write_deadlock,
        "a call of some dimensions": write_some_dimensions,
        "one file of a PyTorch trace": write_single_pytorch_file,
        "half of UTF-16": write_half_of_utf16,
        "too many bytes": write_too_many_bytes,
        "too many transfers": write_too_many_transfers,
    }
    for case, call in PYTORCH_CALLS.items():
        writers[case] = partial(write_pytorch, nodes=[call], ranks=2)
    calls: dict[str, Callable[[], object]] = {}
    for number, (case, write) in enumerate(writers.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        options: dict[str, Any] = {"groups": str(groups)} if write is write_deadlock else {}
        calls[case] = partial(replayable, write(folder), **options)
    check_messages(calls)
