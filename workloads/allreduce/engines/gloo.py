"""PyTorch's Gloo between the nodes, on one rail. Requires PyTorch: `script/bootstrap gloo`."""

import importlib.util
import os
from datetime import timedelta

from railyard.core.errors import MissingRequirement
from railyard.core.installation import python_extra
from railyard.workloads.allreduce.engine.jobs import RankConfig
from railyard.workloads.allreduce.engine.worker import Program, result_array
from railyard.workloads.allreduce.engine_kind import ALLREDUCE_ENGINES, AllreduceEngine, PeerRanks
from railyard.workloads.allreduce.tasks import Array


class GlooRanks(PeerRanks):
    """Ranks of Gloo, which uses one rail."""

    program = __name__

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        """Return the requirement of PyTorch, None where it is installed."""
        if importlib.util.find_spec("torch"):
            return None
        return MissingRequirement("this machine lacks PyTorch, for Gloo and for training", python_extra("gloo"))


class Gloo:
    """Process group of a rank, through torch.distributed. It works in numpy's memory."""

    def __init__(self, config: RankConfig) -> None:
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = config.interfaces[0]
        store = dist.FileStore(f"{config.folder}/gloo", config.layout.size)
        limit = timedelta(seconds=config.timeouts.operation_s)
        dist.init_process_group("gloo", store=store, rank=config.rank, world_size=config.layout.size, timeout=limit)
        self._dist = dist
        self._nodes = config.layout.size

    def call(self, collective: str, array: Array, root: int) -> Array:
        """Return the result of a collective. Allreduce and broadcast change the array and return it."""
        import torch

        result = result_array(collective, array, self._nodes)
        source = torch.from_numpy(array)
        output = torch.from_numpy(result)
        match collective:
            case "allreduce":
                self._dist.all_reduce(output)
            case "broadcast":
                self._dist.broadcast(output, root)
            case "reduce_scatter":
                self._dist.reduce_scatter_single(output, source)
            case "all_gather":
                self._dist.all_gather_single(output, source)
        return result


def load() -> None:
    """Load PyTorch without threads of its own."""
    import torch
    import torch.distributed

    # nodes share the machine's cores
    torch.set_num_threads(1)


# a group is not destroyed: right after its last operation it may hang then (seen with PyTorch 2.13)
PROGRAM = Program(Gloo, lambda _: None, load)


@ALLREDUCE_ENGINES.register("gloo")
class GlooEngine(AllreduceEngine):
    """Gloo's ring on the first ordinary TCP rail."""

    equation = "Eq. 1 without set-up"
    colour = "grey"
    ranks = GlooRanks
