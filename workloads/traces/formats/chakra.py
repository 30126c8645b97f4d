"""Chakra execution traces: a file for each rank, .et (protobuf) or JSON.

JSON comes in two forms: as Chakra's own jsonizer writes it (a GlobalMetadata and Nodes, object after object), and as
its feeder reads it ({"workload_graph": [{"Id": 0, "NodeType": 7, ...}]}). Sizes are as ASTRA-sim takes `comm_size`
(system/collective/Ring.cc): AllGather and gather a rank's own part; AllReduce, ReduceScatter, broadcast and reduce the
whole buffer; all-to-all and scatter a buffer with a part for each rank.
"""

import ast
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed
from google.protobuf.unknown_fields import UnknownFieldSet

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces import common

NODE_TYPES: Final = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE",
)  # fmt: skip
_SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip


def _value_fields() -> dict[str, str]:
    """Return the fields for an attribute's value, in the order of their numbers: for each scalar itself and a list."""
    fields: dict[str, str] = {}
    for scalar in _SCALARS:
        fields[f"{scalar}_val"] = scalar
        fields[f"{scalar}_list"] = f"{scalar.capitalize()}List"
    return fields


_VALUES: Final = _value_fields()
_LISTS: Final = {f"{scalar.capitalize()}List": {"values": f"*{scalar}"} for scalar in _SCALARS}
_MESSAGES: Final[dict[str, dict[str, str]]] = {
    **_LISTS,
    "AttributeProto": {"name": "string", "doc_string": "string", **_VALUES},
    "GlobalMetadata": {"version": "string", "attr": "*AttributeProto"},
    "Header": {"version": "bytes", "attr": "*bytes"},
    "IOInfo": {"values": "string", "shapes": "string", "types": "string"},
    "Node": {
        "id": "uint64", "name": "string", "type": "NodeType", "ctrl_deps": "*uint64", "data_deps": "*uint64",
        "start_time_micros": "uint64", "duration_micros": "uint64", "inputs": "IOInfo", "outputs": "IOInfo",
        "attr": "*AttributeProto",
    },
}  # fmt: skip
"""Messages of et_def.proto, with their fields, numbered in this order from 1, and types; a star: a list of them.

A Header is a GlobalMetadata of which nothing is decoded: its attributes were field 1 in a version of 2023.
"""


def _descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Chakra's et_def.proto. An attribute has one value: any scalar, or a list of such."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    types = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        types.value.add(name=name, number=number)
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, (name, type_name) in enumerate(fields.items(), 1):
            field = message.field.add(name=name, number=number)
            kind = type_name.removeprefix("*")
            field.label = field.LABEL_REPEATED if type_name.startswith("*") else field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = field.Type.Value(f"TYPE_{kind.upper()}")
            else:
                field.type = field.TYPE_ENUM if kind == "NodeType" else field.TYPE_MESSAGE
                field.type_name = f".{file.package}.{kind}"
            if name in _VALUES:
                field.oneof_index = 0
        if message_name == "AttributeProto":
            message.oneof_decl.add(name="value")
    return file


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_descriptor())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))


GlobalMetadata: Final = _message_class("GlobalMetadata")
_Header: Final = _message_class("Header")
NodeMessage: Final = _message_class("Node")
Attribute: Final = _message_class("AttributeProto")


def decode(content: bytes, where: str) -> tuple[Any, list[Any]]:
    """(GlobalMetadata, its Nodes) of an .et file: messages one after the other, each with its length in front.

    BadInput for a file of Chakra's first schema, eg_def.proto of 2022, whose nodes have other fields.
    """
    stream = io.BytesIO(content)
    read: list[Any] = []
    try:
        message = parse_length_prefixed(_Header, stream)
        if message is not None and len(UnknownFieldSet(message)):
            reason = "is no GlobalMetadata: nodes of Chakra's first schema (eg_def.proto) can't be read, convert them"
            raise BadInput(where, "message 0", reason)
        while message is not None:
            read.append(message)
            if len(read) > common.MAX_OPERATIONS:
                raise BadInput(where, "its content", f"has more than {common.MAX_OPERATIONS:,} messages")
            message = parse_length_prefixed(NodeMessage, stream)
    except (DecodeError, EOFError, ValueError, OverflowError) as error:
        # OverflowError: a length of 2^63 bytes
        message_name = f"message {len(read)}"
        raise BadInput(where, message_name, "is cut off or damaged: the file can't be read to its end") from error
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
    values: dict[str, Any] = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            if kind.endswith("_list"):
                value = list(value.values)
            values[attribute.name] = value
    return values


OPS: Final[dict[str, common.Op]] = {
    "ALL_REDUCE": "all-reduce", "REDUCE": "reduce", "ALL_GATHER": "all-gather", "GATHER": "gather",
    "SCATTER": "scatter", "BROADCAST": "broadcast", "ALL_TO_ALL": "all-to-all", "REDUCE_SCATTER": "reduce-scatter",
    "REDUCE_SCATTER_BLOCK": "reduce-scatter", "BARRIER": "barrier",
}  # fmt: skip
"""In the order of the numbers in `comm_type`."""
ALL_RANKS: Final = ("", "0")
"""Names of the group of all ranks, unless the trace defines them (ASTRA-sim takes them so too)."""
MICROSECONDS: Final = 1e6  # in a second

Times = Mapping[int, tuple[int, int]]  # start and duration of nodes in whole microseconds, by their positions
Writer = Callable[[Times], bytes]  # what writes a rank's file again, in its form, with measured times of its nodes


@common.TRACE_FORMATS.register("chakra")
class Chakra(common.TraceFormat):
    """Execution traces of MLCommons Chakra."""

    rank_suffixes = ("et", "json")
    takes_groups = True
    is_general = True

    def recognizes(self, files: common.Files) -> bool:
        """Return whether they are protobuf or JSON."""
        return files.suffix in (".et", ".json")

    def read(self, files: common.Files, on: common.ReplayOn) -> common.Trace:
        """Return the trace, with `on.groups` beside the groups that it defines itself."""
        if files.shared:
            allowed = "must be NAME.<rank>.et or NAME.<rank>.json: a Chakra trace has a file for each rank"
            raise BadInput(files.names[0], files.name, allowed)
        count = len(files.names)
        messages_of_ranks: list[list[Any]] = []
        writers: list[Writer] = []
        for name, content in zip(files.names, files.content, strict=True):
            messages, writer = _read(name, content)
            messages_of_ranks.append(messages)
            writers.append(writer)
        readers: list[_Rank] = []
        ranks: list[tuple[common.Node, ...]] = []
        for rank, messages in enumerate(messages_of_ranks):
            reader = _Rank(rank, count, files.names[rank], on)
            readers.append(reader)
            ranks.append(reader.nodes(messages))

        def rewrite(measured: common.AllMeasured) -> dict[str, bytes]:
            times: list[dict[int, tuple[int, int]]] = [{} for _ in range(count)]
            for (rank, position), operation in measured.items():
                start = round(operation.start_s * MICROSECONDS)
                duration = round(operation.seconds * MICROSECONDS)
                times[rank][position] = start, duration
            written: dict[str, bytes] = {}
            for name, write, times_of_rank in zip(files.names, writers, times, strict=True):
                written[name] = write(times_of_rank)
            return written

        return common.Trace(files.name, tuple(ranks), rewrite, _notes(readers))


def _notes(readers: "list[_Rank]") -> tuple[str, ...]:
    """Say how many nodes have a time that the trace doesn't state, or none."""
    computed_count = sum(reader.computed_nodes for reader in readers)
    untimed_count = sum(reader.untimed_nodes for reader in readers)
    timed_count = sum(reader.timed_nodes for reader in readers) + computed_count
    notes = []
    if computed_count:
        notes.append(f"{computed_count:,} nodes have num_ops and no duration: they take num_ops / (peak x efficiency)")
    if untimed_count and not timed_count:
        # of a recorded trace, roots and other short nodes have no duration
        notes.append(f"{untimed_count:,} computing nodes have neither a duration nor num_ops, and take no time")
    return tuple(notes)


def _read(name: str, content: bytes) -> tuple[list[Any], Writer]:
    if name.endswith(".et"):
        metadata, nodes = decode(content, name)

        def write_et(times: Times) -> bytes:
            written = [NodeMessage.FromString(node.SerializeToString()) for node in nodes]
            for position, (start, duration) in times.items():
                written[position].start_time_micros = start
                written[position].duration_micros = duration
            return encode(metadata, written)

        return nodes, write_et
    objects = _objects(content, name)
    graph = objects[0].get("workload_graph")
    if len(objects) == 1 and isinstance(graph, list):

        def write_graph(times: Times) -> bytes:
            items = list(graph)
            for position, (_, duration) in times.items():
                items[position] = {**items[position], "runtime": duration}
            return json.dumps({**objects[0], "workload_graph": items}, indent=2).encode()

        nodes = [_node_of_graph(item, f"{name}: item {i}") for i, item in enumerate(graph)]
        return nodes, write_graph
    nodes = []
    for i, item in enumerate(objects[1:], 1):
        try:
            nodes.append(ParseDict(item, NodeMessage(), ignore_unknown_fields=True))
        except (ParseError, ValueError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise BadInput(f"{name}: object {i}", "this", f"is no Chakra node: {reason}") from error

    def write_objects(times: Times) -> bytes:
        written = list(objects)
        for position, (start, duration) in times.items():
            item = objects[position + 1]
            # protobuf's JSON allows both names of a field, and has 64-bit numbers as text
            if "duration_micros" in item:
                changes = {"start_time_micros": str(start), "duration_micros": str(duration)}
            else:
                changes = {"startTimeMicros": str(start), "durationMicros": str(duration)}
            written[position + 1] = item | changes
        texts = [json.dumps(item, indent=2) for item in written]
        return "\n".join(texts).encode()

    return nodes, write_objects


def _objects(content: bytes, name: str) -> list[dict[str, Any]]:
    text = common.text_of(content, name).strip()
    objects: list[Any] = []
    # object after object, without commas
    unread = text
    if text.startswith("["):
        objects = common.parse_json(content, name)
        if objects:
            unread = ""
    decoder = json.JSONDecoder()
    while unread:
        try:
            item, end = decoder.raw_decode(unread)
            common.check_printable(unread[:end], item)
        except (ValueError, RecursionError) as error:
            raise BadInput(name, f"object {len(objects)}", "is cut off or no JSON") from error
        objects.append(item)
        unread = unread[end:].lstrip()
    if not objects or not all(isinstance(item, dict) for item in objects):
        raise BadInput(name, "its content", "is no Chakra trace: a GlobalMetadata and Nodes are needed")
    return objects


def _node_of_graph(item: Any, where: str) -> Any:
    if not isinstance(item, dict):
        raise BadInput(where, item, "is no Chakra node: keys and values are needed")
    kind = common.parse_whole(where, "NodeType", item.get("NodeType"), most=2**31 - 1)
    node = NodeMessage(id=common.parse_whole(where, "Id", item.get("Id")), name=str(item.get("Name", "")), type=kind)
    node.duration_micros = common.parse_whole(where, "runtime", item.get("runtime", 0))
    for key, deps in (("data_deps", node.data_deps), ("ctrl_deps", node.ctrl_deps)):
        listed = item.get(key, [])
        if not isinstance(listed, list):
            raise BadInput(where, listed, f"is no {key}: a list of Ids is needed")
        deps.extend(common.parse_whole(where, key, value) for value in listed)
    for key in ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "num_ops"):
        if key in item:
            node.attr.add(name=key, int64_val=common.parse_whole(where, key, item[key]))
    if "pg_name" in item:
        node.attr.add(name="pg_name", string_val=str(item["pg_name"]))
    return node


class _Rank:
    """A rank's nodes, made neutral.

    `timed_nodes`: how many have a duration.
    `computed_nodes`: how many their time by `num_ops`.
    `untimed_nodes`: how many compute, and have no time at all.
    """

    def __init__(self, rank: int, ranks: int, file: str, on: common.ReplayOn) -> None:
        self.rank = rank
        self.ranks = ranks
        self.file = file
        self.flops_per_s = on.flops_per_s
        self.groups = dict(on.groups)
        self.timed_nodes = 0
        self.computed_nodes = 0
        self.untimed_nodes = 0

    def nodes(self, messages: list[Any]) -> tuple[common.Node, ...]:
        """Return the nodes of a file. BadInput says which can't be used."""
        positions: dict[int, int] = {}
        for position, message in enumerate(messages):
            if message.id in positions:
                raise BadInput(self.file, f"node {message.id}", "occurs twice: ids must differ")
            positions[message.id] = position
            if NODE_TYPES.index("METADATA_NODE") == message.type and "process_group" in message.name:
                self._define_groups(message)
        return tuple(self._node(message, positions) for message in messages)

    def _node(self, message: Any, positions: Mapping[int, int]) -> common.Node:
        where = f"{self.file}: node {message.id}"
        for dependency in message.data_deps:
            if dependency not in positions:
                raise BadInput(where, f"node {dependency}", "is what it waits for, but isn't in this file")
        # Chakra's converter gives thread roots a control dependency on a node 0 that it doesn't write, and its
        # feeder follows data dependencies alone: so a control dependency on an absent node orders nothing.
        present = [dependency for dependency in message.ctrl_deps if dependency in positions]
        dependencies = dict.fromkeys((*message.data_deps, *present))
        after = tuple(positions[dependency] for dependency in dependencies)
        return common.Node(where, self._action(message, where), after)

    def _action(self, message: Any, where: str) -> common.Action:
        if not 0 <= message.type < len(NODE_TYPES):
            # an enum may be negative
            allowed = ", ".join(f"{number} {name}" for number, name in enumerate(NODE_TYPES))
            raise BadInput(where, message.type, f"is no node type: allowed are {allowed}")
        kind = NODE_TYPES[message.type]
        attributes = attribute_values(message)
        if kind == "COMM_COLL_NODE":
            return self._call(attributes, where)
        if kind in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
            return self._message(kind == "COMM_SEND_NODE", attributes, where)
        if kind in ("INVALID_NODE", "METADATA_NODE"):
            return common.Gap(0.0)
        return common.Gap(self._seconds(message, attributes, where))

    def _seconds(self, message: Any, attributes: Mapping[str, Any], where: str) -> float:
        """Time of a node that sends nothing: its duration, or else its operations at the GPU's rate."""
        if message.duration_micros:
            self.timed_nodes += 1
            return float(message.duration_micros / MICROSECONDS)
        if "num_ops" in attributes:
            self.computed_nodes += 1
            return common.parse_whole(where, "num_ops", attributes["num_ops"]) / self.flops_per_s
        if NODE_TYPES[message.type] == "COMP_NODE":
            self.untimed_nodes += 1
        return 0.0

    def _message(self, sends: bool, attributes: Mapping[str, Any], where: str) -> common.Action:
        own_key = "comm_src" if sends else "comm_dst"
        peer_key = "comm_dst" if sends else "comm_src"
        if attributes.get(own_key, self.rank) != self.rank:
            raise BadInput(where, attributes[own_key], f"must be its own rank, {self.rank}: it is {own_key}")
        peer = common.check_rank(where, common.parse_whole(where, peer_key, attributes.get(peer_key)), self.ranks)
        if peer == self.rank:
            raise BadInput(where, peer, f"must be another rank: it is {peer_key}")
        size = common.parse_whole(where, "comm_size", attributes.get("comm_size"))
        tag = common.parse_whole(where, "comm_tag", attributes.get("comm_tag", 0))
        if sends:
            return common.Send(peer, size, tag)
        return common.Recv(peer, size, tag)

    def _call(self, attributes: Mapping[str, Any], where: str) -> common.Action:
        number = attributes.get("comm_type")
        names = tuple(OPS)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(names):
            allowed = ", ".join(f"{i} {name}" for i, name in enumerate(names))
            raise BadInput(where, number, f"is no known collective: allowed as comm_type are {allowed}")
        if not all(attributes.get("involved_dim", ())):
            allowed = "can't be placed: dimensions are ASTRA-sim's own, so name the group with pg_name"
            raise BadInput(where, "involved_dim", allowed)
        op = OPS[names[number]]
        name = str(attributes.get("pg_name", attributes.get("comm_group", "")))
        group = self._group(name, where)
        size = 0
        if op != "barrier":
            size = common.parse_whole(where, "comm_size", attributes.get("comm_size"))
        # `comm_size` is one rank's part, or the whole buffer; a call has the gathered data, or a pair's or rank's part
        data = {"all-gather": size * len(group), "all-to-all": size / len(group), "scatter": size / len(group)}
        root = group[0] if op in ("broadcast", "reduce", "gather", "scatter") else None
        return common.Call(op, group, data.get(op, size), root, group_name=name)

    def _group(self, name: str, where: str) -> tuple[int, ...]:
        if name not in self.groups and name not in ALL_RANKS:
            allowed = unknown_name_hint(name, self.groups) if self.groups else "is not known"
            raise BadInput(where, name, f"{allowed}; groups are defined in a process_group:init node or by `groups`")
        group = self.groups.get(name) or tuple(range(self.ranks))
        common.check_rank(f"{where}: group {name}", max(group), self.ranks)
        if self.rank not in group:
            raise BadInput(where, list(group), f"is its group {name!r}, and rank {self.rank} isn't in it")
        return group

    def _define_groups(self, message: Any) -> None:
        """PyTorch's process groups, which a metadata node carries as JSON in a list's printed form."""
        where = f"{self.file}: node {message.id}"
        try:
            defined = json.loads(ast.literal_eval(message.inputs.values)[0])
            pairs = [(str(item["pg_name"]), item["ranks"]) for item in defined]
        except (ValueError, SyntaxError, LookupError, TypeError, RecursionError, MemoryError) as error:
            raise BadInput(where, "inputs.values", "is no list of process groups with pg_name and ranks") from error
        for name, ranks in pairs:
            # the group of all ranks has none listed
            self.groups[name] = ()
            if ranks:
                self.groups[name] = common.ranks_of(f"{where}: group {name}", ranks, 2**31)
