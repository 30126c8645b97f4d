"""Netlink by hand, where pyroute2 is too slow: it decodes every attribute of a dump, which takes 15 times as long
(measure/counters.py), and takes a millisecond to open its socket, which would be a fifth of some recoveries.
"""

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Final

REQUEST_DUMP: Final = 0x1 | 0x300
REQUEST_ACK: Final = 0x1 | 0x4
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
HEADER: Final = struct.Struct("=IHHII")


def send_request(sock: socket.socket, kind: int, body: bytes) -> None:
    """Send one message, and return when the kernel has carried it out. OSError if it refuses."""
    sock.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST_ACK, 0, 0) + body)
    _raise_error(sock.recv(65536), 0)


def _raise_error(data: bytes, offset: int) -> None:
    """Raise OSError if the answer at this offset is an error."""
    code = -struct.unpack_from("=i", data, offset + HEADER.size)[0]
    if code:
        raise OSError(code, errno.errorcode.get(code, str(code)))


def dump(sock: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the bodies of all messages of a dump. OSError if the kernel refuses."""
    sock.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST_DUMP, 0, 0) + body)
    while True:
        data = sock.recv(65536)
        offset = 0
        while offset < len(data):
            length, kind, _, _, _ = HEADER.unpack_from(data, offset)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                _raise_error(data, offset)
            yield data[offset + HEADER.size : offset + length]
            offset += (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
