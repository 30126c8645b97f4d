"""Owners of abstract Unix sockets, as the kernel reports them.

SO_PEERCRED needs a process that accepts connections at the other end; a dump of sock_diag does not. Layouts:
linux/unix_diag.h.
"""

import socket
import struct
from collections.abc import Iterator
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_DONE: Final = 3
_ERROR: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBxxIIIII")  # family, protocol, states, inode, what to show, cookie
_SHOW_NAME: Final = 0x1
_SHOW_USER: Final = 0x40  # since Linux 5.3
_MESSAGE_BYTES: Final = 16  # struct unix_diag_msg; attributes follow
_NAME: Final = 0
_USER: Final = 7
_TIMEOUT_S: Final = 1.0


def abstract_sockets(prefix: bytes) -> list[tuple[bytes, int]]:
    """Return name and user of each abstract Unix socket of this network namespace whose name begins with `prefix`.

    The user is the one who made the socket. OSError if the kernel doesn't tell (no `unix_diag`).
    """
    sockets = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        body = _QUERY.pack(socket.AF_UNIX, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_USER, 0, 0)
        netlink.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + body)
        for message in _dumped(netlink):
            attributes = dict(_attributes(message[_MESSAGE_BYTES:]))
            name = attributes.get(_NAME, b"")
            if name.startswith(b"\0" + prefix) and _USER in attributes:
                sockets.append((name[1:], int(struct.unpack("=I", attributes[_USER])[0])))
    return sockets


def _dumped(netlink: socket.socket) -> Iterator[bytes]:
    """Yield the body of each message of a dump."""
    while True:
        data = netlink.recv(1 << 16)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            body = data[_HEADER.size : length]
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError(-struct.unpack_from("=i", body)[0], "the kernel does not tell whose sockets these are")
            yield body
            data = data[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
