"""A DistributedDataParallel script as anybody's: it knows the name of a backend and where to meet, and no more.

It trains a small convolutional network to tell four kinds of pictures apart, drawn here with noise: 16 x 16 pixels,
with a stripe across, a stripe down, a cross, or a frame. Every rank draws other pictures, from `seed` and its rank.
"""

import time
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from railyard.workloads.allreduce.peers.training import Training, TrainingResult

SIDE: Final = 16
KINDS: Final = 4


def pictures(count: int, random: Any) -> tuple[Any, Any]:
    """`count` pictures and their kinds."""
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


def network(width: int) -> Any:
    """Two convolutions and two full layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, KINDS)),
    )


def train(backend: str, rank: int, nodes: int, init_method: str, training: Training) -> TrainingResult:
    """One rank's part. `init_method`: `init_process_group`'s `init_method`. To end the group is left to the caller."""
    dist.init_process_group(
        backend, init_method=init_method, rank=rank, world_size=nodes, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(training.seed + rank)  # DDP gives all ranks rank 0's weights
    model = DistributedDataParallel(network(training.width), bucket_cap_mb=training.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=training.learning_rate, momentum=0.9)
    random = torch.Generator().manual_seed(1_000_003 * training.seed + rank)
    losses, seconds = [], []
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
