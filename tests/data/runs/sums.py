"""A training program of the standard library alone, for the stored run `training`: its plugin and its script.

Rank 0 adds up the gradients of all ranks and sends the sum back. Every rank prints a hash of its weights after each
step. A rank that loses its connection ends, and the job continues from its checkpoint.
"""

import array
import hashlib
import os
import random
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from railyard.core.errors import MissingRequirement
from railyard.workloads.training.program import PORT, TRAINING_PROGRAMS, Job, Launch, TrainingProgram

VALUES = 5000  # in a gradient, of eight bytes each
CHECKPOINT_EVERY = 5  # steps
COMPUTE_S = 0.05
TIMEOUT_S = 10.0


@TRAINING_PROGRAMS.register("sums")
class Sums(TrainingProgram):
    """Sums of integers over plain TCP connections to rank 0."""

    def missing_requirement(self) -> MissingRequirement | None:
        """Return None: Python is enough."""
        return None

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return a process for each GPU."""
        argv = [sys.executable, str(Path(__file__)), str(job.steps), str(job.seed), str(job.folder / "checkpoint")]
        return job.ranks(argv)


def connect(rank: int, ranks: int, address: str) -> list[socket.socket]:
    """Return the connections of rank 0 to all others in the order of their ranks, or of another rank to rank 0."""
    if rank == 0:
        connections: dict[int, socket.socket] = {}
        with socket.create_server((address, PORT)) as server:
            while len(connections) < ranks - 1:
                connection, _ = server.accept()
                connections[connection.recv(1)[0]] = connection
        return [connections[peer] for peer in sorted(connections)]
    while True:
        try:
            connection = socket.create_connection((address, PORT), TIMEOUT_S)
        except ConnectionRefusedError:
            time.sleep(0.05)
            continue
        connection.sendall(bytes([rank]))
        return [connection]


def encode(values: Sequence[int]) -> bytes:
    """Return values as bytes, eight each."""
    return array.array("q", values).tobytes()


def decode(data: bytes) -> list[int]:
    """Return the values of `encode`."""
    return array.array("q", data).tolist()


def receive(connection: socket.socket) -> list[int]:
    """Return the values that a peer sends."""
    connection.settimeout(TIMEOUT_S)
    data = bytearray()
    while len(data) < VALUES * 8:
        chunk = connection.recv(VALUES * 8 - len(data))
        if not chunk:
            raise ConnectionError("a peer has ended")
        data += chunk
    return decode(bytes(data))


def all_reduce(gradient: list[int], rank: int, connections: Sequence[socket.socket]) -> list[int]:
    """Return the sum of all ranks' gradients."""
    if rank:
        connections[0].sendall(encode(gradient))
        return receive(connections[0])
    total = gradient
    for connection in connections:
        total = [a + b for a, b in zip(total, receive(connection), strict=True)]
    for connection in connections:
        connection.sendall(encode(total))
    return total


def main() -> None:
    """Train, from the checkpoint if there is one."""
    steps = int(sys.argv[1])
    seed = sys.argv[2]
    checkpoint = Path(sys.argv[3])
    rank = int(os.environ["RANK"])
    connections = connect(rank, int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"])
    weights = [0] * VALUES
    first_step = 0
    if checkpoint.exists():
        data = checkpoint.read_bytes()
        first_step = int.from_bytes(data[:8], "little")
        weights = decode(data[8:])
    for step in range(first_step + 1, steps + 1):
        time.sleep(COMPUTE_S)
        numbers = random.Random(f"{seed} {step} {rank}")
        gradient = [numbers.randrange(1000) for _ in range(VALUES)]
        total = all_reduce(gradient, rank, connections)
        weights = [a + b for a, b in zip(weights, total, strict=True)]
        print("step", step, hashlib.sha256(encode(weights)).hexdigest()[:16], flush=True)
        if rank == 0 and step % CHECKPOINT_EVERY == 0:
            written = checkpoint.with_suffix(".new")
            written.write_bytes(step.to_bytes(8, "little") + encode(weights))
            written.replace(checkpoint)


if __name__ == "__main__":
    main()
