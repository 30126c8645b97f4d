"""Formats with ranks and calls, and without hosts: traces, dumps, reports and algorithms."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.rails import RailMap, Route
from railyard.workloads.cluster.reading import read

GROUPS: list[dict[str, Any]] = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": []},
    {"pg_name": "1", "pg_desc": "tp", "ranks": [0, 1]},
    {"pg_name": "2", "pg_desc": "tp", "ranks": [2, 3]},
]
"""Four ranks: all of them, and two pairs."""


def check_of(folder: Path, ranks_per_host: int | None = None, gpus_per_nic: int = 1) -> RailCheck:
    return RailCheck(read([str(folder)], ranks_per_host=ranks_per_host), RailMap(gpus_per_nic=gpus_per_nic))


def totals(check: RailCheck) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return calls and bytes of each communicator by its title and ranks."""
    rows = {}
    for communicator in check.cluster.communicators:
        ranks = sorted(communicator.global_ranks.values())
        title = communicator.name.partition("(")[2].rstrip(")")
        rows[f"{title} {ranks}"] = (dict(communicator.calls), dict(communicator.call_bytes))
    return rows


def calls_of(rank: int) -> list[tuple[str, str, int, int, str]]:
    """Return name, group, elements in and out, and dtype of each call."""
    tensor_group = "1" if rank < 2 else "2"
    return [
        ("allreduce", "0", 1000, 1000, "Float"),
        ("_allgather_base", tensor_group, 500, 1000, "BFloat16"),
        ("_reduce_scatter_base", tensor_group, 1000, 500, "BFloat16"),
        ("wait", tensor_group, 0, 0, "Float"),
        ("allreduce", "0", 8, 8, "Long"),
    ]


def profile(rank: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = [{"ph": "X", "cat": "kernel", "name": "gemm", "args": {"stream": 7}}]
    for name, group, elements_in, elements_out, dtype in calls_of(rank):
        arguments = {"Collective name": name, "In msg nelems": elements_in, "Out msg nelems": elements_out}
        arguments |= {"dtype": dtype, "Process Group Name": group, "Process Group Ranks": "[0, 1, ...]"}
        events.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "args": arguments})
        events.append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_X", "args": arguments})
    information = {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": GROUPS}
    return {"schemaVersion": 1, "distributedInfo": information, "traceEvents": events}


def execution_trace(rank: int) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [{"id": 2, "name": "process_group:init", "inputs": {"values": [json.dumps(GROUPS)]}}]
    for name, group, elements_in, elements_out, dtype in calls_of(rank):
        values = {"collective_name": name, "in_msg_nelems": elements_in, "out_msg_nelems": elements_out}
        values |= {"dtype": dtype, "pg_name": group, "group_size": 4 if group == "0" else 2}
        attributes = [{"name": key, "type": "string", "value": value} for key, value in values.items()]
        nodes.append({"id": len(nodes) + 2, "name": "record_param_comms", "attrs": attributes})
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes}


def flight_recorder(rank: int) -> dict[str, Any]:
    entries = []
    for number, (name, group, elements_in, elements_out, dtype) in enumerate(calls_of(rank)):
        entry = {"process_group": [group, ""], "profiling_name": f"nccl:{name}", "is_p2p": False}
        entry |= {"collective_seq_id": number, "state": "completed", "input_sizes": [[elements_in]]}
        entry |= {"input_dtypes": [dtype], "output_sizes": [[elements_out]], "output_dtypes": [dtype]}
        entries.append(entry)
    config = {group["pg_name"]: {"desc": group["pg_desc"], "ranks": group["ranks"] or [0, 1, 2, 3]} for group in GROUPS}
    return {"entries": entries, "pg_config": config, "rank": rank}


FORMS = {"profile": profile, "execution trace": execution_trace, "flight recorder": flight_recorder}
WORLD = {"all-reduce": 2}
WORLD_BYTES = 4 * 1000 + 8 * 8  # of a rank
PAIR_BYTES = 2 * 1000


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [range(4), (1, 3)], ids=["all ranks", "a part of the ranks"])
def test_traces_of_a_rank_have_the_calls_of_its_groups(form: str, ranks: Any, tmp_path: Path) -> None:
    for rank in ranks:
        content = json.dumps(FORMS[form](rank)).encode()
        if rank == 3:
            (tmp_path / f"rank{rank}.1234.pt.trace.json.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / f"rank{rank}.1234.pt.trace.json").write_bytes(content)
    check = check_of(tmp_path, ranks_per_host=2)
    count = len(ranks)
    pair = {"all-gather": count // 2, "reduce-scatter": count // 2}
    pair_bytes = {name: calls * PAIR_BYTES for name, calls in pair.items()}
    assert totals(check) == {
        "default_pg [0, 1, 2, 3]": ({"all-reduce": 2 * count}, {"all-reduce": count * WORLD_BYTES}),
        "tp [0, 1]": (pair, pair_bytes),
        "tp [2, 3]": (pair, pair_bytes),
    }
    assert check.untraced_ranks == (() if count == 4 else (0, 2))
    assert check.verdict == ("ready" if count == 4 else "unknown")
    assert ("rank 0, rank 2" in " ".join(check.findings())) == (count < 4)
    counts = [routes.counts for routes in check.routes]
    # each host has GPUs 0 and 1: a ring for each over both hosts, and one connection within each host
    assert counts[0] == Counter({Route.RAIL: 4, Route.DOMAIN: 2})
    assert counts[1] == counts[2] == Counter({Route.DOMAIN: 2})


def test_traces_without_hosts_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(profile(0)))
    check = check_of(tmp_path)
    assert check.verdict == "unknown"
    assert any("--ranks-per-host" in gap for gap in check.cluster.gaps)


def test_hosts_of_a_rank_file_place_the_ranks_of_a_trace(tmp_path: Path) -> None:
    """Ranks 0 and 1 are on GPU 0 of two hosts, 2 and 3 on GPU 1 of them."""
    for rank in range(4):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(profile(rank)))
    (tmp_path / "ranks").write_text("".join(f"rank {rank}=node{rank % 2} slot={rank // 2}\n" for rank in range(4)))
    check = check_of(tmp_path, ranks_per_host=4)
    assert [routes.counts[Route.RAIL] for routes in check.routes if routes.communicator.size == 2] == [2, 2]
    order = [finding for finding in check.findings() if "consecutive ranks are on different hosts" in finding]
    assert len(order) == 1


CLOG = """V|1|base_timestamp=1714234567.890
new_comm|comm=world|rank={rank}|world_size=4
split|parent=world|child=pair|ranks={pair}
new_comm|comm=pair|rank={place}|world_size=2
C1|sig|all_reduce|in_count=1000|out_count=1000|dtype=f32|red_op=sum|async_op=f|comm=world
C1|Q|work_id=1|+0.001
C1|S|+0.002
C1|E|+0.003
C2|sig|all_to_all_v_single|in_splits=100,900|out_splits=100,300|dtype=bf16|async_op=f|comm=pair
C2|Q|work_id=2|+0.004
C2|S|+0.005
C2|E|+0.006
G42|C1|Q|work_id=3|+1.000
G42|C1|S|+1.001
G42|C1|E|+1.002
G42|R1|C1|S|+2.001
G42|R1|C1|E|+2.002
"""


def write_clogs(folder: Path, waiting: tuple[int, ...] = ()) -> None:
    for rank in range(4):
        pair = [rank % 2, rank % 2 + 2]
        text = CLOG.format(rank=rank, pair=",".join(map(str, pair)), place=pair.index(rank))
        if rank in waiting:
            text += "C1|Q|work_id=4|+3.000\nC1|S|+3.001\n"
        (folder / f"clog_{rank}.log").write_text(text)


def test_clogs_have_communicators_and_calls(tmp_path: Path) -> None:
    write_clogs(tmp_path)
    check = check_of(tmp_path, ranks_per_host=2)
    # three AllReduces of a rank: called, captured in a graph, replayed
    assert totals(check) == {
        "world [0, 1, 2, 3]": ({"all-reduce": 12}, {"all-reduce": 12 * 4 * 1000}),
        "pair [0, 2]": ({"all-to-all": 2}, {"all-to-all": 2 * 2 * 1000}),
        "pair [1, 3]": ({"all-to-all": 2}, {"all-to-all": 2 * 2 * 1000}),
    }
    assert [routes.counts[Route.RAIL] for routes in check.routes] == [4, 2, 2]
    assert check.verdict == "ready"
    assert list(check.findings()) == []


def test_clogs_name_the_rank_that_is_waited_for(tmp_path: Path) -> None:
    write_clogs(tmp_path, waiting=(0, 1, 3))
    (finding,) = check_of(tmp_path, ranks_per_host=2).findings()
    assert "rank 0, rank 1, rank 3 waits in all_reduce number 4: rank 2 called all_reduce number 3" in finding


RAS = """NCCL version 2.24.3 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH
    1         8         4         1         4        32   RUNNING      OK

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 6650
  Rank 9 -- GPU 0 (NVML 1) managed by process 7 on node 172.16.64.212
  Rank 21 has launched up to operation 6649 -- GPU 5 managed by process 8 on node 172.16.64.213

"""


def test_ras_report_names_ranks_that_are_behind(tmp_path: Path) -> None:
    (tmp_path / "ras.txt").write_text(RAS)
    check = check_of(tmp_path)
    dead, behind = check.cluster.reports
    assert "GPU 5" in dead
    assert "cf264af53edbe986: MISMATCH" in behind
    assert "rank 21 (GPU 5 of 172.16.64.213) has launched up to operation 6649" in behind
    assert "rank 9 (GPU 1 of 172.16.64.212)" in behind
    assert sum("communicators of 4 ranks on 4 hosts" in gap for gap in check.cluster.gaps) == 1
    (source,) = check.cluster.sources
    # an empty line and the driver's version come before the report
    assert source.lines - source.understood == 2


def algorithm(gpus: int, shift: int) -> str:
    """Return an algorithm that sends from each GPU to the one `shift` further on, over two channels."""
    rows = []
    for gpu in range(gpus):
        send, receive = (gpu + shift) % gpus, (gpu - shift) % gpus
        blocks = []
        for channel in range(2):
            steps = '<step s="0" type="s"/><step s="1" type="rcs"/><step s="2" type="r"/>'
            blocks.append(f'<tb id="{channel}" send="{send}" recv="{receive}" chan="{channel}">{steps}</tb>')
        blocks.append('<tb id="2" send="-1" recv="-1" chan="0"><step s="0" type="cpy"/></tb>')
        rows.append(f'<gpu id="{gpu}">{"".join(blocks)}</gpu>')
    return f'<algo name="shift" nchannels="2" ngpus="{gpus}" coll="allreduce">{"".join(rows)}</algo>'


@pytest.mark.parametrize(
    ("shift", "gpus_per_nic", "expected"),
    [
        (4, 1, {Route.RAIL: 16}),
        (1, 1, {Route.DOMAIN: 12, Route.CROSSING: 4}),
        (3, 2, {Route.DOMAIN: 4, Route.RAIL: 8, Route.CROSSING: 4}),
    ],
)
def test_algorithms_have_connections_by_place(
    shift: int, gpus_per_nic: int, expected: dict[Route, int], tmp_path: Path
) -> None:
    """Eight GPUs on two hosts, each with a NIC of its own, or one for two."""
    (tmp_path / "algorithm.xml").write_text(algorithm(8, shift))
    (routes,) = check_of(tmp_path, ranks_per_host=4, gpus_per_nic=gpus_per_nic).routes
    assert routes.counts == Counter(expected)


@pytest.mark.parametrize("settings", [{"NCCL_PXN_DISABLE": "1"}, {"NCCL_P2P_PXN_LEVEL": "0"}, {}])
def test_sends_cross_rails_where_pxn_is_off(settings: dict[str, str], tmp_path: Path) -> None:
    dump = flight_recorder(0)
    entry = {"process_group": ["0", ""], "profiling_name": "nccl:send 0->3", "is_p2p": True}
    dump["entries"] = [{**entry, "collective_seq_id": 0, "state": "completed"}]
    (tmp_path / "trace_0").write_text(json.dumps(dump))
    lines = [f"node0:1:2 [0] NCCL INFO {name} set to {value}\n" for name, value in settings.items()]
    if lines:
        (tmp_path / "a.log").write_text("".join(lines))
    check = check_of(tmp_path, ranks_per_host=2)
    assert bool(check.crossing) == bool(settings)
    assert check.routes[0].counts == Counter({Route.CROSSING if settings else Route.PXN: 1})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rank0.json", json.dumps(profile(0))[:-30]),
        ("profile.json", json.dumps({"traceEvents": [], "distributedInfo": {"world_size": 2}})),
        ("rank0.json", json.dumps({"traceEvents": [], "distributedInfo": {"rank": 0, "pg_config": [1]}})),
        ("rank0.json", json.dumps({"traceEvents": []})),
        ("rank0.json", json.dumps({"schema": "1.1.1", "nodes": 7})),
        ("a.xml", '<algo ngpus="two"/>'),
        ("a.xml", algorithm(8, 1).replace('ngpus="8"', 'ngpus="7"')),
        ("rank0.json.gz", gzip.compress(json.dumps(profile(0)).encode())[:-20]),
        ("text.txt", "MICRO\n1\nm -1 1 NONE 0 1 NONE 0 1 ALLTOALL 1600 1\n"),
    ],
)
def test_damaged_files_are_refused(name: str, content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadInput) as error:
        check_of(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("world_size", [2**31, 2**70, -1, "4", None])
def test_world_sizes_that_no_job_has_give_no_group(world_size: object, tmp_path: Path) -> None:
    content = profile(0)
    content["distributedInfo"]["world_size"] = world_size
    (tmp_path / "rank0.json").write_text(json.dumps(content))
    check = check_of(tmp_path, ranks_per_host=2)
    assert set(totals(check)) == {"tp [0, 1]"}
    assert sum("2 calls are of groups" in gap for gap in check.cluster.gaps) == 1


def test_bytes_that_no_call_has_are_refused(tmp_path: Path) -> None:
    content = flight_recorder(0)
    content["entries"][0]["input_sizes"] = [[2**40, 2**40]]
    (tmp_path / "trace_0").write_text(json.dumps(content))
    with pytest.raises(BadInput, match="rank 0: all-reduce"):
        check_of(tmp_path)


def test_damaged_pickle_is_refused(tmp_path: Path) -> None:
    # protocol 2, an empty dict, and an item appended to it
    (tmp_path / "trace_0").write_bytes(b"\x80\x02}K\x01a.")
    with pytest.raises(BadInput, match="trace_0"):
        check_of(tmp_path)
