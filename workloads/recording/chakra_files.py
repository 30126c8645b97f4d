"""A trace as Chakra's JSON, one file for each rank, in the form of Chakra's own jsonizer.

Chakra has no collectives with splits, and no root other than a group's first rank: such a trace has no Chakra files.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from railyard.workloads.traces.formats import chakra, recorded

VERSION: Final = "0.0.4"
_NUMBER_OF_OP: Final = {op: number for number, op in reversed([*enumerate(chakra.OPS.values())])}


def reason_against(data: Mapping[str, Any]) -> str:
    """Return why a trace can't be written as Chakra's; "" if it can. `data`: of the trace file."""
    for program in data["programs"]:
        for operation in program["operations"]:
            if operation["op"] in recorded.WITH_SPLITS:
                return f"Chakra has no {operation['op']}"
            if operation.get("root"):
                return f"Chakra has no root of a {operation['op']} but the first rank"
    return ""


def chakra_files(name: str, data: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files by their names. `data`: of the trace file."""
    files: dict[str, bytes] = {}
    for program in data["programs"]:
        for rank in program["ranks"]:
            groups: dict[str, list[int]] = {}
            for communicator, listed in data["communicators"].items():
                for group in listed:
                    if rank in group:
                        groups[communicator] = group
            objects = [{"version": VERSION}, _groups_node(groups)]
            for position, operation in enumerate(program["operations"]):
                objects.append(_node(position + 1, rank, operation, groups))
            files[f"{name}.{rank}.json"] = "\n".join(json.dumps(item) for item in objects).encode()
    return files


def _groups_node(groups: Mapping[str, list[int]]) -> dict[str, Any]:
    defined = [{"pg_name": name, "ranks": ranks} for name, ranks in groups.items()]
    values = str([json.dumps(defined)])
    return {"id": "0", "name": "## process_group:init ##", "type": "METADATA_NODE", "inputs": {"values": values}}


def _node(number: int, rank: int, operation: Mapping[str, Any], groups: Mapping[str, list[int]]) -> dict[str, Any]:
    """Return the node of an operation. Operations are numbered from 1, after the node of the groups."""
    op = operation["op"]
    node: dict[str, Any] = {
        "id": str(number),
        "name": op,
        "dataDeps": [str(position + 1) for position in operation["after"]],
    }
    attributes: list[dict[str, Any]] = []
    if op == "compute":
        node["type"] = "COMP_NODE"
        attributes.append(_integer("num_ops", operation["flops"]))
    elif op in ("send", "recv"):
        node["type"] = "COMM_SEND_NODE" if op == "send" else "COMM_RECV_NODE"
        peer = groups[operation["communicator"]][operation["peer"]]
        ends = {"comm_src": rank, "comm_dst": peer} if op == "send" else {"comm_src": peer, "comm_dst": rank}
        fields = {**ends, "comm_tag": operation.get("tag", 0), "comm_size": operation["bytes"]}
        attributes += [_integer(key, value) for key, value in fields.items()]
    else:
        node["type"] = "COMM_COLL_NODE"
        attributes.append(_integer("comm_type", _NUMBER_OF_OP[op]))
        attributes.append(_integer("comm_size", _comm_size(operation, len(groups[operation["communicator"]]))))
        attributes.append({"name": "pg_name", "stringVal": operation["communicator"]})
    return {**node, "attr": attributes}


def _integer(name: str, value: int) -> dict[str, Any]:
    return {"name": name, "int64Val": str(value)}


def _comm_size(operation: Mapping[str, Any], ranks: int) -> int:
    """Return bytes as Chakra counts them: AllGather a rank's own part, all-to-all and scatter a part for each rank."""
    size = int(operation.get("bytes", 0))
    if operation["op"] == "all-gather":
        return size // ranks
    if operation["op"] in ("all-to-all", "scatter"):
        return size * ranks
    return size
