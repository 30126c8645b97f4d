"""Training of a small network over the rails: PyTorch's DistributedDataParallel on the nodes of a fabric."""

import importlib
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final, Literal, get_args

from pydantic import InstanceOf

from railyard.core.errors import BadInput, RailyardError, unknown_name_hint
from railyard.core.worker import Message, Ready, Worker
from railyard.workloads.allreduce.engine.jobs import AggregatorTask, Join, RankConfig
from railyard.workloads.allreduce.engine.worker import Program
from railyard.workloads.allreduce.engine_kind import PORT, PlannedFabric, placement
from railyard.workloads.allreduce.engines import gloo
from railyard.workloads.allreduce.engines.railyard import WORKER

# pixels of a picture's side, and kinds of pictures
SIDE = 16
KINDS = 4
Backend = Literal["gloo", "railyard"]
BACKENDS: Final = get_args(Backend)
TRAINING_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Training:
    """Training of a small network.

    `width`: of its hidden layer; 260 * `width` parameters in all, about, of 4 bytes.

    `bucket_mb`: DDP's, of gradients that are summed together.
    """

    steps: int = 60
    batch: int = 32
    width: int = 256
    bucket_mb: float = 1.0
    seed: int = 0
    learning_rate: float = 0.1


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Losses and times of each step on one rank, from the forward pass to the new weights; then all weights."""

    losses: list[float]
    seconds: list[float]
    gradient_bytes: int
    weights: list[float]


def pictures(count: int, random: Any) -> tuple[Any, Any]:
    """Return `count` pictures of 16 x 16 pixels and their kinds: with noise, a row, a column, a cross or a frame."""
    import torch

    kinds = torch.randint(KINDS, (count,), generator=random)
    images = 0.5 * torch.randn(count, 1, SIDE, SIDE, generator=random)
    places = torch.randint(2, SIDE - 2, (count, 2), generator=random)
    for image, kind, (row, column) in zip(images, kinds.tolist(), places.tolist(), strict=True):
        if kind in (0, 2):
            image[0, row] += 1
        if kind in (1, 2):
            image[0, :, column] += 1
        if kind == 3:
            image[0, [0, -1]] += 1
            image[0, :, [0, -1]] += 1
    return images, kinds


def train(backend: str, rank: int, nodes: int, init_method: str, training: Training) -> TrainingResult:
    """Train on one rank, as a script that knows no more than a backend's name and its `init_method`.

    The caller destroys the process group.
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    limit = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=nodes, timeout=limit)
    # DDP gives all ranks rank 0's weights
    torch.manual_seed(training.seed + rank)
    network = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, training.width), nn.ReLU(), nn.Linear(training.width, KINDS)),
    )
    model = nn.parallel.DistributedDataParallel(network, bucket_cap_mb=training.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=training.learning_rate, momentum=0.9)
    # every rank draws other pictures
    random = torch.Generator().manual_seed(1_000_003 * training.seed + rank)
    losses = []
    seconds = []
    for _ in range(training.steps):
        images, kinds = pictures(training.batch, random)
        began = time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), kinds)
        loss.backward()
        optimizer.step()
        seconds.append(time.monotonic() - began)
        losses.append(loss.item())
    dist.barrier()
    parameters = list(model.parameters())
    weights = torch.cat([each.detach().reshape(-1) for each in parameters]).tolist()
    return TrainingResult(losses, seconds, sum(4 * each.numel() for each in parameters), weights)


class Train(Message):
    """Train once: Trained. `number` keeps the files through which ranks meet apart."""

    number: int
    backend: Backend
    policy: str
    training: InstanceOf[Training]


class Trained(Message):
    """Result of a training on a rank."""

    result: InstanceOf[TrainingResult]


class DdpRanks(gloo.GlooRanks):
    """Ranks that train over Gloo on one rail (`rail`), and over Railyard on all of them. They need PyTorch."""

    program = __name__
    replies = (Trained,)
    port = PORT + 2

    def __init__(self, net: PlannedFabric, rail: int = 0) -> None:
        super().__init__(net, [rail])
        self._run_numbers = count()
        self._aggregators: list[Worker] = []

    def start(self) -> None:
        """Start the ranks, and the aggregators of Railyard's rails."""
        super().start()
        for rail, address in enumerate(self.layout.aggregators):
            if address is not None:
                aggregator = Worker(WORKER, f"the aggregator of rail {rail}", Ready)
                self._aggregators.append(aggregator)
                task = AggregatorTask(rail, self.layout, placement(self._plan, None, rail))
                aggregator.ask(Join(task=task), Ready)

    def stop(self) -> None:
        """End the ranks and aggregators."""
        super().stop()
        while self._aggregators:
            self._aggregators.pop().end()

    def train(self, backend: Backend, training: Training, policy: str = "nezha") -> list[TrainingResult]:
        """Train from the same weights and pictures each time, whatever the backend. `policy`: Railyard's."""
        if backend not in BACKENDS:
            raise BadInput("backend", backend, unknown_name_hint(backend, BACKENDS))
        request = Train(number=next(self._run_numbers), backend=backend, policy=policy, training=training)
        return [reply.result for reply in self.ask(request, Trained, TRAINING_S)]


def _load() -> None:
    """Load PyTorch, and what its optimizers load at their first step."""
    # here once, and not once in each rank
    gloo.load()
    importlib.import_module("torch._dynamo")


def _train(used_groups: list[Any], config: RankConfig, command: Train) -> Trained:
    """Train once. `used_groups`: process groups that are kept."""
    # a process group that is freed at once may hang (engines/gloo.py)
    import torch.distributed as dist

    from railyard.workloads.allreduce.peers import torch_backend

    os.environ["GLOO_SOCKET_IFNAME"] = config.interfaces[0]
    torch_backend.register(config.layout, command.policy, make_socket=config.placement.socket_maker())
    init_method = f"file://{config.folder}/training{command.number}"
    try:
        return Trained(result=train(command.backend, config.rank, config.layout.size, init_method, command.training))
    except RuntimeError as problem:
        # PyTorch's, and what it got from a backend
        raise RailyardError(f"{command.backend}: {problem}") from problem
    finally:
        if dist.is_initialized():
            used_groups.append(dist.group.WORLD)
            dist.destroy_process_group()


PROGRAM = Program(lambda _: [], lambda _: None, _load, _train, (Train,))
