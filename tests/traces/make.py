"""Makes the traces of this folder anew: `python -m tests.traces.make`. From the formats' public definitions.

| trace          | ranks | what                                                                                  |
|----------------|-------|---------------------------------------------------------------------------------------|
| pipeline.*.et  | 8     | Chakra protobuf: 2 stages x TP 4, two micro-batches; groups by a process_group:init   |
| experts.*.json | 4     | Chakra JSON as its jsonizer writes it: all-to-all, AllGather, barrier                 |
| ring.*.json    | 4     | Chakra JSON as its feeder reads it: sends round a ring, tags                          |
| dlrm.*.json    | 8     | PARAM: all_to_allv with uneven splits, waits, an AllReduce beside, gemm               |
| ddp.json       | 4     | PARAM, one trace for all ranks: groups, broadcast, batched sends                      |
| moe.txt        | 16    | SimAI: TP 4, EP 2, as AICB writes it                                                  |
| micro.txt      | any   | SimAI's micro benchmark                                                               |
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson

from railyard.workloads.traces.formats import chakra as pb

FOLDER = Path(__file__).parent
Message = Any


class Rank:
    """A Chakra rank's nodes, with ids in the order in which they are made."""

    def __init__(self) -> None:
        self.nodes: list[Message] = []

    def add(self, name: str, kind: str, deps: Iterable[int] = (), micros: int = 0, **attributes: Any) -> int:
        node = pb.NodeMessage(id=len(self.nodes), name=name, type=kind, data_deps=list(deps), duration_micros=micros)
        node.attr.append(pb.Attribute(name="is_cpu_op", bool_val=False))
        for key, value in attributes.items():
            kinds = {"comm_size": "int64_val", "comm_type": "int64_val", "pg_name": "string_val"}
            if key == "comm_type":
                value = list(pb.OPS).index(value)
            node.attr.append(pb.Attribute(name=key, **{kinds.get(key, "int32_val"): value}))
        self.nodes.append(node)
        return int(node.id)


def pipeline() -> dict[str, bytes]:
    groups = [{"pg_name": str(s + 1), "ranks": list(range(4 * s, 4 * s + 4)), "group_size": 4} for s in range(2)]
    files = {}
    for number in range(8):
        stage, rank = number // 4, Rank()
        last: tuple[int, ...] = ()
        init = rank.add("## process_group:init ##", "METADATA_NODE")
        rank.nodes[init].inputs.values = str([json.dumps(groups)])
        group: dict[str, Any] = {"pg_name": str(stage + 1), "comm_size": 4 << 20}
        forward = []
        for batch in range(2):
            if stage:
                last = (
                    rank.add("recv", "COMM_RECV_NODE", last, comm_src=number - 4, comm_tag=batch, comm_size=1 << 20),
                )
            comp = rank.add("forward", "COMP_NODE", last, micros=800)
            last = (rank.add("forward_sum", "COMM_COLL_NODE", [comp], comm_type="ALL_REDUCE", **group),)
            if not stage:
                rank.add("send", "COMM_SEND_NODE", last, comm_dst=number + 4, comm_tag=batch, comm_size=1 << 20)
            forward.append(last[0])
        for batch in range(2):
            deps = [*last, forward[batch]]
            if not stage:
                deps.append(
                    rank.add("recv", "COMM_RECV_NODE", comm_src=number + 4, comm_tag=8 + batch, comm_size=1 << 20)
                )
            comp = rank.add("backward", "COMP_NODE", dict.fromkeys(deps), micros=1600)
            last = (rank.add("backward_sum", "COMM_COLL_NODE", [comp], comm_type="ALL_REDUCE", **group),)
            if stage:
                rank.add("send", "COMM_SEND_NODE", last, comm_dst=number - 4, comm_tag=8 + batch, comm_size=1 << 20)
        files[f"pipeline.{number}.et"] = pb.encode(pb.GlobalMetadata(version="0.0.4"), rank.nodes)
    return files


def experts() -> dict[str, bytes]:
    files = {}
    for number in range(4):
        rank = Rank()
        start = rank.add("ready", "COMM_COLL_NODE", comm_type="BARRIER")
        comp = rank.add("gate", "COMP_NODE", [start], micros=200)
        there = rank.add("dispatch", "COMM_COLL_NODE", [comp], comm_type="ALL_TO_ALL", comm_size=8 << 20)
        beside = rank.add("weights", "COMM_COLL_NODE", [start], comm_type="ALL_GATHER", comm_size=1 << 20)
        work = rank.add("experts", "COMP_NODE", [there, beside], micros=900)
        rank.add("combine", "COMM_COLL_NODE", [work], comm_type="ALL_TO_ALL", comm_size=8 << 20)
        metadata = pb.GlobalMetadata(version="0.0.4")
        files[f"experts.{number}.json"] = "".join(MessageToJson(m) for m in (metadata, *rank.nodes)).encode()
    return files


def ring() -> dict[str, bytes]:
    files = {}
    for number in range(4):
        common = {"is_cpu_op": False, "comm_size": 300_000, "comm_priority": 0}
        after, before = (number + 1) % 4, (number - 1) % 4
        graph: list[dict[str, Any]] = [
            {"Id": 10, "Name": "work", "NodeType": 4, "is_cpu_op": False, "runtime": 500, "data_deps": []},
            {**common, "Id": 11, "Name": "on", "NodeType": 5, "comm_src": number, "comm_dst": after, "data_deps": [10]},
            {**common, "Id": 12, "Name": "in", "NodeType": 6, "comm_src": before, "comm_dst": number, "data_deps": []},
            {**common, "Id": 13, "Name": "on", "NodeType": 5, "comm_src": number, "comm_dst": after, "data_deps": [12]},
            {
                **common,
                "Id": 14,
                "Name": "in",
                "NodeType": 6,
                "comm_src": before,
                "comm_dst": number,
                "data_deps": [12],
            },
        ]
        for item in graph:
            if "comm_size" in item:
                item["comm_tag"] = 7 if item["Id"] < 13 else 8
        files[f"ring.{number}.json"] = json.dumps({"workload_graph": graph}, indent=1).encode()
    return files


def dlrm() -> dict[str, bytes]:
    """Rank i sends (i + j) % 5 + 1 thousand floats to rank j."""

    def split(rank: int) -> list[int]:
        return [1000 * ((rank + other) % 5 + 1) for other in range(8)]

    files = {}
    for rank in range(8):
        mine = split(rank)
        exchange = {
            "comms": "all_to_allv", "in_msg_size": sum(mine), "out_msg_size": sum(mine), "in_split": mine,
            "out_split": mine, "dtype": "Float", "world_size": 8,
        }  # fmt: skip
        entries: list[dict[str, Any]] = [
            {"compute": "emb_lookup", "emb_dim": 64, "num_embs": 1000, "batch_size": 512, "num_emb_tables": 8,
             "bag_size": 20, "latency_us": 400.0},
            {**exchange, "req": 0, "markers": ["## forward:embeddings ##"]},
            {"compute": "gemm", "mm_dim": 1024, "dtype": "Float", "count": 4},
            {"comms": "wait", "req": 0, "world_size": 8},
            {"comms": "allreduce", "in_msg_size": 250_000, "out_msg_size": 250_000, "dtype": "Float", "req": 1,
             "world_size": 8},
            {**exchange, "req": 2, "markers": ["## backward:embeddings ##"]},
            {"comms": "wait", "req": 2, "world_size": 8},
            {"comms": "wait", "req": 1, "world_size": 8},
            {"comms": "barrier", "world_size": 8},
        ]  # fmt: skip
        files[f"dlrm.{rank}.json"] = json.dumps(entries, indent=1).encode()
    return files


def ddp() -> dict[str, bytes]:
    entries: list[dict[str, Any]] = [
        {"comms": "init", "pg_id": 0, "global_ranks": [0, 1, 2, 3], "world_size": 4},
        {"comms": "init", "pg_id": 1, "global_ranks": [0, 2], "world_size": 2},
        {"comms": "init", "pg_id": 2, "global_ranks": [1, 3], "world_size": 2},
        {"comms": "broadcast", "in_msg_size": 100_000, "out_msg_size": 100_000, "dtype": "Half", "pg_id": 0, "root": 1},
        {"comms": "reduce_scatter", "in_msg_size": 80_000, "out_msg_size": 40_000, "dtype": "Half", "pg_id": 1},
        {"comms": "reduce_scatter", "in_msg_size": 80_000, "out_msg_size": 40_000, "dtype": "Half", "pg_id": 2},
        {"comms": "send", "in_msg_size": 5000, "out_msg_size": 5000, "dtype": "Long", "src_rank": 0, "dst_rank": 3,
         "use_batch": True},
        {"comms": "recv", "in_msg_size": 5000, "out_msg_size": 5000, "dtype": "Long", "src_rank": 0, "dst_rank": 3,
         "use_batch": True},
        {"comms": "batch_isend_irecv"},
        {"comms": "all_gather", "in_msg_size": 30_000, "out_msg_size": 120_000, "dtype": "BFloat16", "pg_id": 0},
    ]  # fmt: skip
    return {"ddp.json": json.dumps(entries, indent=1).encode()}


def moe() -> dict[str, bytes]:
    head = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 16 "
        "checkpoints: 0 checkpoint_initiates: 0"
    )
    layers = [
        "grad_gather -1 1 NONE 0 1 NONE 0 1 ALLGATHER 6291456 100",
        "grad_param_comm -1 1 NONE 0 1 NONE 0 1 REDUCESCATTER 12582912 100",
        "moe_grad_norm -1 1 NONE 0 1 NONE 0 1 ALLGATHER_DP_EP 4718592 100",
        "embedding_layer -1 622731 ALLREDUCE 12582912 1 NONE 0 1509107 NONE 0 100",
        "attention_column -1 175084 ALLGATHER 12582912 87542 REDUCESCATTER 0 87542 NONE 0 100",
        "attention_row -1 175084 REDUCESCATTER 12582912 87542 ALLGATHER 12582912 87542 NONE 0 100",
        "mlp_moelayer -1 795636 ALLTOALL_EP 25165824 795636 ALLTOALL_EP 25165824 1 NONE 0 100",
        "mlp_moelayer -1 1 ALLTOALL_EP 25165824 1 ALLTOALL_EP 25165824 1 NONE 0 100",
    ]
    text = "\n".join([head, str(len(layers)), *("\t".join(layer.split()) for layer in layers)])
    return {"moe.txt": f"{text}\n".encode()}


def micro() -> dict[str, bytes]:
    layers = [f"micro_test\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLTOALL\t{1 << power}\t1" for power in range(16, 20)]
    return {"micro.txt": "\n".join(["MICRO", str(len(layers)), *layers, ""]).encode()}


def everything() -> dict[str, bytes]:
    """All files, by name."""
    return {**pipeline(), **experts(), **ring(), **dlrm(), **ddp(), **moe(), **micro()}


if __name__ == "__main__":
    for file, content in everything().items():
        (FOLDER / file).write_bytes(content)
