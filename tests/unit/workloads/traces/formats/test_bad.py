"""Mistakes in a trace are reported in one line with their place."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.traces import common
from railyard.workloads.traces.formats import chakra
from tests.unit.traces import TRACES, read, replayable
from tests.unit.workloads.messages import CheckMessages

Edit = Callable[[Any], object]


def put(index: int, key: str, value: object) -> Edit:
    def edit(data: Any) -> None:
        items = data if isinstance(data, list) else data["workload_graph"]
        items[index][key] = value

    return edit


EDITS: Final[dict[str, tuple[str, Edit]]] = {
    "PARAM: unknown collective": ("dlrm", put(4, "comms", "all_shuffle")),
    "PARAM: unknown dtype": ("dlrm", put(4, "dtype", "Quad")),
    "PARAM: negative size": ("dlrm", put(4, "in_msg_size", -1)),
    "PARAM: size unlike that of other ranks": ("dlrm", put(4, "in_msg_size", 250_001)),
    "PARAM: world size above the group's": ("dlrm", put(4, "world_size", 9)),
    "PARAM: split of another length": ("dlrm", put(1, "in_split", [1, 2])),
    "PARAM: split with another sum": ("dlrm", put(1, "in_split", [1000] * 8)),
    "PARAM: output with another sum": ("dlrm", put(5, "out_msg_size", 5)),
    "PARAM: undefined group": ("dlrm", put(4, "pg_id", 7)),
    "PARAM: missing call": ("dlrm", lambda data: data.pop()),
    "PARAM: empty list": ("dlrm", lambda data: data.clear()),
    "PARAM: unknown compute": ("dlrm", put(2, "compute", "sort")),
    "PARAM: negative time": ("dlrm", put(2, "latency_us", -5)),
    "PARAM: time that is no number": ("dlrm", put(2, "latency_us", float("nan"))),
    "PARAM: root outside its group": ("ddp", put(3, "root", 9)),
    "PARAM: rank twice": ("ddp", put(0, "global_ranks", [0, 0])),
    "PARAM: message to itself": ("ddp", put(6, "dst_rank", 0)),
    "PARAM: send without a receive": ("ddp", put(7, "dst_rank", 2)),
    "graph: missing peer": ("ring", put(1, "comm_dst", 9)),
    "graph: message of another rank": ("ring", put(1, "comm_src", 0)),
    "graph: tag without a counterpart": ("ring", put(1, "comm_tag", 5)),
    "graph: bytes unlike those sent": ("ring", put(1, "comm_size", 5)),
    "graph: absent dependency": ("ring", put(1, "data_deps", [99])),
    "graph: Id twice": ("ring", put(1, "Id", 10)),
    "graph: cycle": ("ring", put(2, "data_deps", [14])),
    "graph: unknown type": ("ring", put(1, "NodeType", 77)),
    "graph: call without comm_type": ("ring", put(1, "NodeType", 7)),
    "graph: half of a surrogate pair": ("ring", put(0, "Name", "\ud83d")),
}
"""By case: the trace, and the change of rank 1's file, or of that for all ranks."""


def edited(name: str, edit: Edit, folder: Path) -> Path:
    folder.mkdir()
    for file in TRACES.glob(f"{name}.*"):
        content = file.read_bytes()
        if file.name in (f"{name}.1.json", f"{name}.json"):
            data = json.loads(content)
            edit(data)
            content = json.dumps(data).encode()
        (folder / file.name).write_bytes(content)
    return folder / (f"{name}.json" if (folder / f"{name}.json").exists() else name)


def test_messages_of_edited_traces(tmp_path: Path, check_messages: CheckMessages) -> None:
    calls: dict[str, Callable[[], object]] = {}
    for number, (case, (name, edit)) in enumerate(EDITS.items()):
        calls[case] = partial(replayable, edited(name, edit, tmp_path / str(number)))
    check_messages(calls)


def with_negative_type(content: bytes) -> bytes:
    metadata, nodes = chakra.decode(content, "x")
    nodes[0].type = -(2**31)
    return chakra.encode(metadata, nodes)


DAMAGES: Final[dict[str, tuple[str, Callable[[bytes], bytes] | None]]] = {
    "a rank between others is missing": ("pipeline.2.et", None),
    "the last rank is missing": ("pipeline.7.et", None),
    "the last rank of a PARAM trace is missing": ("dlrm.7.json", None),
    "protobuf is cut off": ("pipeline.5.et", lambda content: content[:-3]),
    "protobuf is empty": ("pipeline.5.et", lambda content: b""),
    "a length beyond any file": ("pipeline.5.et", lambda content: b"\xff" * 9 + b"\x01abc"),
    "a negative type of node": ("pipeline.4.et", with_negative_type),
    "objects are cut off": ("experts.1.json", lambda content: content[:-20]),
    "a graph is cut off": ("ring.1.json", lambda content: content[:-20]),
}
"""By case: the file, and its content after the damage, or None if it is missing."""


def damaged(name: str, damage: Callable[[bytes], bytes] | None, folder: Path) -> Path:
    folder.mkdir()
    trace = name.partition(".")[0]
    for file in TRACES.glob(f"{trace}.*"):
        content = file.read_bytes()
        if file.name != name:
            (folder / file.name).write_bytes(content)
        elif damage is not None:
            (folder / name).write_bytes(damage(content))
    return folder / trace


def test_messages_of_damaged_files(tmp_path: Path, check_messages: CheckMessages) -> None:
    calls: dict[str, Callable[[], object]] = {}
    for number, (case, (name, damage)) in enumerate(DAMAGES.items()):
        calls[case] = partial(read, damaged(name, damage, tmp_path / str(number)))
    check_messages(calls)


def test_list_that_is_cut_off_is_named_with_its_line(tmp_path: Path) -> None:
    # the rest of the message is Python's
    with pytest.raises(BadInput, match=r"dlrm\.1\.json: 'line \d+, column \d+' is cut off"):
        read(damaged("dlrm.1.json", lambda content: content[:-20], tmp_path / "cut"))


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    assert common.parse_json(rb'["\ud83d\ude82", "\u00e9"]', "ring.0.json") == ["🚂", "é"]
    for text in (rb'["\ud83d"]', rb'{"\uDE82": 1}'):
        with pytest.raises(BadInput, match=r"ring\.0\.json: 'its content'"):
            common.parse_json(text, "ring.0.json")
