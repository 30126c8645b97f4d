"""A recording group whose collectives really take place, over Gloo, to compare a recording with a real run.

All ranks are run, in a network namespace of their own or in a fabric's GPUs, and every tensor has its contents.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from railyard.workloads.recording.ranks.exchange import Exchange
from railyard.workloads.recording.ranks.process_group import RecordedWork, RecordingGroup
from railyard.workloads.recording.ranks.recorder import Recorder

CALLS: Final = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "alltoall_base", "alltoall", "gather", "scatter", "barrier", "send", "recv",
)  # fmt: skip
"""Methods that a recording group and a Gloo group both have."""
SINGLE_CALLS: Final = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}
OTHER_NAMES: Final = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


class GlooGroup(RecordingGroup):
    """One communicator of one rank, with a Gloo group of the same ranks."""

    def __init__(
        self,
        recorder: Recorder,
        exchange: Exchange,
        rank: int,
        ranks: Sequence[int],
        store: Any,
        timeout: timedelta,
        address: str,
    ) -> None:
        """`store`: for this group alone. `address`: of this rank."""
        super().__init__(recorder, exchange, rank, ranks)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timeout
        self._gloo = dist.ProcessGroupGloo(store, rank, len(ranks), options)

    def _is_exchanged(self, tensors: list[torch.Tensor]) -> bool:
        """Return false: Gloo carries all contents."""
        return False


def _real_works(gloo: Any, name: str, arguments: Sequence[Any]) -> list[Any]:
    """Make a call over Gloo; return what to wait for. Coalesced calls are made for each tensor, as Gloo has none."""
    if name not in SINGLE_CALLS:
        return [getattr(gloo, name)(*arguments)]
    call = getattr(gloo, SINGLE_CALLS[name])
    outputs, inputs, *options = arguments
    works: list[Any] = []
    for output, part in zip(outputs, inputs, strict=True):
        works.append(call(output, part, *options))
    return works


def _recorded_and_real(name: str) -> Callable[..., RecordedWork]:
    """Return the method that records a call, and makes it over Gloo."""

    def method(group: GlooGroup, *arguments: Any) -> RecordedWork:
        options: Any = arguments[-1] if arguments else None
        is_average = getattr(options, "reduceOp", None) == dist.ReduceOp.AVG
        if is_average:
            # Gloo has no average
            options.reduceOp = dist.ReduceOp.SUM
        work: RecordedWork = getattr(RecordingGroup, name)(group, *arguments)
        real_works = _real_works(group._gloo, name, arguments)
        results = arguments[0]

        def complete() -> None:
            for real_work in real_works:
                real_work.wait()
            if is_average:
                for tensor in results if isinstance(results, list) else [results]:
                    tensor.div_(group.size())

        work.complete_by(complete)
        return work

    return method


for _name in CALLS:
    setattr(GlooGroup, _name, _recorded_and_real(_name))
for _other_name, _name in OTHER_NAMES.items():
    setattr(GlooGroup, _other_name, getattr(GlooGroup, _name))
