"""Messages between the recorder and the processes that run ranks: JSON, and bytes after it that belong to it.

A message is two lengths, then a JSON object, then its bytes. No pickle: the recorder reads what a user's script wrote.
"""

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

_LENGTHS: Final = struct.Struct(">II")
Message = tuple[dict[str, Any], bytes]


def encode(header: dict[str, Any], content: bytes = b"") -> bytes:
    """Return a message as bytes."""
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(content)) + text + content


def receive(connection: socket.socket) -> Message:
    """Wait for one message. EOFError if the other end is gone."""
    text_bytes, content_bytes = _LENGTHS.unpack(_receive_bytes(connection, _LENGTHS.size))
    header = json.loads(_receive_bytes(connection, text_bytes))
    return header, _receive_bytes(connection, content_bytes)


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    chunks: list[bytes] = []
    missing = count
    while missing:
        chunk = connection.recv(min(missing, 1 << 20))
        if not chunk:
            raise EOFError("the recorder is gone")
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


class Buffer:
    """Bytes that have arrived on a connection, and the whole messages in them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, chunk: bytes) -> Iterator[Message]:
        """Add bytes; yield each message that is complete now."""
        self._bytes += chunk
        while len(self._bytes) >= _LENGTHS.size:
            text_bytes, content_bytes = _LENGTHS.unpack_from(self._bytes)
            end_of_text = _LENGTHS.size + text_bytes
            end = end_of_text + content_bytes
            if len(self._bytes) < end:
                return
            header = json.loads(bytes(self._bytes[_LENGTHS.size : end_of_text]))
            content = bytes(self._bytes[end_of_text:end])
            del self._bytes[:end]
            yield header, content


def joined(parts: list[bytes]) -> tuple[list[int], bytes]:
    """Return the lengths of byte strings, and all of them as one."""
    return [len(part) for part in parts], b"".join(parts)


def split(lengths: list[int], content: bytes) -> list[bytes]:
    """Return the byte strings that `joined` has made one."""
    parts: list[bytes] = []
    start = 0
    for length in lengths:
        parts.append(content[start : start + length])
        start += length
    return parts
