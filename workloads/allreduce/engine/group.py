"""Collectives as a program calls them: a `Group` in each process, the same calls in the same order on every rank.

Arrays are numpy's, contiguous, of the types in tasks.DTYPES; sums of integers are modulo 2^n, as numpy's.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from railyard.core.errors import BadInput
from railyard.workloads.allreduce.balancing.policy import make_planner
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Layout, Migration, SocketMaker, Timeouts, plain_socket
from railyard.workloads.allreduce.engine.node import Node
from railyard.workloads.allreduce.engine.operation import Call, Record
from railyard.workloads.allreduce.tasks import Array, Copies, flat

_GOODBYE_S = 5.0


class Group:
    """Member of a group of ranks, which joins on construction.

        with Group(rank, loopback(rails, nodes=4, first_port=21000), policy="nezha") as group:
            group.allreduce(gradients)  # in place: the sum over all ranks

    BadInput for impossible arguments; GroupBroken for what goes wrong, and then for all later calls.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        policy: str = "nezha",
        timeouts: Timeouts | None = None,
        make_socket: SocketMaker = plain_socket,
    ) -> None:
        if not 0 <= rank < layout.size:
            raise BadInput("rank", rank, f"must be from 0 to {layout.size - 1}")
        self.rank = rank
        self.size = layout.size
        self.layout = layout
        # of the last operations, in turn
        self._results = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._node: Node | None = None
        self.copies = Copies()
        if self.size > 1:
            self._node = Node(rank, layout, policy, timeouts or Timeouts(), make_socket)
            self.copies = self._node.copies
        self.set_policy(policy)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self.close(leave_at_once=error is not None)

    @property
    def migrations(self) -> list[Migration]:
        """Each time that rails died and their work moved."""
        return self._node.changes.migrations if self._node else []

    @property
    def last(self) -> Record:
        """The operation that ended last: what each rail was given, and when it ended."""
        return self._node.last if self._node else Record(0.0, (), ())

    def take_samples(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the latest `Node.samples`, each only once."""
        samples = []
        while self._node is not None and self._node.samples:
            samples.append(self._node.samples.popleft())
        return samples

    @property
    def live_rails(self) -> list[int]:
        """The rails in use now; the others were lost and have not returned."""
        return self._node.transport.live if self._node else list(range(len(self.layout.rails)))

    def set_policy(self, policy: str) -> None:
        """Plan by another policy from the next operation on: on all ranks, between the same two operations.

        A policy that was used before keeps what it has learned. BadInput for one that is not known.
        """
        if self._node is not None:
            self._node.set_policy(policy)
            self.policy = self._node.planners.current.planner
        else:
            self.policy = make_planner(policy, self.layout.rails, self.size)

    def allreduce(self, array: Array) -> None:
        """Sum `array` over all ranks, in place."""
        data = flat(array)
        self._run(Call("allreduce", len(data), str(data.dtype)), data, data, len(data))

    def reduce_scatter(self, array: Array) -> Array:
        """Return this rank's part of the sum of `array`, which has a part of the same length for each rank."""
        data = flat(array)
        if len(data) % self.size:
            raise BadInput("array", len(data), f"must be a multiple of {self.size} elements long")
        length = len(data) // self.size
        out = np.empty(length, data.dtype)
        part = slice(self.rank * length, (self.rank + 1) * length)
        self._run(Call("reduce_scatter", length, str(data.dtype)), data, out, len(data), part=part)
        return out

    def all_gather(self, array: Array) -> Array:
        """Return every rank's `array`, one after the other; all have the same length."""
        data = flat(array)
        length = len(data)
        out = np.empty(length * self.size, data.dtype)
        place = slice(self.rank * length, (self.rank + 1) * length)
        self._run(Call("all_gather", length, str(data.dtype)), data, out, len(out), place=place)
        return out

    def broadcast(self, array: Array, root: int) -> None:
        """Copy the root's `array` to every rank, in place."""
        data = flat(array)
        if not 0 <= root < self.size:
            raise BadInput("root", root, f"must be from 0 to {self.size - 1}")
        place = slice(None) if self.rank == root else None
        self._run(Call("broadcast", len(data), str(data.dtype), root), data, data, len(data), place=place)

    def call(self, collective: str, array: Array, root: int = 0) -> Array:
        """Return the result of a collective by its name. Allreduce and broadcast change the array and return it."""
        if collective == "reduce_scatter":
            return self.reduce_scatter(array)
        if collective == "all_gather":
            return self.all_gather(array)
        if collective == "allreduce":
            self.allreduce(array)
        else:
            self.broadcast(array, root)
        return array

    def abandon(self, why: str) -> None:
        """Let the call that runs, and all later ones, end with GroupBroken at once; called from another thread."""
        # read once: another thread may close the group meanwhile
        node = self._node
        if node is not None:
            node.abandon(why)

    def close(self, leave_at_once: bool = False) -> None:
        """Leave once no rank needs this one any more, and close all connections. A second call does nothing."""
        node = self._node
        self._node = None
        if node is None:
            return
        if not leave_at_once:
            node.timeouts = replace(node.timeouts, operation_s=min(_GOODBYE_S, node.timeouts.operation_s))
            empty = np.empty(0, np.uint8)
            # a rank that left first had no more to do
            with suppress(GroupBroken):
                node.run(Call("allreduce", 0, "goodbye"), empty, empty)
        node.close()

    def _run(
        self, call: Call, data: Array, out: Array, length: int, place: slice | None = None, part: slice = slice(None)
    ) -> None:
        """Run a collective into a result of `length` elements, and copy `part` of it to `out`.

        `place`: where `data` belongs in the result, which a gather or a broadcast's root begins with.
        """
        result = data
        if self._node is not None:
            # in a result of the group's own, which is kept during the next operation (docs/multirail.md, "Recovery")
            size = length * data.itemsize
            memory = self._results.pop(0)
            self._results.append(memory if len(memory) >= size else np.empty(size, np.uint8))
            result = self._results[-1][:size].view(data.dtype)
            if place is not None:
                result[place] = data
                self.copies.own_part += data.nbytes
            self._node.run(call, data, result)
        if result is not out:
            out[:] = result[part]
            self.copies.result += out.nbytes
