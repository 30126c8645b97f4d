"""Chakra's protobuf messages, as its schema has them (mlcommons/chakra, schema/protobuf/et_def.proto).

Built from a table, so that no generated code has to be kept. What the table leaves out (storage details) stays in a
message as unknown fields, and is written back unchanged.
"""

import io
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from railyard.core.errors import BadInput

NODE_TYPES: Final = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE",
)  # fmt: skip
COLLECTIVES: Final = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
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
Node: Final = _class("Node")
Attribute: Final = _class("AttributeProto")


def decode(content: bytes, where: str) -> tuple[Any, list[Any]]:
    """(GlobalMetadata, its Nodes) of an .et file: messages one after the other, each with its length in front."""
    stream = io.BytesIO(content)
    read: list[Any] = []
    try:
        while (message := parse_length_prefixed(Node if read else GlobalMetadata, stream)) is not None:
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


def attributes(message: Any) -> dict[str, Any]:
    """An attribute's value by its name; lists as lists."""
    found: dict[str, Any] = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            found[attribute.name] = list(value.values) if kind.endswith("_list") else value
    return found
