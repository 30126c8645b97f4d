"""`check` of the traces that workloads replay: communicators, calls and bytes, counted anew from the files."""

import json
from collections import Counter
from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.rails import RailMap, Route
from railyard.workloads.cluster.reading import read
from tests.import_graph import ROOT
from tests.unit.traces import TRACES

MIB = 2**20


def check_of(path: Path, ranks_per_host: int | None = None) -> RailCheck:
    return RailCheck(read([str(path)], ranks_per_host=ranks_per_host), RailMap())


def counted(check: RailCheck) -> tuple[Counter[str], Counter[str]]:
    """Return calls and bytes of all communicators together."""
    calls: Counter[str] = Counter()
    call_bytes: Counter[str] = Counter()
    for communicator in check.cluster.communicators:
        calls.update(communicator.calls)
        call_bytes.update(communicator.call_bytes)
    return calls, +call_bytes


def test_pipeline_has_its_calls_and_messages() -> None:
    """Two stages of four ranks, two micro-batches forward and back: see tests/traces/make.py."""
    check = check_of(TRACES / "pipeline.0.et", ranks_per_host=4)
    calls, call_bytes = counted(check)
    assert calls == {"all-reduce": 8 * 4, "send": 4 * 2 * 2, "recv": 4 * 2 * 2}
    assert call_bytes == {"all-reduce": 8 * 4 * 4 * MIB, "send": 16 * MIB, "recv": 16 * MIB}
    # both stages are on a host of their own, and rank n of one sends to rank n + 4 of the other
    assert [routes.counts for routes in check.routes] == [
        Counter({Route.RAIL: 8}),
        Counter({Route.DOMAIN: 4}),
        Counter({Route.DOMAIN: 4}),
    ]
    assert check.verdict == "ready"


def test_pipeline_on_narrow_hosts_crosses() -> None:
    check = check_of(TRACES / "pipeline.0.et", ranks_per_host=3)
    assert check.verdict == "crosses"
    assert {routes.communicator.size for routes in check.routes if routes.crossing} == {4}


def test_experts_have_buffers_of_all_ranks() -> None:
    calls, call_bytes = counted(check_of(TRACES / "experts.0.json"))
    assert calls == {"barrier": 4, "all-to-all": 8, "all-gather": 4}
    assert call_bytes == {"all-to-all": 8 * 8 * MIB, "all-gather": 4 * 4 * MIB}


def test_param_traces_have_the_elements_of_their_entries() -> None:
    expected = 0
    for path in TRACES.glob("dlrm.*.json"):
        (entry,) = [entry for entry in json.loads(path.read_text()) if entry.get("comms") == "allreduce"]
        assert entry["dtype"] == "Float"
        expected += 4 * entry["in_msg_size"]
    calls, call_bytes = counted(check_of(TRACES / "dlrm.0.json"))
    assert (calls["all-reduce"], call_bytes["all-reduce"]) == (8, expected)


def test_a_param_trace_for_all_ranks_is_counted_for_each() -> None:
    """Two groups of two ranks reduce and scatter 80,000 halves; see tests/traces/make.py."""
    calls, call_bytes = counted(check_of(TRACES / "ddp.json"))
    assert (calls["reduce-scatter"], call_bytes["reduce-scatter"]) == (4, 4 * 80_000 * 2)
    assert (calls["broadcast"], call_bytes["broadcast"]) == (4, 4 * 100_000 * 2)
    assert (calls["send"], call_bytes["send"]) == (1, 5000 * 8)


def test_recording_has_hosts_of_its_own() -> None:
    folder = ROOT / "tests" / "recordings" / "train-64"
    check = check_of(folder)
    data = json.loads((folder / "trace.json").read_text())
    expected: Counter[str] = Counter()
    for program in data["programs"]:
        for operation in program["operations"]:
            if operation["op"] == "all-reduce":
                expected["calls"] += len(program["ranks"])
                expected["bytes"] += len(program["ranks"]) * operation["bytes"]
    calls, call_bytes = counted(check)
    assert (calls["all-reduce"], call_bytes["all-reduce"]) == (expected["calls"], expected["bytes"])
    assert len(check.cluster.communicators[0].hosts) == 64 // data["ranks_per_node"]
    assert check.verdict == "ready"
    assert any("replay.yaml" in gap for gap in check.cluster.gaps)


def test_text_of_simai_has_its_parallel_groups() -> None:
    check = check_of(TRACES / "moe.txt", ranks_per_host=4)
    calls, _ = counted(check)
    # of each of 16 ranks: the forward, input-gradient and weight-gradient columns of tests/traces/moe.txt
    rows = [row.split() for row in (TRACES / "moe.txt").read_text().splitlines()[2:]]
    columns = [(row[position], int(row[position + 1])) for row in rows for position in (3, 6, 9)]
    expected: Counter[str] = Counter()
    for kind, size in columns:
        if size:
            expected[kind.split("_")[0]] += 16
    assert {kind.replace("-", "").upper(): count for kind, count in calls.items()} == expected
    assert {communicator.size for communicator in check.cluster.communicators} == {2, 4}


def test_a_part_of_a_traces_ranks_is_refused(tmp_path: Path) -> None:
    for rank in (0, 3):
        name = f"pipeline.{rank}.et"
        (tmp_path / name).write_bytes((TRACES / name).read_bytes())
    with pytest.raises(BadInput, match="misses rank 1"):
        check_of(tmp_path)


@pytest.mark.parametrize(
    ("op", "has_pxn", "verdict"),
    [("all-to-all", True, "ready"), ("all-to-all", False, "crosses"), ("gather", False, "unknown")],
)
def test_unclassed_pairs_are_ready_by_pxn_alone(op: str, has_pxn: bool, verdict: str, tmp_path: Path) -> None:
    """More pairs than are classed, and a root that isn't known."""
    ranks = list(range(264))
    operations = [
        {"op": "all-reduce", "communicator": "world", "bytes": 8, "dtype": "float32", "after": []},
        {"op": op, "communicator": "world", "bytes": 8, "dtype": "float32", "root": 0, "after": [0]},
    ]
    data = {"format": "railyard-trace", "version": 1, "ranks": len(ranks), "ranks_per_node": 8, "run": [0]}
    data |= {"contents": True, "routing": "real", "steps": [3, 3], "notes": [], "communicators": {"world": [ranks]}}
    data["programs"] = [{"ranks": ranks, "operations": operations}]
    (tmp_path / "trace.json").write_text(json.dumps(data))
    setting = f"NCCL_PXN_DISABLE set by environment to {int(not has_pxn)}."
    (tmp_path / "a.log").write_text(f"host0:1:2 [0] NCCL INFO {setting}\n")
    check = check_of(tmp_path)
    assert check.verdict == verdict
    for routes in check.routes:
        assert routes.is_lacking is (verdict == "unknown")


def test_other_json_in_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(BadInput, match=r"config\.json"):
        check_of(tmp_path / "config.json")
    (tmp_path / "a.log").write_text("host0:1:2 [0] NCCL INFO NCCL_CROSS_NIC set by environment to 0.\n")
    check = check_of(tmp_path)
    assert [source.file for source in check.cluster.sources] == ["a.log"]
    assert any(gap.startswith("config.json is left out") for gap in check.cluster.gaps)
