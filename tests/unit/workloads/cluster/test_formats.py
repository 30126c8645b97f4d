"""Formats beside NCCL's log: topologies as XML, nccl-tests' output; and files that can't be read."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.rails import RailMap, read_rail_map
from railyard.workloads.cluster.reading import read
from tests.unit.workloads.cluster.logs import LoggedCluster

TOPOLOGY = """<system version="1"><cpu numaid="0">
<pci busid="0000:10:00.0" class="0x060400">
 <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0" sm="80"/></pci>
 <pci busid="0000:12:00.0" class="0x030200"><gpu dev="1" sm="80"/></pci>
 <pci busid="0000:13:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="200000"/></nic></pci>
</pci>
<pci busid="0000:20:00.0" class="0x060400">
 <pci busid="0000:21:00.0" class="0x030200"><gpu dev="2" sm="80"/></pci>
 <pci busid="0000:23:00.0" class="0x020700"><nic><net name="mlx5_1" dev="1" speed="200000"/></nic></pci>
</pci></cpu></system>
"""
NCCL_TESTS = """$ mpirun -np 4 ./build/all_reduce_perf -b 1G -e 1G
# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  10 on    node0 device  0 [0x10] NVIDIA A100
#  Rank  1 Group  0 Pid  11 on    node0 device  1 [0x11] NVIDIA A100
#  Rank  2 Group  0 Pid  10 on    node1 device  0 [0x10] NVIDIA A100
#  Rank  3 Group  0 Pid  11 on    node1 device  1 [0x11] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1    46000   23.34   35.01      0    46100   23.29   34.94      0
# Avg bus bandwidth    : 34.9
"""


def read_text(folder: Path, name: str, text: str | bytes) -> RailCheck:
    content = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(content)
    return RailCheck(read([str(folder / name)]), RailMap())


def test_topology_gives_each_gpu_its_nearest_nics(tmp_path: Path) -> None:
    check = read_text(tmp_path, "node0.xml", TOPOLOGY)
    assert [place.nearest for place in check.gpus] == [("mlx5_0",), ("mlx5_0",), ("mlx5_1",)]
    # no connection shows which NICs they use
    assert [(place.nics, place.rails) for place in check.gpus] == [((), (0,)), ((), (0,)), ((), (1,))]
    host = check.cluster.hosts["node0"]
    assert [nic.rate_bps for nic in host.nics.values()] == [200e9, 200e9]
    assert host.gpus[2] == "0000:21:00.0"
    assert check.verdict == "none"


def test_nccl_tests_output_has_ranks_and_bandwidths(tmp_path: Path) -> None:
    check = read_text(tmp_path, "out.txt", NCCL_TESTS)
    (communicator,) = check.cluster.communicators
    assert communicator.hosts == ("node0", "node1")
    (row,) = check.cluster.bandwidths
    assert (row.collective, row.bytes, row.bus_bps) == ("all-reduce", 2**30, 35.01 * 8e9)


@pytest.mark.parametrize(
    ("collective", "expected_gb"),
    # 8 ranks on 2 hosts with 2 NICs of 25 GB/s: a ring gets both; of an all-to-all, 4 of 7 bytes leave the host
    [("all_reduce", 50), ("all_gather", 50), ("alltoall", 50 / 4 * 7 / 4)],
)
def test_busbw_is_compared_with_what_the_nics_allow(tmp_path: Path, collective: str, expected_gb: float) -> None:
    row = NCCL_TESTS.splitlines()[-2]
    text = f"./build/{collective}_perf -g 4\n{LoggedCluster().text()}{row}\n"
    (tmp_path / "out.log").write_text(text)
    check = RailCheck(read([str(tmp_path / "out.log")]), RailMap(), nic_bps=200e9)
    (compared,) = check.bandwidths
    assert compared.expected_bps == pytest.approx(expected_gb * 8e9)
    assert compared.share == pytest.approx(35.01 / expected_gb)


def dump(rank: int, number: int, state: str, name: str = "nccl:all_reduce") -> dict[str, Any]:
    """Return a rank's dump: it has called the collectives of its only group up to `number`, of which the last is so."""
    done = {"process_group": ["0", "default_pg"], "profiling_name": name, "is_p2p": False, "state": "completed"}
    entries = [{**done, "collective_seq_id": turn} for turn in range(1, number)]
    entries.append({**done, "collective_seq_id": number, "state": state})
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.9", "pg_config": groups, "entries": entries, "rank": rank}


@pytest.mark.parametrize("as_pickle", [False, True])
def test_dumps_at_a_hang_name_who_waits_for_whom(tmp_path: Path, as_pickle: bool) -> None:
    for rank in range(4):
        data = dump(rank, 6, "completed") if rank == 2 else dump(rank, 7, "started")
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(data) if as_pickle else json.dumps(data).encode())
    check = RailCheck(read([str(tmp_path)]), RailMap())
    (communicator,) = check.cluster.communicators
    assert [call.number for _, call in sorted(communicator.last_calls.items())] == [7, 7, 6, 7]
    (finding,) = check.findings()
    assert "rank 0, rank 1, rank 3 waits in all_reduce number 7: rank 2 called all_reduce number 6" in finding


def test_ranks_in_different_collectives_are_both_named(tmp_path: Path) -> None:
    for rank in range(4):
        name = "nccl:broadcast" if rank == 3 else "nccl:all_reduce"
        (tmp_path / f"{rank}.json").write_text(json.dumps(dump(rank, 7, "started", name)))
    (finding,) = RailCheck(read([str(tmp_path)]), RailMap()).findings()
    assert "waits in all_reduce number 7: rank 3 waits in broadcast number 7" in finding


def test_inspectors_records_have_ranks_and_bandwidths(tmp_path: Path) -> None:
    lines = []
    for rank in range(4):
        for busbw in (10.0, 30.0, 20.0):
            call = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4096, "coll_busbw_gbs": busbw}
            header = {"id": "0x7f", "rank": rank, "n_ranks": 4, "nnodes": 2}
            metadata = {"hostname": f"node{rank // 2}", "pid": 10 + rank}
            lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": call}))
    check = read_text(tmp_path, "a.log", "\n".join([*lines, lines[0][:60] + '"n_ranks"']))
    (communicator,) = check.cluster.communicators
    assert (communicator.size, communicator.hosts) == (4, ("node0", "node1"))
    assert communicator.calls == {"AllReduce": 12}
    assert [row.measured.bus_bps for row in check.bandwidths] == [20.0 * 8e9]
    assert check.cluster.sources[0].unknown == 1


HOSTFILE = "# of the job\nnode1 slots=2\nnode0 slots=2 max_slots=2\n"
RANKFILE = "rank 0=node1 slot=0\nrank 1=node1 slot=1\nrank 2=node0 slot=0\nrank 3=node0 slot=1\n"
LABELS = "0: node1\n1: node1\n2: node0\n3: node0\n"


@pytest.mark.parametrize("text", [HOSTFILE, RANKFILE, LABELS])
def test_rank_files_place_ranks(tmp_path: Path, text: str) -> None:
    check = read_text(tmp_path, "hosts", text)
    (communicator,) = check.cluster.communicators
    places = [(member.host, member.gpu) for _, member in sorted(communicator.members.items())]
    assert places == [("node1", 0), ("node1", 1), ("node0", 0), ("node0", 1)]
    assert list(check.findings()) == []


def test_rankfile_that_deals_ranks_out_is_named(tmp_path: Path) -> None:
    text = "".join(f"rank {rank}=node{rank % 2} slot={rank // 2}\n" for rank in range(8))
    (finding,) = read_text(tmp_path, "ranks", text).findings()
    assert "0 on node0, 1 on node1" in finding


def test_slurm_topology_gives_leaves(tmp_path: Path) -> None:
    lines = ["SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=node[0-1]", "SwitchName=leaf1 Nodes=node[02,4-5],login"]
    lines.append("SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[0-1] Switches=leaf[0-1]")
    (tmp_path / "topology.conf").write_text("\n".join(lines))
    (tmp_path / "hosts").write_text("node1 slots=1\nnode4 slots=1\n")
    check = RailCheck(read([str(tmp_path)]), RailMap())
    leaves = {name: host.leaf for name, host in check.cluster.hosts.items()}
    second = dict.fromkeys(["node02", "node4", "node5", "login"], "leaf1")
    assert leaves == {"node0": "leaf0", "node1": "leaf0", **second}
    assert any("2 leaf switches" in finding for finding in check.findings())


@pytest.mark.parametrize(("left_by", "verdict"), [(0, "ready"), (1, "crosses")])
def test_graph_tells_which_channels_change_nics(tmp_path: Path, left_by: int, verdict: str) -> None:
    ring = f'<channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="{left_by}"/></channel>'
    text = f'<graphs version="1"><graph id="0" pattern="4">{ring}</graph><graph pattern="1"></graph></graphs>'
    check = read_text(tmp_path, "graph.xml", text)
    assert check.verdict == verdict
    assert len(check.crossing_channels) == left_by


class Runs:
    """An object whose pickle would run a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("it ran",))


def test_an_unnamed_collective_is_compared_with_nothing(tmp_path: Path) -> None:
    row = NCCL_TESTS.splitlines()[-2]
    (tmp_path / "out.log").write_text(f"{LoggedCluster().text()}{row}\n")
    (compared,) = RailCheck(read([str(tmp_path)]), RailMap(), nic_bps=200e9).bandwidths
    assert compared.expected_bps is None


WRONG: dict[str, tuple[str, str | bytes]] = {
    "cut off XML": ("a.xml", TOPOLOGY[:-20]),
    "entities": ("a.xml", '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + TOPOLOGY),
    "no GPU": ("a.xml", '<system version="1"></system>'),
    "a speed that is no number": ("a.xml", TOPOLOGY.replace("200000", "fast")),
    "a list of hosts without end": ("topology.conf", "SwitchName=a Nodes=node[1-]"),
    "too many hosts": ("topology.conf", "SwitchName=a Nodes=node[1-99999999]"),
    "too many slots": ("hosts", "node slots=99999999"),
    "a NIC without number": ("g.xml", '<graphs><graph pattern="4"><channel><net/></channel></graph></graphs>'),
    "a pickle that runs a program": ("trace_0", pickle.dumps({"entries": Runs()})),
    "a cut off pickle": ("trace_0", pickle.dumps(dump(0, 7, "started"))[:-40]),
    "a dump without rank": ("trace", json.dumps({"pg_config": {}, "entries": []})),
    "a dump without entries": ("trace_0", json.dumps({"pg_config": {}})),
    "another program's log": ("a.log", "epoch 1, loss 2.71\n" * 100),
    "no text": ("a.log", bytes(range(256)) * 100),
    "nothing": ("a.log", ""),
}


def test_files_that_cannot_be_read_are_named(tmp_path: Path, data_regression: Any) -> None:
    messages: dict[str, str] = {}
    for case, (name, text) in WRONG.items():
        with pytest.raises(BadInput) as error:
            read_text(tmp_path, name, text)
        messages[case] = str(error.value).replace(str(tmp_path), "FOLDER")
    missing: dict[str, Callable[[], object]] = {
        "no file": lambda: read([str(tmp_path / "missing")]),
        "no map": lambda: _map(tmp_path, "[1, 2]"),
        "no rail": lambda: _map(tmp_path, "{mlx5_0: first}"),
    }
    for case, call in missing.items():
        with pytest.raises(BadInput) as error:
            call()
        messages[case] = str(error.value).replace(str(tmp_path), "FOLDER")
    data_regression.check(messages)


def _map(folder: Path, text: str) -> RailMap:
    (folder / "rails.yaml").write_text(text)
    return read_rail_map(str(folder / "rails.yaml"), "--rails")


def test_a_map_of_the_cabling_may_differ_by_host(tmp_path: Path) -> None:
    assert _map(tmp_path, "{mlx5_0: 0, 3: 1}") == RailMap(by_nic={"mlx5_0": 0, "3": 1})
    assert _map(tmp_path, "{node0: {mlx5_0: 1}}") == RailMap(by_host={"node0": {"mlx5_0": 1}})
