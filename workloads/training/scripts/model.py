"""Options, network, data, hash of the weights, and checkpoints of all training scripts of PyTorch.

The same seed gives the same network and data.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

INPUTS = 64
CLASSES = 4
BATCH = 32


def parse(description: str | None, min_groups: int | None = None) -> argparse.Namespace:
    """Return the options of a script.

    `min_groups`: the default of that option, which torchft's script has.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=256, help="of the hidden layer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=5.0, help="of a collective, s")
    parser.add_argument("--compute", type=float, default=0.0, help="time that a GPU would compute in a step, s")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps")
    if min_groups is not None:
        parser.add_argument("--min-groups", type=int, default=min_groups, help="replica groups that a step needs")
        parser.add_argument("--ddp", action="store_true", help="use torchft's DistributedDataParallel")
    # the processes of all GPUs share this machine's cores
    torch.set_num_threads(1)
    return parser.parse_args()


def network(width: int, seed: int) -> Any:
    """Return a network with about 70 * `width` parameters of 4 bytes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, CLASSES))


class Momentum:
    """Gradient descent with momentum."""

    # torch.optim has it too, but imports torch._dynamo: 1.4 s of CPU at each start
    def __init__(self, model: Any, rate: float = 0.05, momentum: float = 0.9) -> None:
        self._parameters = list(model.parameters())
        self._rate = rate
        self._momentum = momentum
        self._velocities = [torch.zeros_like(parameter) for parameter in self._parameters]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change the parameters by their gradients."""
        with torch.no_grad():
            for parameter, velocity in zip(self._parameters, self._velocities, strict=True):
                velocity.mul_(self._momentum).add_(parameter.grad)
                parameter.sub_(velocity, alpha=self._rate)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs of it."""
        return {"velocities": self._velocities}

    def load_state_dict(self, state: Any) -> None:
        """Continue from a checkpoint."""
        self._velocities = [velocity.clone() for velocity in state["velocities"]]


def batch(options: argparse.Namespace, step: int, rank: int) -> tuple[Any, Any]:
    """Return inputs and their classes, after as long as a GPU would compute."""
    # sleeping costs the machine nothing
    time.sleep(options.compute)
    # by the seed, the step and the rank alone: a step can be repeated after a failure
    random = torch.Generator().manual_seed((options.seed * 1_000_003 + step) * 1_003 + rank)
    inputs = torch.randn(BATCH, INPUTS, generator=random)
    return inputs, inputs[:, :CLASSES].argmax(1)


def weights_hash(model: Any) -> str:
    """Return 16 hexadecimal digits that differ if any bit of any weight does."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def save(path: Path, step: int, model: Any, optimizer: Any) -> None:
    """Write a checkpoint, whole or not at all."""
    # the process may be killed at any time
    new = path.with_suffix(".new")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, new)
    os.replace(new, path)  # noqa: PTH105


def load(path: Path, model: Any, optimizer: Any) -> int:
    """Load the checkpoint, and return the steps that it has; 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
