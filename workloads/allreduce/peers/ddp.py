"""Training between the nodes: train.py, over Gloo on one rail or over Railyard on all of them. Needs PyTorch.

with DdpRanks(net, rail=0) as ranks:
    gloo, ours = ranks.train("gloo", Training()), ranks.train("railyard", Training(), policy="nezha")
"""

import importlib
import os
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Literal

from railyard.core.errors import BadInput, MissingRequirement, RailyardError, unknown_name_hint
from railyard.core.worker import Ready, Worker
from railyard.workloads.allreduce.engine.emulated import PORT, placement
from railyard.workloads.allreduce.engine.jobs import AggregatorTask, Join
from railyard.workloads.allreduce.engine_kind import PlannedFabric
from railyard.workloads.allreduce.engines import gloo
from railyard.workloads.allreduce.peers.rank import Program
from railyard.workloads.allreduce.peers.rank_config import RankConfig
from railyard.workloads.allreduce.peers.ranks import PeerRanks
from railyard.workloads.allreduce.peers.training import Training, TrainingResult

Backend = Literal["gloo", "railyard"]
BACKENDS: Final = ("gloo", "railyard")
TRAINING_S: Final = 600.0
_PORT: Final = PORT + 2


@dataclass(frozen=True, slots=True)
class DdpRun:
    """`number` keeps the places where ranks meet apart."""

    number: int
    backend: Backend
    policy: str
    training: Training


class DdpRanks(PeerRanks):
    """`rail`: Gloo's."""

    program = __name__

    def __init__(self, net: PlannedFabric, rail: int = 0) -> None:
        super().__init__(net, [rail])
        hosts = tuple(tuple((host, _PORT) for host, _ in row) for row in self.layout.nodes)
        trees = tuple(address and (address[0], _PORT) for address in self.layout.aggregators)
        self.layout = replace(self.layout, nodes=hosts, aggregators=trees)
        self._run_numbers = count()
        self._aggregators: list[Worker] = []

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        return gloo.torch_missing()

    def start(self) -> None:
        super().start()
        for rail in self.layout.trees:
            aggregator = Worker("railyard.workloads.allreduce.engine.worker", f"the aggregator of rail {rail}", Ready)
            self._aggregators.append(aggregator)
            task = AggregatorTask(rail, self.layout, placement(self._plan, None, rail))
            aggregator.ask(Join(task=task), Ready)

    def stop(self) -> None:
        super().stop()
        while self._aggregators:
            self._aggregators.pop().end()

    def train(self, backend: Backend, training: Training, policy: str = "nezha") -> list[TrainingResult]:
        """From the same weights and pictures each time, whatever the backend. `policy`: Railyard's."""
        if backend not in BACKENDS:
            raise BadInput("backend", backend, unknown_name_hint(backend, BACKENDS))
        results: list[TrainingResult] = self.ask(DdpRun(next(self._run_numbers), backend, policy, training), TRAINING_S)
        return results


def load() -> None:
    """Also what PyTorch's optimizers load at their first step: once, in place of once a rank."""
    gloo.load()
    importlib.import_module("torch._dynamo")
    importlib.import_module("railyard.workloads.allreduce.peers.train")


def _train(used_groups: list[Any], config: RankConfig, run: DdpRun) -> TrainingResult:
    """A lesson. Its group goes into `used_groups`: one of Gloo's that is destroyed right after its last operation may
    wait for a thread of its own that waits for Python's lock (seen once in 15 times with PyTorch 2.13)."""
    import torch.distributed as dist

    from railyard.workloads.allreduce.peers import torch_backend
    from railyard.workloads.allreduce.peers.train import train

    os.environ["GLOO_SOCKET_IFNAME"] = config.interfaces[0]
    torch_backend.register(config.layout, run.policy, make_socket=config.placement.socket_maker())
    init_method = f"file://{config.folder}/lesson{run.number}"
    try:
        return train(run.backend, config.rank, config.nodes, init_method, run.training)
    except RuntimeError as problem:  # PyTorch's, and what came to it from a backend
        raise RailyardError(f"{run.backend}: {problem}") from problem
    finally:
        if dist.is_initialized():
            used_groups.append(dist.group.WORLD)
            dist.destroy_process_group()


PROGRAM = Program(load, lambda _: [], _train, lambda _: None)
