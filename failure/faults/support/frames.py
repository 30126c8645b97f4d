"""Test frames from one end of a cable to the other, to observe whether they arrive.

They have an EtherType for experiments (IEEE 802, 0x88B5) and a MAC address that no node has, so switch, bridge and GPU
drop them. A packet socket at the far end receives them as they leave the cable, before any other receiver.
"""

import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.plan import End, Link

WAIT_S: Final = 0.2
"""Longer than a frame waits in a shaper behind others."""
_BATCH: Final = 20  # of 60 bytes each: little beside what else is under way
_ETHERTYPE: Final = 0x88B5
_ETH_P_ALL: Final = 3  # of another protocol, frames that a bridge or a switch takes aren't seen
_SO_ATTACH_FILTER: Final = 26  # <asm-generic/socket.h>, which the socket module doesn't name
_ETHERTYPE_FILTER: Final = (  # struct sock_filter: code, jump if true, jump if false, constant
    (0x28, 0, 0, 12), (0x15, 0, 1, _ETHERTYPE),  # half word at 12, the EtherType
    (0x06, 0, 0, 64), (0x06, 0, 0, 0),
)  # fmt: skip
_HEADER: Final = bytes.fromhex("02fe0000000102fe00000002") + struct.pack("!H", _ETHERTYPE)
_KEY_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class FramePath:
    """A way through a cable: a packet socket at its near end and one at its far end."""

    near: socket.socket
    far: socket.socket

    @property
    def reverse(self) -> "FramePath":
        """The other way round."""
        return FramePath(self.far, self.near)

    def send(self, count: int) -> int:
        """Send so many at once; how many were lost. All of them where there is no carrier."""
        key = os.urandom(_KEY_BYTES)  # those of an earlier call that come late don't count
        try:
            for number in range(count):
                self.near.send(_HEADER + key + struct.pack("!I", number) + bytes(34))
        except OSError:  # the interface is down
            return count
        arrived: set[bytes] = set()
        deadline = time.monotonic() + WAIT_S
        while len(arrived) < count and (left := deadline - time.monotonic()) > 0:
            if select.select([self.far], [], [], left)[0]:
                frame, (_, _, direction, *_) = self.far.recvfrom(64)
                if direction != socket.PACKET_OUTGOING and frame[14 : 14 + _KEY_BYTES] == key:
                    arrived.add(frame[14 + _KEY_BYTES :][:4])
        return count - len(arrived)

    def loses_any(self, max_frames: int) -> bool:
        """Send up to so many, a few at a time, until one is lost; whether one was."""
        return any(self.send(min(_BATCH, max_frames - sent)) for sent in range(0, max_frames, _BATCH))


@contextmanager
def open_frames(link: Link) -> Iterator[FramePath]:
    """From a to b."""
    with _packet_socket(link.a) as near, _packet_socket(link.b) as far:
        yield FramePath(near, far)


def _packet_socket(end: End) -> socket.socket:
    with namespaces.inside(end.node):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # receives nothing until it is bound
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _ETHERTYPE_FILTER))
        attached = struct.pack("HP", len(_ETHERTYPE_FILTER), ctypes.addressof(code))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
        sock.bind((end.interface, _ETH_P_ALL))
    return sock
