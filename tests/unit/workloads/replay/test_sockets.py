"""A replay's connections, over the loopback."""

import socket
import struct
from contextlib import suppress

import pytest

from railyard.workloads.replay.worker import _configured


def test_unsent_bytes_are_closed_with_their_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, _configured(socket.socket()) as sender:
        linger = sender.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.calcsize("ii"))
        assert struct.unpack("ii", linger) == (1, 0)
        sender.connect_ex(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            with suppress(BlockingIOError):
                while sender.send(bytes(65536)):
                    pass
            sender.close()
            with pytest.raises(ConnectionResetError):
                _read_all(receiver)


def _read_all(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass
