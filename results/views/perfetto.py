"""timeline.pftrace: tracks as TrackEvents, the protobuf that ui.perfetto.dev and Perfetto's trace processor read.

Source: protos/perfetto/trace of github.com/google/perfetto. The messages below are those of its files as far as they
are used, with the same numbers; readers skip what is missing. Lanes of one track are tracks of the same name and
parent, which Perfetto shows as one.
"""

import json
from itertools import count
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from railyard.results.views.tracks import Slice, Track

_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Trace": {"packet": (1, "*TracePacket")},
    "TracePacket": {
        "timestamp": (8, "uint64"), "trusted_packet_sequence_id": (10, "uint32"), "track_event": (11, "TrackEvent"),
        "interned_data": (12, "InternedData"), "sequence_flags": (13, "uint32"),
        "track_descriptor": (60, "TrackDescriptor"),
    },
    "TrackDescriptor": {
        "uuid": (1, "uint64"), "name": (2, "string"), "parent_uuid": (5, "uint64"),
        "counter": (8, "CounterDescriptor"), "child_ordering": (11, "int32"), "sibling_order_rank": (12, "int32"),
    },
    "CounterDescriptor": {"unit_name": (6, "string")},
    "TrackEvent": {
        "debug_annotations": (4, "*DebugAnnotation"), "type": (9, "int32"), "name_iid": (10, "uint64"),
        "track_uuid": (11, "uint64"), "double_counter_value": (44, "double"), "flow_ids": (47, "*fixed64"),
    },
    "DebugAnnotation": {
        "name_iid": (1, "uint64"), "bool_value": (2, "bool"), "int_value": (4, "int64"), "double_value": (5, "double"),
        "string_value": (6, "string"),
    },
    "InternedData": {"event_names": (2, "*InternedName"), "debug_annotation_names": (3, "*InternedName")},
    "InternedName": {"iid": (1, "uint64"), "name": (2, "string")},
}  # fmt: skip
"""Fields of each message with number and type; a star: a list of them. EventName and DebugAnnotationName are alike, and
enums are numbers."""
# TrackEvent.Type
_BEGIN = 1
_END = 2
_INSTANT = 3
_COUNTER = 4
_EXPLICIT: Final = 3  # TrackDescriptor.ChildTracksOrdering: by rank
# TracePacket.SequenceFlags: of names that later packets refer to by number
_CLEARED = 1
_NEEDED = 2
_SEQUENCE: Final = 1
_VALUES: Final = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
# packets as objects take ten times the memory of their bytes
_KEPT: Final = 10_000


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="railyard_perfetto.proto", package="railyard", syntax="proto2")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, type_name) in fields.items():
            field = message.field.add(name=name, number=number)
            kind = type_name.removeprefix("*")
            field.label = field.LABEL_REPEATED if type_name.startswith("*") else field.LABEL_OPTIONAL
            if kind in _MESSAGES:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".railyard.{kind}"
            else:
                field.type = field.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"railyard.{name}")) for name in _MESSAGES}


_CLASSES: Final = _classes()
Trace: Final = _CLASSES["Trace"]


def encode(root: Track) -> bytes:
    """Return a trace of a track and all below."""
    encoder = _Encoder()
    encoder.add(root)
    return encoder.data()


class _Encoder:
    """Packets of one trace. Parts of it that follow one another are one trace, so only the last packets are objects."""

    def __init__(self) -> None:
        self._trace, self._parts = Trace(), list[bytes]()
        self._uuids = count(1)
        # number of each name, which the format repeats in place of the name
        self._events: dict[str, int] = {}
        self._details: dict[str, int] = {}
        self._packet(_CLEARED)

    def data(self) -> bytes:
        """Return all packets so far."""
        self._parts.append(self._trace.SerializeToString())
        self._trace = Trace()
        return b"".join(self._parts)

    def add(self, track: Track, parent: int = 0, rank: int = 0) -> None:
        """Add a track and all below."""
        uuid = self._describe(track, parent, rank)
        for number, lane in enumerate(track.lanes()):
            track_uuid = self._describe(track, parent, rank) if number else uuid
            for each in lane:
                self._slice(each, track_uuid)
        for at_ns, value in track.samples:
            self._event(at_ns, _COUNTER, uuid).double_counter_value = value
        for place, child in enumerate(track.used()):
            self.add(child, uuid, place)

    def _packet(self, flags: int = _NEEDED) -> Any:
        if len(self._trace.packet) >= _KEPT:
            self._parts.append(self._trace.SerializeToString())
            self._trace = Trace()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = flags
        return packet

    def _describe(self, track: Track, parent: int, rank: int) -> int:
        """Add a descriptor; return its number."""
        descriptor = self._packet().track_descriptor
        uuid = next(self._uuids)
        descriptor.uuid = uuid
        descriptor.name = track.name
        descriptor.child_ordering = _EXPLICIT
        descriptor.sibling_order_rank = rank
        if parent:
            descriptor.parent_uuid = parent
        if track.samples:
            descriptor.counter.unit_name = track.unit
        return uuid

    def _event(self, at_ns: int, kind: int, uuid: int, name: str = "") -> Any:
        packet = self._packet()
        packet.timestamp = at_ns
        event = packet.track_event
        event.type = kind
        event.track_uuid = uuid
        if name:
            event.name_iid = _number(name, self._events, packet.interned_data, "event_names")
        return event

    def _slice(self, each: Slice, uuid: int) -> None:
        event = self._event(each.start_ns, _INSTANT if each.end_ns is None else _BEGIN, uuid, each.name or "?")
        if each.arrows:
            event.flow_ids.extend(each.arrows)
        for name, value in each.details.items():
            noted = event.debug_annotations.add()
            new = self._trace.packet[-1].interned_data
            noted.name_iid = _number(name, self._details, new, "debug_annotation_names")
            for kind, field in _VALUES.items():
                if isinstance(value, kind):
                    setattr(noted, field, value)
                    break
            else:
                noted.string_value = json.dumps(value, ensure_ascii=False, default=str)
        for inner in each.nested:
            self._slice(inner, uuid)
        if each.end_ns is not None:
            self._event(max(each.start_ns, each.end_ns), _END, uuid)


def _number(name: str, numbers: dict[str, int], new: Any, field: str) -> int:
    """Return the number of a name; add one that has none yet to the names that a packet introduces."""
    number = numbers.get(name)
    if number is None:
        number = numbers[name] = len(numbers) + 1
        getattr(new, field).add(iid=number, name=name)
    return number
