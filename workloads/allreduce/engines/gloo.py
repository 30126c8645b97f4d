"""PyTorch's Gloo between the nodes, on one rail. Requires PyTorch: `script/bootstrap gloo`."""

import importlib.util
import os
from datetime import timedelta
from typing import Any

import numpy as np

from railyard.core.errors import MissingRequirement
from railyard.workloads.allreduce.engine.jobs import RankConfig
from railyard.workloads.allreduce.engine.tasks import Array
from railyard.workloads.allreduce.engine.worker import Program
from railyard.workloads.allreduce.engine_kind import (
    ALLREDUCE_ENGINES,
    AllreduceEngine,
    PeerRanks,
)


class GlooRanks(PeerRanks):
    """Ranks of Gloo, which uses one rail."""

    program = __name__

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        """Return the requirement of PyTorch, None where it is installed."""
        if importlib.util.find_spec("torch"):
            return None
        return MissingRequirement("this machine lacks PyTorch, for Gloo and for training", "sudo script/bootstrap gloo")


class Gloo:
    """Process group of a rank, through torch.distributed. It works in numpy's memory."""

    def __init__(self, config: RankConfig) -> None:
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = config.interfaces[0]
        store = dist.FileStore(f"{config.folder}/gloo", config.nodes)
        limit = timedelta(seconds=config.timeout_s)
        dist.init_process_group("gloo", store=store, rank=config.rank, world_size=config.nodes, timeout=limit)
        self._dist, self._rank, self._nodes = dist, config.rank, config.nodes

    def allreduce(self, array: Array) -> None:
        """Sum over all ranks, in place."""
        self._dist.all_reduce(_tensor(array))

    def reduce_scatter(self, array: Array) -> Array:
        """Return this rank's part of the sum."""
        own_part = np.empty(array.size // self._nodes, array.dtype)
        self._dist.reduce_scatter_single(_tensor(own_part), _tensor(array))
        return own_part

    def all_gather(self, array: Array) -> Array:
        """Return every rank's array, one after the other."""
        whole = np.empty(array.size * self._nodes, array.dtype)
        self._dist.all_gather_single(_tensor(whole), _tensor(array))
        return whole

    def broadcast(self, array: Array, root: int) -> None:
        """Copy the root's array to every rank, in place."""
        self._dist.broadcast(_tensor(array), root)

    def close(self) -> None:
        """The process ends with it: destroyed before, it may hang (ddp.py says why)."""


def _tensor(array: Array) -> Any:
    """Return a tensor of the same memory."""
    import torch

    return torch.from_numpy(array)


def load() -> None:
    """Load PyTorch without threads of its own: nodes share the machine's cores."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)


PROGRAM = Program(Gloo, Gloo.close, load)


class GlooEngine(AllreduceEngine):
    """Gloo's ring on the first ordinary TCP rail."""

    equation = "Eq. 1 without set-up"
    colour = "grey"
    ranks = GlooRanks


ALLREDUCE_ENGINES.add("gloo", GlooEngine())
