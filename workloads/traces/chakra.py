"""Chakra execution traces: a file for each rank, .et (protobuf) or JSON.

JSON comes in two forms: as Chakra's own jsonizer writes it (a GlobalMetadata and Nodes, object after object), and as
its feeder reads it ({"workload_graph": [{"Id": 0, "NodeType": 7, ...}]}). Sizes are as ASTRA-sim takes `comm_size`
(system/collective/Ring.cc): AllGather and gather a rank's own part; AllReduce, ReduceScatter, broadcast and reduce the
whole buffer; all-to-all and scatter a buffer with a part for each rank.
"""

import ast
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces.common import (
    Action,
    Call,
    Files,
    Gap,
    Measured,
    Node,
    NodeId,
    Op,
    Recv,
    Send,
    Trace,
    check_rank,
    parse_json,
    parse_whole,
    ranks_of,
)

NODE_TYPES: Final = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE",
)  # fmt: skip
_SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_PACKAGE: Final = "ChakraProtoMsg"
_FieldTable = Iterable[tuple[str, int, str]]
_MESSAGES: Final[dict[str, tuple[tuple[str, int, str], ...]]] = {
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "*AttributeProto")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "*uint64"),
        ("data_deps", 5, "*uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "*AttributeProto"),
    ),
}


def _field(name: str, number: int, kind: str) -> descriptor_pb2.FieldDescriptorProto:
    """`kind`: a scalar, a message or NodeType; with a star, a list of them."""
    field = descriptor_pb2.FieldDescriptorProto(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in _SCALARS:
        field.type = field.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_ENUM if kind == "NodeType" else field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    return field


def _attribute() -> descriptor_pb2.DescriptorProto:
    """A name and one value: any scalar, or a list of such; numbered in the order of `_SCALARS`, from 3."""
    attribute = descriptor_pb2.DescriptorProto(name="AttributeProto")
    attribute.field.extend([_field("name", 1, "string"), _field("doc_string", 2, "string")])
    attribute.oneof_decl.add(name="value")
    for i, scalar in enumerate(_SCALARS):
        for field in (
            _field(f"{scalar}_val", 3 + 2 * i, scalar),
            _field(f"{scalar}_list", 4 + 2 * i, f"{scalar.capitalize()}List"),
        ):
            field.oneof_index = 0
            attribute.field.append(field)
    return attribute


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    types = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        types.value.add(name=name, number=number)
    for scalar in _SCALARS:
        values = file.message_type.add(name=f"{scalar.capitalize()}List")
        values.field.append(_field("values", 1, f"*{scalar}"))
    file.message_type.append(_attribute())
    for name, fields in _MESSAGES.items():
        file.message_type.add(name=name).field.extend([_field(*field) for field in fields])
    return file


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


GlobalMetadata: Final = _class("GlobalMetadata")
NodeMessage: Final = _class("Node")
Attribute: Final = _class("AttributeProto")


def decode(content: bytes, where: str) -> tuple[Any, list[Any]]:
    """(GlobalMetadata, its Nodes) of an .et file: messages one after the other, each with its length in front."""
    stream = io.BytesIO(content)
    read: list[Any] = []
    try:
        while (message := parse_length_prefixed(NodeMessage if read else GlobalMetadata, stream)) is not None:
            read.append(message)
    except (DecodeError, EOFError, ValueError) as error:
        what = f"message {len(read)}"
        raise BadInput(where, what, "is cut off or damaged: the file can't be read to its end") from error
    if not read:
        raise BadInput(where, "nothing", "is in this file: a Chakra trace begins with its GlobalMetadata")
    return read[0], read[1:]


def encode(metadata: Any, nodes: Iterable[Any]) -> bytes:
    """An .et file."""
    stream = io.BytesIO()
    for message in (metadata, *nodes):
        serialize_length_prefixed(message, stream)
    return stream.getvalue()


def attribute_values(message: Any) -> dict[str, Any]:
    """An attribute's value by its name; lists as lists."""
    found: dict[str, Any] = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            found[attribute.name] = list(value.values) if kind.endswith("_list") else value
    return found


Form = Literal["et", "objects", "graph"]
Groups = Mapping[str, tuple[int, ...]]
OPS: Final[dict[str, Op]] = {
    "ALL_REDUCE": "all-reduce", "REDUCE": "reduce", "ALL_GATHER": "all-gather", "GATHER": "gather",
    "SCATTER": "scatter", "BROADCAST": "broadcast", "ALL_TO_ALL": "all-to-all", "REDUCE_SCATTER": "reduce-scatter",
    "REDUCE_SCATTER_BLOCK": "reduce-scatter", "BARRIER": "barrier",
}  # fmt: skip
COLLECTIVES: Final = tuple(OPS)
"""In the order of the numbers in `comm_type`."""
ALL_RANKS: Final = ("", "0")
"""Names of the group of all ranks, unless the trace defines them (ASTRA-sim takes them so too)."""
METADATA: Final = NODE_TYPES.index("METADATA_NODE")
MICROSECONDS: Final = 1e6  # in a second


@dataclass(frozen=True)
class _File:
    """A rank's file: nodes as messages, and what is needed to write it again: its form, and its own objects."""

    form: Form
    metadata: Any
    nodes: list[Any]
    objects: list[dict[str, Any]]


def read_chakra(files: Files, groups: Groups) -> Trace:
    """The trace. `groups`: ranks of process groups that the trace names but doesn't define. BadInput says where."""
    if files.shared:
        allowed = "must be NAME.<rank>.et or NAME.<rank>.json: a Chakra trace has a file for each rank"
        raise BadInput(files.names[0], files.name, allowed)
    read = [_read(name, content) for name, content in zip(files.names, files.content, strict=True)]
    ranks = tuple(
        _Rank(rank, len(read), name, groups).nodes(file.nodes)
        for rank, (name, file) in enumerate(zip(files.names, read, strict=True))
    )
    return Trace(files.name, "chakra", ranks, partial(_rewrite, files.names, read))


def _read(name: str, content: bytes) -> _File:
    if name.endswith(".et"):
        metadata, nodes = decode(content, name)
        return _File("et", metadata, nodes, [])
    objects = _objects(content, name)
    if len(objects) == 1 and isinstance(objects[0].get("workload_graph"), list):
        graph = objects[0]["workload_graph"]
        return _File(
            "graph", objects[0], [_node_of_graph(item, f"{name}: item {i}") for i, item in enumerate(graph)], graph
        )
    nodes = [_message(item, f"{name}: object {i}") for i, item in enumerate(objects) if i]
    return _File("objects", objects[0], nodes, objects)


def _objects(content: bytes, name: str) -> list[dict[str, Any]]:
    """JSON objects one after the other, or in a list."""
    try:
        text = content.decode().strip()
    except UnicodeDecodeError as error:
        raise BadInput(name, "its content", "is no JSON in UTF-8") from error
    found: list[Any] = parse_json(content, name) if text.startswith("[") else []
    decoder, at = json.JSONDecoder(), 0
    while not text.startswith("[") and at < len(text):
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise BadInput(name, f"object {len(found)}", "is cut off or no JSON") from error
        found.append(item)
        at += len(text[at:]) - len(text[at:].lstrip())
    if not found or not all(isinstance(item, dict) for item in found):
        raise BadInput(name, "its content", "is no Chakra trace: a GlobalMetadata and Nodes are needed")
    return found


def _message(item: Any, where: str) -> Any:
    try:
        return ParseDict(item, NodeMessage(), ignore_unknown_fields=True)
    except ParseError as error:
        raise BadInput(where, "this", f"is no Chakra node: {' '.join(str(error).split())}") from error


def _node_of_graph(item: Any, where: str) -> Any:
    """A node of the feeder's flat form."""
    if not isinstance(item, dict):
        raise BadInput(where, item, "is no Chakra node: keys and values are needed")
    kind = parse_whole(where, "NodeType", item.get("NodeType"))
    node = NodeMessage(id=parse_whole(where, "Id", item.get("Id")), name=str(item.get("Name", "")), type=kind)
    node.duration_micros = parse_whole(where, "runtime", item.get("runtime", 0))
    for key, deps in (("data_deps", node.data_deps), ("ctrl_deps", node.ctrl_deps)):
        listed = item.get(key, [])
        if not isinstance(listed, list):
            raise BadInput(where, listed, f"is no {key}: a list of Ids is needed")
        deps.extend(parse_whole(where, key, value) for value in listed)
    for key in ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag"):
        if key in item:
            node.attr.append(Attribute(name=key, int64_val=parse_whole(where, key, item[key])))
    if "pg_name" in item:
        node.attr.append(Attribute(name="pg_name", string_val=str(item["pg_name"])))
    return node


class _Rank:
    """A rank's nodes, made neutral."""

    def __init__(self, rank: int, ranks: int, file: str, groups: Groups) -> None:
        self.rank, self.ranks, self.file = rank, ranks, file
        self.groups = dict(groups)

    def nodes(self, messages: list[Any]) -> tuple[Node, ...]:
        positions: dict[int, int] = {}
        for position, message in enumerate(messages):
            if message.id in positions:
                raise BadInput(self.file, f"node {message.id}", "occurs twice: ids must differ")
            positions[message.id] = position
            self._define_groups(message)
        return tuple(self._node(message, positions) for message in messages)

    def _node(self, message: Any, positions: Mapping[int, int]) -> Node:
        where = f"{self.file}: node {message.id}"
        after = []
        for dependency in dict.fromkeys((*message.data_deps, *message.ctrl_deps)):
            if dependency not in positions:
                raise BadInput(where, f"node {dependency}", "is what it waits for, but isn't in this file")
            after.append(positions[dependency])
        return Node(where, self._action(message, where), tuple(after))

    def _action(self, message: Any, where: str) -> Action:
        kind = NODE_TYPES[message.type] if message.type < len(NODE_TYPES) else None
        attributes = attribute_values(message)
        if kind is None:
            known = ", ".join(f"{i} {name}" for i, name in enumerate(NODE_TYPES))
            raise BadInput(where, message.type, f"is no node type: allowed are {known}")
        if kind == "COMM_COLL_NODE":
            return self._call(attributes, where)
        if kind in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
            return self._message(kind == "COMM_SEND_NODE", attributes, where)
        is_untimed = kind in ("INVALID_NODE", "METADATA_NODE")
        return Gap(0.0 if is_untimed else message.duration_micros / MICROSECONDS)

    def _message(self, sends: bool, attributes: Mapping[str, Any], where: str) -> Action:
        own_key, peer_key = ("comm_src", "comm_dst") if sends else ("comm_dst", "comm_src")
        if attributes.get(own_key, self.rank) != self.rank:
            raise BadInput(where, attributes[own_key], f"must be its own rank, {self.rank}: it is {own_key}")
        peer = check_rank(where, parse_whole(where, peer_key, attributes.get(peer_key)), self.ranks)
        if peer == self.rank:
            raise BadInput(where, peer, f"must be another rank: it is {peer_key}")
        size = parse_whole(where, "comm_size", attributes.get("comm_size"))
        tag = parse_whole(where, "comm_tag", attributes.get("comm_tag", 0))
        return Send(peer, size, tag) if sends else Recv(peer, size, tag)

    def _call(self, attributes: Mapping[str, Any], where: str) -> Action:
        number = attributes.get("comm_type")
        known = COLLECTIVES
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(known):
            allowed = ", ".join(f"{i} {name}" for i, name in enumerate(known))
            raise BadInput(where, number, f"is no known collective: allowed as comm_type are {allowed}")
        if not all(attributes.get("involved_dim", ())):
            allowed = "can't be placed: dimensions are ASTRA-sim's own, so name the group with pg_name"
            raise BadInput(where, "involved_dim", allowed)
        op = OPS[known[number]]
        name = str(attributes.get("pg_name", attributes.get("comm_group", "")))
        group = self._group(name, where)
        size = 0 if op == "barrier" else parse_whole(where, "comm_size", attributes.get("comm_size"))
        data = {"all-gather": size * len(group), "all-to-all": size / len(group), "scatter": size / len(group)}
        root = group[0] if op in ("broadcast", "reduce", "gather", "scatter") else None
        return Call(op, group, data.get(op, size), root, group_name=name)

    def _group(self, name: str, where: str) -> tuple[int, ...]:
        if name in self.groups:
            group = self.groups[name] or tuple(range(self.ranks))
            check_rank(f"{where}: group {name}", max(group), self.ranks)
        elif name in ALL_RANKS:
            group = tuple(range(self.ranks))
        else:
            allowed = unknown_name_hint(name, self.groups) if self.groups else "is not known"
            raise BadInput(where, name, f"{allowed}; groups are defined in a process_group:init node or by `groups`")
        if self.rank not in group:
            raise BadInput(where, list(group), f"is its group {name!r}, and rank {self.rank} isn't in it")
        return group

    def _define_groups(self, message: Any) -> None:
        """PyTorch's process groups, which a metadata node carries as JSON in a list's printed form."""
        if message.type != METADATA or "process_group" not in message.name:
            return
        where = f"{self.file}: node {message.id}"
        try:
            listed = ast.literal_eval(message.inputs.values)
            defined = json.loads(listed[0])
            pairs = [(str(item["pg_name"]), item["ranks"]) for item in defined]
        except (ValueError, SyntaxError, LookupError, TypeError, RecursionError, MemoryError) as error:
            raise BadInput(where, "inputs.values", "is no list of process groups with pg_name and ranks") from error
        for name, ranks in pairs:
            self.groups[name] = ranks_of(f"{where}: group {name}", ranks, 2**31) if ranks else ()


def read_groups(content: bytes, where: str) -> dict[str, tuple[int, ...]]:
    """ASTRA-sim's file of communicator groups: {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}."""
    data = parse_json(content, where)
    if not isinstance(data, dict):
        raise BadInput(where, "its content", 'must be {"NAME": [RANK, ...]}')
    return {name: ranks_of(f"{where}: group {name}", ranks, 2**31) for name, ranks in data.items()}


def _rewrite(names: tuple[str, ...], read: list[_File], measured: Mapping[NodeId, Measured]) -> dict[str, bytes]:
    """The same files with start and duration, in whole microseconds, of everything that was measured."""
    return {name: _rewritten(file, rank, measured) for rank, (name, file) in enumerate(zip(names, read, strict=True))}


def _rewritten(file: _File, rank: int, measured: Mapping[NodeId, Measured]) -> bytes:
    times = {
        position: (round(found.start_s * MICROSECONDS), round(found.seconds * MICROSECONDS))
        for position in range(len(file.nodes))
        if (found := measured.get((rank, position))) is not None
    }
    if file.form == "et":
        nodes = [NodeMessage.FromString(node.SerializeToString()) for node in file.nodes]
        for position, (start, duration) in times.items():
            nodes[position].start_time_micros, nodes[position].duration_micros = start, duration
        return encode(file.metadata, nodes)
    if file.form == "graph":
        items = [{**item, "runtime": times[i][1]} if i in times else item for i, item in enumerate(file.objects)]
        return json.dumps({**file.metadata, "workload_graph": items}, indent=2).encode()
    objects = [file.metadata] + [_with_times(item, times.get(i)) for i, item in enumerate(file.objects[1:])]
    return "\n".join(json.dumps(item, indent=2) for item in objects).encode()


def _with_times(item: dict[str, Any], times: tuple[int, int] | None) -> dict[str, Any]:
    """Under the names that the object has (protobuf's JSON allows both); 64-bit numbers are text there."""
    if times is None:
        return item
    is_snake_case = "duration_micros" in item
    start, duration = (
        ("start_time_micros", "duration_micros") if is_snake_case else ("startTimeMicros", "durationMicros")
    )
    return {**item, start: str(times[0]), duration: str(times[1])}
