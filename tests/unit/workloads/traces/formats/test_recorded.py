"""Railyard's own traces: read by their folder or file, to the same tasks as Chakra's files beside them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.recording.chakra_files import chakra_files, reason_against
from railyard.workloads.traces import common
from railyard.workloads.traces.common import Call, Gap, Measured, Recv, Send
from railyard.workloads.traces.formats.recorded import FILE, encode
from railyard.workloads.traces.lower import lower

DATA: dict[str, Any] = {
    "format": "railyard-trace",
    "version": 1,
    "ranks": 4,
    "notes": ["derived"],
    "communicators": {"world": [[0, 1, 2, 3]], "tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]},
    "programs": [
        {
            "ranks": [0, 1],
            "operations": [
                {"op": "compute", "flops": 1000, "after": []},
                {"op": "all-gather", "communicator": "tp", "bytes": 4096, "dtype": "bfloat16", "after": [0]},
                {"op": "send", "communicator": "pp", "peer": 1, "bytes": 512, "tag": 3, "after": [1]},
                {"op": "all-to-all", "communicator": "world", "bytes": 256, "after": []},
                {"op": "broadcast", "communicator": "tp", "bytes": 64, "root": 0, "after": [2, 3]},
            ],
        },
        {
            "ranks": [2, 3],
            "operations": [
                {"op": "recv", "communicator": "pp", "peer": 0, "bytes": 512, "tag": 3, "after": []},
                {"op": "compute", "flops": 3000, "after": [0]},
                {"op": "all-to-all", "communicator": "world", "bytes": 256, "after": [1]},
                {"op": "barrier", "communicator": "tp", "after": []},
            ],
        },
    ],
}  # fmt: skip


def read(path: Path) -> common.Trace:
    files = common.read_files(str(path), "path")
    trace_format = common.TRACE_FORMATS[common.format_of(files, "path")]
    return trace_format.read(files, common.ReplayOn(4, 2, 1000.0, {}))


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    folder = tmp_path / "job"
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(encode(data))
    return folder


def test_operations_are_those_of_each_rank(tmp_path: Path) -> None:
    trace = read(written(tmp_path, DATA))
    assert trace.name == "job"
    assert trace.notes == ("derived",)
    assert [node.action for node in trace.ranks[1]] == [
        Gap(1.0),
        Call("all-gather", (0, 1), 4096, group_name="tp"),
        Send(3, 512, 3),
        Call("all-to-all", (0, 1, 2, 3), 256, group_name="world"),
        Call("broadcast", (0, 1), 64, 0, group_name="tp"),
    ]
    assert trace.ranks[3][0].action == Recv(1, 512, 3)
    assert [node.after for node in trace.ranks[0]] == [(), (0,), (1,), (), (2, 3)]
    assert trace.ranks[2][1].where == "trace.json: rank 2: operation 1"


def test_the_file_itself_has_the_name_of_its_folder(tmp_path: Path) -> None:
    assert read(written(tmp_path, DATA) / FILE).name == "job"
    assert common.trace_name(str(tmp_path / "job" / FILE)) == "job"


def test_splits_are_kept_to_the_byte(tmp_path: Path) -> None:
    data = copy.deepcopy(DATA)
    uneven = {"op": "all-to-allv", "communicator": "tp", "sends": [3, 5], "receives": [3, 5], "after": []}
    data["programs"][0]["operations"] = [uneven]
    trace = read(written(tmp_path, data))
    assert trace.ranks[0][0].action == Call("all-to-allv", (0, 1), sends=(3, 5), receives=(3, 5), group_name="tp")
    assert reason_against(data) == "Chakra has no all-to-allv"


def test_chakra_files_become_the_same_tasks(tmp_path: Path) -> None:
    data = copy.deepcopy(DATA)
    data["programs"][0]["operations"].pop()
    data["programs"][1]["operations"].pop()
    folder = written(tmp_path, data)
    assert reason_against(data) == ""
    chakra = tmp_path / "job-chakra"
    chakra.mkdir()
    for name, content in chakra_files("job", data).items():
        (chakra / name).write_bytes(content)
    ours = lower(read(folder), 2, 2, 1.0, 1.0).schedule
    theirs = lower(read(chakra), 2, 2, 1.0, 1.0).schedule
    assert len(ours.tasks) == 20
    assert [*theirs.tasks] == [*ours.tasks]
    assert theirs.matrix == ours.matrix


def test_a_root_that_chakra_has_not_is_named() -> None:
    data = copy.deepcopy(DATA)
    data["programs"][0]["operations"][-1]["root"] = 1
    assert reason_against(data) == "Chakra has no root of a broadcast but the first rank"


def test_measured_times_are_written_back(tmp_path: Path) -> None:
    files = read(written(tmp_path, DATA)).rewrite({(1, 0): Measured(0.5, 1.5)})
    data = json.loads(files[FILE])
    assert data["measured"] == {"1": {"0": [0.5, 1.5]}}
    assert data["programs"] == DATA["programs"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 2, "trace.json: 2 is its version: 1 can be read"),
        (["communicators", "tp"], [[0, 1], [1, 2]], "trace.json: communicator tp: 1 is a rank in two of its groups"),
        (["programs", 1, "ranks"], [2], "trace.json: 3 is a rank without a program"),
        (["programs", 1, "ranks"], [1, 2, 3], "trace.json: program 1: 1 is a rank of another program too"),
        (
            ["programs", 0, "operations", 1, "op"],
            "all-reduc",
            "trace.json: rank 0: operation 1: 'all-reduc' is not known: did you mean 'all-reduce'?",
        ),
        (
            ["programs", 0, "operations", 1, "communicator"],
            "ep",
            "trace.json: rank 0: operation 1: 'ep' is a communicator that rank 0 is in no group of",
        ),
        (
            ["programs", 0, "operations", 2, "peer"],
            2,
            "trace.json: rank 0: operation 2: 2 is no peer: a whole number of 0 to 1 is needed",
        ),
        (
            ["programs", 0, "operations", 1, "after"],
            [1],
            "trace.json: rank 0: operation 1: 1 is no position: a whole number of 0 to 0 is needed",
        ),
        (["programs", 0, "operations", 0, "after"], [0], "trace.json: rank 0: operation 0: [0] is what it waits for"),
        (["programs", 0, "operations", 0, "flops"], -1, "trace.json: rank 0: operation 0: -1 is no flops"),
        (["programs", 0, "operations"], "x", "trace.json: program 0: 'operations' must be a list"),
    ],
)
def test_a_wrong_trace_is_refused_by_place(tmp_path: Path, path: list[str | int], value: object, message: str) -> None:
    data: Any = copy.deepcopy(DATA)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / FILE).write_text(json.dumps(data))
    with pytest.raises(BadInput) as refused:
        read(folder)
    assert str(refused.value).startswith(message)
