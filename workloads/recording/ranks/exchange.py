"""Small tensors of a rank, really exchanged with the other ranks that are run.

Scripts send sizes, counts, objects and losses to each other and go on by what they receive. A rank posts its part of
such an operation, and takes the parts of others when it waits for the operation. Ranks that aren't run have no part:
where theirs is needed the rank's own takes its place.

The recorder passes the parts on, not a TCPStore: it then knows at any time which rank waits for which, and can name
them when none of them can go on; and no port is opened.
"""

import socket
from collections.abc import Sequence
from typing import Any

from railyard.workloads.recording.messages import encode, joined, receive, split

Parts = dict[int, list[bytes]]  # by rank


class Exchange:
    """A rank's connection to the recorder."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def tell(self, kind: str, content: bytes = b"", **fields: Any) -> None:
        """Send a message that has no answer."""
        self._connection.sendall(encode({"kind": kind, **fields}, content))

    def post(self, key: str, signature: str, parts: list[bytes]) -> None:
        """Give the recorder this rank's part of an operation.

        `key`: names the operation, the same on all of its ranks.
        `signature`: in words, what all ranks must agree on.
        """
        lengths, content = joined(parts)
        self.tell("post", content, key=key, signature=signature, lengths=lengths)

    def take(self, key: str, ranks: Sequence[int], name: str, is_required: bool = False) -> Parts:
        """Wait for the parts of `ranks`, of those that are run; return them by rank.

        `is_required`: a rank that isn't run is started, as there is nothing to take in place of its part.
        """
        self.tell("take", key=key, ranks=list(ranks), name=name, required=is_required)
        header, content = receive(self._connection)
        parts: Parts = {}
        start = 0
        for rank, lengths in header["parts"]:
            end = start + sum(lengths)
            parts[rank] = split(lengths, content[start:end])
            start = end
        return parts
