"""PyTorch execution traces, as `torch.profiler.ExecutionTraceObserver` writes them: JSON, a file for each rank.

Their communication is in the nodes `record_param_comms`, one for each call of torch.distributed, with attributes such
as `collective_name`, `in_msg_nelems` and `pg_name` (torch/csrc/profiler/standalone/execution_trace_observer.cpp).
PARAM's traces have the same under other names, and are read in one way with them. Nodes have no times.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.traces import common
from railyard.workloads.traces.formats.param import RankEntries

CALL: Final = "record_param_comms"
GROUPS: Final = "process_group:init"
PARAM_KEYS: Final = {
    "collective_name": "comms",
    "in_msg_nelems": "in_msg_size",
    "out_msg_nelems": "out_msg_size",
    "in_split_size": "in_split",
    "out_split_size": "out_split",
    "dtype": "dtype",
    "pg_name": "pg_id",
}
"""Names of attributes, and what PARAM calls the same."""
REDUCED_IN_PLACE: Final = ("allreduce", "all_reduce", "reduce", "broadcast")
WITHOUT_TENSOR: Final = ("wait", "barrier")
ALL_RANKS: Final = ("", "0")
"""Names of the group of all ranks, unless the trace defines them."""
CONVERTER: Final = "convert it, linked with a profile, by Chakra's chakra_trace_link and chakra_converter"
NOTE: Final = f"PyTorch's execution traces have no times, so computing takes none: for times, {CONVERTER}"


@common.TRACE_FORMATS.register("pytorch")
class PyTorch(common.TraceFormat):
    """Execution traces of PyTorch: collectives, in the order of their calls."""

    rank_suffixes = ("json",)

    def recognizes(self, files: common.Files) -> bool:
        """Return whether it is a JSON object with a schema and nodes."""
        if files.suffix != ".json":
            return False
        text = common.text_of(files.content[0], files.names[0])
        if not text.lstrip().startswith("{") or '"schema"' not in text:
            return False
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            # object after object, as Chakra's jsonizer writes
            return False
        return {"schema", "nodes"} <= set(data)

    def read(self, files: common.Files, on: common.ReplayOn) -> common.Trace:
        """Return the trace. BadInput if it isn't a file for each rank, or has calls that can't be read."""
        if files.shared:
            allowed = "is a PyTorch execution trace, which has a file for each rank: name them NAME.<rank>.json"
            raise BadInput(files.names[0], files.name, allowed)
        count = len(files.names)
        ranks = []
        for rank, (name, content) in enumerate(zip(files.names, files.content, strict=True)):
            listed = list(_entries(content, name, count))
            places = [place for place, _ in listed]
            reader = RankEntries(rank, count, name, on.flops_per_s, places)
            ranks.append(reader.nodes([entry for _, entry in listed]))

        def rewrite(measured: common.AllMeasured) -> dict[str, bytes]:
            """Write a file of its own for each rank."""
            # the trace's nodes have no place for a time
            rows: defaultdict[int, list[dict[str, object]]] = defaultdict(list)
            for (rank, position), times in measured.items():
                place = ranks[rank][position].where
                rows[rank].append({"call": place, "start_s": times.start_s, "seconds": times.seconds})
            return {f"{files.name}.{rank}.measured.json": json.dumps(row).encode() for rank, row in rows.items()}

        return common.Trace(files.name, tuple(ranks), rewrite, (NOTE,))


def _entries(content: bytes, name: str, ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what PARAM's trace would have for each group and call, with its place in the file."""
    data = common.parse_json(content, name)
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise BadInput(name, "nodes", "is no list of nodes: a PyTorch execution trace has one")
    groups = set()
    for node in nodes:
        if GROUPS in str(node.get("name")):
            for place, entry in _groups(node, f"{name}: node {node.get('id')}", ranks):
                groups.add(entry["pg_id"])
                yield place, entry
    for node in nodes:
        if node.get("name") != CALL:
            continue
        place = f"{name}: node {node.get('id')}"
        entry = _call(node, place)
        if entry.get("pg_id") in ALL_RANKS and entry["pg_id"] not in groups:
            del entry["pg_id"]
        if entry["comms"] != "init":
            yield place, entry


def _groups(node: Mapping[str, Any], place: str, ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield an `init` for each process group; one without a list of ranks has them all."""
    try:
        for group in json.loads(_inputs(node)[0]):
            members = group["ranks"] or list(range(ranks))
            yield place, {"comms": "init", "pg_id": str(group["pg_name"]), "global_ranks": members}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadInput(place, "its input", "is no list of process groups with pg_name and ranks") from error


def _inputs(node: Mapping[str, Any]) -> list[Any]:
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return values if isinstance(values, list) else []


def _call(node: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a call as PARAM has it. BadInput if its attributes don't state all that it sends."""
    entry = _attributes(node, place)
    name = str(entry.get("comms", "")).lower()
    if not name:
        raise BadInput(place, "collective_name", f"is missing, as in traces of older versions: {CONVERTER}")
    if "send" in name or "recv" in name:
        raise BadInput(place, name, f"has no peer in a PyTorch execution trace: {CONVERTER}")
    entry["comms"] = name
    if "pg_id" in entry:
        entry["pg_id"] = str(entry["pg_id"])
    if name in REDUCED_IN_PLACE and "in_msg_size" in entry:
        entry.setdefault("out_msg_size", entry["in_msg_size"])
    for key in ("in_split", "out_split"):
        if key in entry:
            entry[key] = _split(entry[key], place, key)
    # a call's tensor comes first, then its request, which the call's `wait` has too; a tensor alone is no request
    inputs = _inputs(node)
    position = 0 if name in WITHOUT_TENSOR else 1
    if len(inputs) > position + 1:
        entry["req"] = json.dumps(inputs[position])
    return entry


def _attributes(node: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the attributes of a call under the names that PARAM gives them."""
    attributes = node.get("attrs")
    if not isinstance(attributes, list) or not all(isinstance(item, dict) for item in attributes):
        raise BadInput(place, "attrs", "is no list of attributes")
    values = {str(item.get("name")): item.get("value") for item in attributes}
    return {key: values[name] for name, key in PARAM_KEYS.items() if name in values}


def _split(value: object, place: str, key: str) -> list[Any]:
    """Return a list that an attribute holds as text."""
    # PyTorch writes `...` in place of the end of a long list
    try:
        numbers = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        numbers = None
    if not isinstance(numbers, list):
        raise BadInput(place, value, f"is no {key}: PyTorch has shortened it, or the file is damaged")
    return numbers
