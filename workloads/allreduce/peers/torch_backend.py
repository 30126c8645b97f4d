"""Railyard's collectives as a backend of `torch.distributed`, for scripts that know only its name (`register`).

Tensors are the CPU's; sums and broadcasts work in their memory. One thread does a process's calls in order, while the
caller goes on: `Work.wait` and `Work.get_future` have the outcome.

Source: torch.distributed.Backend.register_backend, torch 2.13; PyProcessGroup.hpp has what C++ calls in Python.
"""

import atexit
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from railyard.core.errors import BadInput
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import Layout, SocketMaker, Timeouts, plain_socket
from railyard.workloads.allreduce.tasks import DTYPES, Array

NAME: Final = "railyard"


def register(
    layout: Layout, policy: str = "nezha", timeouts: Timeouts | None = None, make_socket: SocketMaker = plain_socket
) -> None:
    """Let this process call `init_process_group("railyard", ...)`: a group over all of `layout`, one at a time.

        torch_backend.register(layout, policy="nezha")
        torch.distributed.init_process_group("railyard", rank=rank, world_size=layout.size, store=store)

    Without `timeouts` the group waits as long as `timeout` of `init_process_group`.
    """
    latest: list[RailyardProcessGroup] = []

    def create(_store: Any, rank: int, size: int, timeout: timedelta) -> RailyardProcessGroup:
        if size != layout.size:
            raise BadInput("world_size", size, f"must be {layout.size}: a railyard group is of all nodes")
        if latest and latest[-1].is_open:
            raise BadInput("group", "a second one", "can't be: a process has one railyard group at a time")
        limit = timeout.total_seconds()
        group_timeouts = timeouts or Timeouts(join_s=limit, operation_s=limit)
        latest[:] = [RailyardProcessGroup(Group(rank, layout, policy, group_timeouts, make_socket))]
        return latest[-1]

    dist.Backend.register_backend(NAME, create, devices=["cpu"])


def array_of(tensor: Any, summed: bool) -> Array:
    """Return a tensor's memory, flat. BadInput where that needs a copy, is on another device, or can't be summed."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise BadInput("tensor", f"{tensor.layout} on {tensor.device}", "must be a dense one in the CPU's memory")
    if not tensor.is_contiguous():
        raise BadInput("tensor", f"strides {tuple(tensor.stride())}", "must be contiguous")
    whole = tensor.detach().view(-1)
    try:
        array: Array = whole.numpy()
    except TypeError:
        # numpy has no bfloat16, for example
        array = np.empty(0, np.bool_)
    if array.dtype in DTYPES:
        return array
    if summed:
        raise BadInput("dtype", str(tensor.dtype), f"isn't summed: must be one of {', '.join(map(str, DTYPES))}")
    # what is only copied may be of any type
    octets: Array = whole.view(torch.uint8).numpy()
    return octets


class Pending(dist._Work):
    """Collective that is queued, runs, or has ended: then `tensors` hold its result."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self._problem: Exception | None = None
        self._ended = torch.futures.Future()

        def outcome(_: Any) -> list[Any]:
            if self._problem is not None:
                raise self._problem
            return list(tensors)

        # C++ (DDP's reducer) takes an error that `then` raised for one, and a future's `set_exception` for a result
        self._result = self._ended.then(outcome)

    def end(self, problem: Exception | None) -> None:
        """Mark it as ended, with the error if it failed."""
        self._problem = problem
        self._ended.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has ended (the group has time limits of its own), and raise its error."""
        self._ended.wait()
        if self._problem is not None:
            raise self._problem
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended."""
        return bool(self._ended.done())

    def is_success(self) -> bool:
        """Return whether it has ended without an error."""
        return self.is_completed() and self._problem is None

    def exception(self) -> Exception | None:
        """Return its error."""
        return self._problem

    def get_future(self) -> Any:
        """Return a future of the tensors."""
        return self._result


class RailyardProcessGroup(dist.ProcessGroup):
    """Process group as PyTorch calls it, from Python and from C++. `opts` are PyTorch's, None for C++'s defaults."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.group = group
        self.is_open = True
        # a single thread: all ranks must do their calls in the same order
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=NAME)
        atexit.register(self.shutdown)

    def getBackendName(self) -> str:  # noqa: N802  # PyTorch's name
        """Return the backend's name."""
        return NAME

    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> Pending:
        """Sum each tensor over all ranks, in place."""
        _only_sums(opts)
        work = [partial(self.group.allreduce, array_of(tensor, summed=True)) for tensor in tensors]
        return self._begin(tensors, *work)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> Pending:
        """Copy the root's tensors to every rank, in place."""
        root = opts.rootRank if opts is not None else 0
        work = [partial(self.group.broadcast, array_of(tensor, summed=False), root) for tensor in tensors]
        return self._begin(tensors, *work)

    def allgather(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Pending:
        """Gather each input of all ranks into a list of tensors."""
        wholes = [torch.empty((self.group.size, tensor.numel()), dtype=tensor.dtype) for tensor in inputs]
        work = [self._gather(*pair) for pair in zip(wholes, inputs, strict=True)]

        def hand_out() -> None:
            for whole, parts in zip(wholes, outputs, strict=True):
                for row, part in zip(whole, parts, strict=True):
                    part.copy_(row.view_as(part))

        return self._begin(list(chain.from_iterable(outputs)), *work, hand_out)

    def all_gather_single(self, output: Any, own_part: Any, opts: Any = None) -> Pending:
        """Gather a tensor of all ranks into one."""
        return self._begin([output], self._gather(output, own_part))

    def reduce_scatter(self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None) -> Pending:
        """Sum lists of tensors, one for each rank, and keep this rank's sum."""
        work = []
        for output, parts in zip(outputs, inputs, strict=True):
            whole = torch.cat([part.reshape(-1) for part in parts])
            work.append(self._scatter(output, whole, opts))
        return self._begin(outputs, *work)

    def reduce_scatter_single(self, output: Any, whole: Any, opts: Any = None) -> Pending:
        """Sum a tensor, and keep this rank's part."""
        return self._begin([output], self._scatter(output, whole, opts))

    def barrier(self, opts: Any = None) -> Pending:
        """Wait for all ranks."""
        return self._begin([], partial(self.group.allreduce, np.zeros(1, np.uint8)))

    def shutdown(self) -> None:
        """End what was begun, leave the group and close it, as `destroy_process_group` does. May be called twice."""
        self.is_open = False
        atexit.unregister(self.shutdown)
        self._thread.shutdown()
        self.group.close()

    def abort(self) -> None:
        """End at once: what was begun fails, and so does what the others do with this rank."""
        self.group.abandon("this rank aborted it")
        self.shutdown()

    def _begin(self, tensors: Sequence[Any], *work: Callable[[], None]) -> Pending:
        pending = Pending(tensors)

        def do() -> None:
            problem: Exception | None = None
            try:
                for step in work:
                    step()
            except Exception as error:
                problem = error
            pending.end(problem)

        self._thread.submit(do)
        return pending

    def _gather(self, output: Any, own_part: Any) -> Callable[[], None]:
        result = array_of(output, summed=False)
        part = array_of(own_part, summed=False)
        _same_length("output", output.numel(), own_part.numel() * self.group.size)
        return lambda: np.copyto(result, self.group.all_gather(part))

    def _scatter(self, output: Any, whole: Any, opts: Any) -> Callable[[], None]:
        _only_sums(opts)
        result = array_of(output, summed=True)
        array = array_of(whole, summed=True)
        _same_length("input", whole.numel(), output.numel() * self.group.size)
        return lambda: np.copyto(result, self.group.reduce_scatter(array))


def _only_sums(opts: Any) -> None:
    if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
        raise BadInput("op", opts.reduceOp.op.name, "must be SUM")


def _same_length(field: str, length: int, expected: int) -> None:
    if length != expected:
        raise BadInput(field, length, f"must be {expected} elements long")
