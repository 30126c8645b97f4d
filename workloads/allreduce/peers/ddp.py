"""Training between the nodes: train.py, over Gloo on one rail or over Railyard on all of them. Needs PyTorch.

with DdpRanks(net, rail=0) as ranks:
    gloo, ours = ranks.train("gloo", Training()), ranks.train("railyard", Training(), policy="nezha")
"""

import importlib
import os
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Literal

from railyard.core.errors import BadInput, MachineLacks, RailyardError, near_miss
from railyard.core.worker import PickledProcess
from railyard.workloads.allreduce.engine.emulated import PORT, Planned, place
from railyard.workloads.allreduce.peers import gloo
from railyard.workloads.allreduce.peers.ddp_run import Trained, Training
from railyard.workloads.allreduce.peers.rank import Program
from railyard.workloads.allreduce.peers.rank_config import Seat
from railyard.workloads.allreduce.peers.ranks import PeerRanks
from railyard.workloads.allreduce.transport.placement import AggregatorTask

Backend = Literal["gloo", "railyard"]
BACKENDS: Final = ("gloo", "railyard")
TRAINING_S: Final = 600.0
_PORT: Final = PORT + 2


@dataclass(frozen=True, slots=True)
class Lesson:
    """`number` keeps the places where ranks meet apart."""

    number: int
    backend: Backend
    policy: str
    training: Training


class DdpRanks(PeerRanks):
    """`rail`: Gloo's."""

    program = "ddp"

    def __init__(self, net: Planned, rail: int = 0) -> None:
        super().__init__(net, [rail])
        hosts = tuple(tuple((host, _PORT) for host, _ in row) for row in self.layout.nodes)
        trees = tuple(address and (address[0], _PORT) for address in self.layout.aggregators)
        self.layout = replace(self.layout, nodes=hosts, aggregators=trees)
        self._lessons = count()
        self._trees: list[PickledProcess] = []

    @classmethod
    def lack(cls) -> MachineLacks | None:
        return gloo.lacks_torch()

    def start(self) -> None:
        super().start()
        for rail in self.layout.trees:
            tree = PickledProcess("railyard.workloads.allreduce.engine.worker", f"the aggregator of rail {rail}")
            self._trees.append(tree)
            tree.tell(AggregatorTask(rail, self.layout, place(self._plan, None, rail)))
            tree.hear()

    def stop(self) -> None:
        super().stop()
        while self._trees:
            self._trees.pop().end()

    def train(self, backend: Backend, training: Training, policy: str = "nezha") -> list[Trained]:
        """From the same weights and pictures each time, whatever the backend. `policy`: Railyard's."""
        if backend not in BACKENDS:
            raise BadInput("backend", backend, near_miss(backend, BACKENDS))
        trained: list[Trained] = self.ask(Lesson(next(self._lessons), backend, policy, training), TRAINING_S)
        return trained


def load() -> None:
    """Also what PyTorch's optimizers load at their first step: once, in place of once a rank."""
    gloo.load()
    importlib.import_module("torch._dynamo")
    importlib.import_module("railyard.workloads.allreduce.peers.train")


def _train(kept: list[Any], seat: Seat, lesson: Lesson) -> Trained:
    """A lesson. Its group goes into `kept`: one of Gloo's that is destroyed right after its last operation may wait for
    a thread of its own that waits for Python's lock (seen once in 15 times with PyTorch 2.13)."""
    import torch.distributed as dist

    from railyard.workloads.allreduce.peers import torch_backend
    from railyard.workloads.allreduce.peers.train import train

    os.environ["GLOO_SOCKET_IFNAME"] = seat.interfaces[0]
    torch_backend.register(seat.layout, lesson.policy, make_socket=seat.place.socket_maker())
    meet = f"file://{seat.folder}/lesson{lesson.number}"
    try:
        return train(lesson.backend, seat.rank, seat.nodes, meet, lesson.training)
    except RuntimeError as problem:  # PyTorch's, and what came to it from a backend
        raise RailyardError(f"{lesson.backend}: {problem}") from problem
    finally:
        if dist.is_initialized():
            kept.append(dist.group.WORLD)
            dist.destroy_process_group()


PROGRAM = Program(load, lambda _: [], _train, lambda _: None)
