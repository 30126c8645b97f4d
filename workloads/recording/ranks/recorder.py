"""The operations of one rank, in the order in which its script called them, and what each of them waits for.

Order on a GPU is that of its streams, so dependencies are kept by stream. Computing waits for the last computing of its
stream and for what its stream was made to wait for. A collective begins when its stream comes to it, and runs on the
communicator's own stream: later work waits for it only after `wait`. So an overlap that a script asks for (DDP's
buckets, FSDP's prefetch on a second stream) is one in the trace.

Nothing here needs PyTorch.
"""

from collections import Counter
from typing import Any, Final

MAX_OPERATIONS: Final = 200_000  # of a rank, before its script is stopped
DEFAULT_STREAM: Final = 0
Positions = tuple[int, ...]


class TooManyOperations(Exception):
    """A rank has `MAX_OPERATIONS` operations, and its iterations have no end."""


class Recorder:
    """Operations of a rank so far.

    `operations`: dictionaries with `op`, `after` (positions) and the keys of the operation.
    `steps`: for each call of an optimizer's `step`, how many operations there were after it.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.operations: list[dict[str, Any]] = []
        self.communicators: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.steps_of_optimizer: Counter[int] = Counter()
        self.is_open = True
        self._index_of_name: dict[str, int] = {}
        self._stream = DEFAULT_STREAM
        self._waited_by_stream: dict[int, Positions] = {}
        self._waited_by_host: Positions = ()
        self._outstanding: dict[int, None] = {}
        self._flops = 0

    def define_communicator(self, ranks: list[int], name: str, description: str, place: str, backend: str) -> None:
        """Add a communicator, also one that this rank isn't in: all ranks make all of them in the same order.

        `name`: PyTorch's, "" if this rank isn't in it. `place`: the lines of code that made it.
        """
        if name:
            self._index_of_name[name] = len(self.communicators)
        self.communicators.append(
            {"ranks": ranks, "description": description, "place": place, "backend": backend, "member": bool(name)}
        )

    def add(self, op: str, group: str, **fields: Any) -> int | None:
        """Add a call of `group`; return its position, or None if there is nothing to send: a group of one rank."""
        if not self.is_open:
            return None
        index = self._index_of_name[group]
        if len(self.communicators[index]["ranks"]) == 1:
            return None
        self._flush_computing()
        position = self._append({"op": op, "communicator": index, **fields})
        self._outstanding[position] = None
        return position

    def wait(self, position: int | None) -> None:
        """Let the current stream wait for an operation."""
        if position is None or not self.is_open:
            return
        self._flush_computing()
        self._outstanding.pop(position, None)
        self._join(self._stream, (position,))

    def wait_for_all(self) -> None:
        """Let the current stream wait for every operation that nothing waits for yet.

        DDP's reducer waits for the futures of its buckets in C++, where no call can be seen; it has done so by the time
        an optimizer's step begins.
        """
        for position in tuple(self._outstanding):
            self.wait(position)

    def count_flops(self, flops: int) -> None:
        """Add floating-point operations to the computing of the current stream."""
        self._flops += flops

    def end_step(self, optimizer: int) -> int:
        """Note that an optimizer's step has ended; return how many steps that optimizer has done."""
        self._flush_computing()
        self.steps.append(len(self.operations))
        self.steps_of_optimizer[optimizer] += 1
        return self.steps_of_optimizer[optimizer]

    def switch_stream(self, stream: int) -> int:
        """Make a stream the current one; return the one that was."""
        self._flush_computing()
        previous = self._stream
        self._stream = stream
        return previous

    @property
    def stream(self) -> int:
        """The current stream."""
        return self._stream

    def event(self, stream: int) -> Positions:
        """Return what an event waits for that is recorded on a stream now."""
        self._flush_computing()
        return self._waited_by_stream.get(stream, ())

    def wait_event(self, stream: int, positions: Positions) -> None:
        """Let a stream wait for an event."""
        self._flush_computing()
        self._join(stream, positions)

    def synchronize(self, positions: Positions) -> None:
        """Let the script itself wait: whatever it calls from now on comes after these operations."""
        self._flush_computing()
        self._waited_by_host = self._without_earlier(self._waited_by_host, positions)

    def streams(self) -> tuple[int, ...]:
        """Return the streams that have work."""
        return tuple(self._waited_by_stream)

    def close(self) -> dict[str, Any]:
        """End the recording; return all of it as plain data."""
        self._flush_computing()
        self.is_open = False
        return {
            "rank": self.rank,
            "operations": self.operations,
            "communicators": self.communicators,
            "steps": self.steps,
        }

    def _flush_computing(self) -> None:
        """Add the computing that was counted since the last operation of any kind."""
        if not self._flops or not self.is_open:
            return
        flops = self._flops
        self._flops = 0
        position = self._append({"op": "compute", "flops": flops})
        self._waited_by_stream[self._stream] = (position,)

    def _append(self, operation: dict[str, Any]) -> int:
        if len(self.operations) >= MAX_OPERATIONS:
            raise TooManyOperations(f"more than {MAX_OPERATIONS:,} operations")
        waited = self._waited_by_stream.get(self._stream, ())
        operation["after"] = list(self._without_earlier(self._waited_by_host, waited))
        self.operations.append(operation)
        return len(self.operations) - 1

    def _join(self, stream: int, positions: Positions) -> None:
        waited = self._waited_by_stream.get(stream, ())
        self._waited_by_stream[stream] = self._without_earlier(waited, positions)

    def _without_earlier(self, waited: Positions, positions: Positions) -> Positions:
        """Return both, without those that another of them waits for anyway."""
        earlier: set[int] = set()
        for position in (*waited, *positions):
            earlier.update(self.operations[position]["after"])
        both = dict.fromkeys((*waited, *positions))
        return tuple(position for position in both if position not in earlier)
