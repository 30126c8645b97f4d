"""A recording group whose collectives really take place, over Gloo, to compare a recording with a real run.

All ranks are run, in a network namespace of their own, and every tensor has its contents.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from railyard.workloads.recording.ranks.exchange import Exchange
from railyard.workloads.recording.ranks.process_group import RecordedWork, RecordingGroup
from railyard.workloads.recording.ranks.recorder import Recorder

CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
LOOPBACK: Final = "127.0.0.1"
CALLS: Final = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "alltoall_base", "alltoall", "gather", "scatter", "barrier", "send", "recv",
)  # fmt: skip
"""Methods that a recording group and a Gloo group both have."""
OTHER_NAMES: Final = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def enter_namespace() -> None:
    """Move this process to a network namespace that has a loopback interface alone. OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        current = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", current | IFF_UP))


class GlooGroup(RecordingGroup):
    """One communicator of one rank, with a Gloo group of the same ranks."""

    def __init__(
        self, recorder: Recorder, exchange: Exchange, rank: int, ranks: Sequence[int], store: Any, timeout: timedelta
    ) -> None:
        """`store`: for this group alone."""
        super().__init__(recorder, exchange, rank, ranks)
        self._gloo = dist.ProcessGroupGloo(store, rank, len(ranks), timeout)

    def _is_exchanged(self, tensors: list[torch.Tensor]) -> bool:
        """Return false: Gloo carries all contents."""
        return False


def _recorded_and_real(name: str) -> Callable[..., RecordedWork]:
    """Return the method that records a call, and makes it over Gloo."""

    def method(group: GlooGroup, *arguments: Any) -> RecordedWork:
        options: Any = arguments[-1] if arguments else None
        is_average = getattr(options, "reduceOp", None) == dist.ReduceOp.AVG
        if is_average:
            # Gloo has no average
            options.reduceOp = dist.ReduceOp.SUM
        work: RecordedWork = getattr(RecordingGroup, name)(group, *arguments)
        real_work = getattr(group._gloo, name)(*arguments)
        results = arguments[0]

        def complete() -> None:
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
