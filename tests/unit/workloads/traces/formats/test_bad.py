"""Mistakes in a trace are reported in one line with their place."""

import json
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.traces import common
from railyard.workloads.traces.formats import chakra
from tests.unit.traces import TRACES, read, replayable


def edited(name: str, tmp_path: Path, edit: Any) -> Path:
    """A copy of a PARAM or graph trace, rank 1's data (or that for all) changed."""
    for file in TRACES.glob(f"{name}.*"):
        content = file.read_bytes()
        if file.name in (f"{name}.1.json", f"{name}.json"):
            data = json.loads(content)
            edit(data)
            content = json.dumps(data).encode()
        (tmp_path / file.name).write_bytes(content)
    return tmp_path / (f"{name}.json" if (tmp_path / f"{name}.json").exists() else name)


def put(index: int, key: str, value: object) -> Any:
    def edit(data: Any) -> None:
        items = data if isinstance(data, list) else data["workload_graph"]
        items[index][key] = value

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("dlrm", put(4, "comms", "all_shuffle"), "dlrm.1.json: entry 4: 'all_shuffle' is not a known collective: "),
        ("dlrm", put(4, "dtype", "Quad"), "dlrm.1.json: entry 4: 'Quad' is not a dtype: "),
        ("dlrm", put(4, "in_msg_size", -1), "dlrm.1.json: entry 4: -1 is no in_msg_size"),
        ("dlrm", put(4, "in_msg_size", 250_001), "dlrm.1.json: entry 4: 'all-reduce of 1000004 bytes' must be "),
        ("dlrm", put(4, "world_size", 9), "dlrm.1.json: entry 4: 9 is its world size, but its group has the 8 ranks"),
        ("dlrm", put(1, "in_split", [1, 2]), "dlrm.1.json: entry 1: [1, 2] is no in_split: one number for each"),
        ("dlrm", put(1, "in_split", [1000] * 8), "1000, 1000] is its in_split, and must add up to the"),
        ("dlrm", put(5, "out_msg_size", 5), "is its out_split, and must add up to the 5 of out_msg_size"),
        ("dlrm", put(4, "pg_id", 7), "dlrm.1.json: entry 4: 7 is a pg_id that no init entry before it has defined"),
        ("dlrm", lambda data: data.pop(), "'barrier' is number 4 of group [0, 1, 2, 3, 4, 5, 6, 7] here, but the"),
        ("dlrm", lambda data: data.clear(), "dlrm.1.json: 'its content' is no PARAM trace"),
        ("dlrm", put(2, "compute", "sort"), "dlrm.1.json: entry 2: 'sort' is no known compute"),
        ("ddp", put(3, "root", 9), "ddp.json: entry 3: 9 is its root, but isn't in its group"),
        ("ddp", put(0, "global_ranks", [0, 0]), "ddp.json: entry 0: [0, 0] has a rank twice"),
        ("ddp", put(6, "dst_rank", 0), "ddp.json: entry 6: 0 must be another rank than src_rank"),
        ("ddp", put(7, "dst_rank", 2), "no counterpart"),
        ("ring", put(1, "comm_dst", 9), "ring.1.json: node 11: 9 is a rank that is missing: the trace has"),
        ("ring", put(1, "comm_src", 0), "ring.1.json: node 11: 0 must be its own rank, 1: it is comm_src"),
        ("ring", put(1, "comm_tag", 5), "no counterpart: "),
        ("ring", put(1, "comm_size", 5), "ring.2.json: node 12: 300000 bytes received must be the 5"),
        ("ring", put(1, "data_deps", [99]), "ring.1.json: node 11: 'node 99' is what it waits for, but isn't"),
        ("ring", put(1, "Id", 10), "ring.1.json: 'node 10' occurs twice"),
        ("ring", put(2, "data_deps", [14]), "node 14 waits for node 12; ring.1.json: node 12 waits for node 14' is a"),
        ("ring", put(1, "NodeType", 77), "ring.1.json: node 11: 77 is no node type: allowed are 0 INVALID_NODE"),
        ("ring", put(1, "NodeType", 7), "ring.1.json: node 11: None is no known collective: allowed as comm_type are"),
    ],
)  # fmt: skip
def test_error_in_a_trace_is_reported_with_its_place(name: str, edit: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        replayable(edited(name, tmp_path, edit))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def copied(tmp_path: Path, pattern: str) -> Path:
    for file in TRACES.glob(pattern):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    (copied(tmp_path, "pipeline.*") / "pipeline.2.et").unlink()
    with pytest.raises(BadInput, match="misses rank 2: there are files for ranks up to 7"):
        read(tmp_path)


def test_missing_last_rank_is_known_from_other_ranks(tmp_path: Path) -> None:
    (copied(tmp_path, "pipeline.*") / "pipeline.7.et").unlink()
    with pytest.raises(BadInput, match="7 is a rank that is missing: the trace has ranks 0 to 6"):
        read(tmp_path)
    (copied(tmp_path / "..", "dlrm.*") / "dlrm.7.json").unlink()
    with pytest.raises(BadInput, match="8 is its world size, but its group has the 7 ranks"):
        read(tmp_path / ".." / "dlrm")


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    folder = copied(tmp_path, "pipeline.*")
    whole = (folder / "pipeline.5.et").read_bytes()
    (folder / "pipeline.5.et").write_bytes(whole[:-3])
    with pytest.raises(BadInput, match=r"pipeline\.5\.et: 'message \d+' is cut off or damaged"):
        read(folder)
    (folder / "pipeline.5.et").write_bytes(b"")
    with pytest.raises(BadInput, match=r"pipeline\.5\.et: 'nothing' is in this file"):
        read(folder)
    for name, what in (("experts.1.json", "object 6"), ("dlrm.1.json", "line "), ("ring.1.json", "object 0")):
        copied(tmp_path, f"{name.split('.')[0]}.*")
        cut = (tmp_path / name).read_bytes()[:-20]
        (tmp_path / name).write_bytes(cut)
        with pytest.raises(BadInput, match=rf"{name}: '{what}.*is cut off or no JSON"):
            read(tmp_path / name.split(".")[0])


def test_a_negative_node_type_is_no_node_type(tmp_path: Path) -> None:
    file = copied(tmp_path, "pipeline.*") / "pipeline.4.et"
    metadata, nodes = chakra.decode(file.read_bytes(), file.name)
    nodes[0].type = -(2**31)
    file.write_bytes(chakra.encode(metadata, nodes))
    with pytest.raises(BadInput, match=r"pipeline.4.et: node \d+: -2147483648 is no node type: allowed are 0 "):
        replayable(tmp_path / "pipeline")


def test_more_than_one_trace_and_none_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has several traces: give the first file of one of"):
        read(TRACES)
    with pytest.raises(BadInput, match="is no trace: give a file"):
        read(tmp_path)
    with pytest.raises(BadInput, match="is no trace: give a file"):
        read(tmp_path / "nothing" / "here")
    (tmp_path / "one.et").write_bytes(b"")
    with pytest.raises(BadInput, match=r"must be NAME\.<rank>\.et"):
        read(tmp_path / "one.et")


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    assert common.parse_json(rb'["\ud83d\ude82", "\u00e9"]', "ring.0.json") == ["🚂", "é"]
    for text in (rb'["\ud83d"]', rb'{"\uDE82": 1}'):
        with pytest.raises(BadInput, match=r"ring\.0\.json: 'its content' is no JSON in UTF-8"):
            common.parse_json(text, "ring.0.json")


def test_half_of_a_surrogate_pair_is_no_name_of_a_node(tmp_path: Path) -> None:
    path = edited("ring", tmp_path, put(0, "Name", "\ud83d"))
    with pytest.raises(BadInput, match=r"ring\.1\.json: 'object 0' is cut off or no JSON"):
        read(path)
