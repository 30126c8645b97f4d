"""What train.py is to do, and what it tells. Units: samples, megabytes, seconds, bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Training:
    """`width`: of the hidden layer, which has most parameters: 260 * `width` in all, about, of 4 bytes each.

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
    """By step, on one rank: its loss, and seconds from the forward pass to the new weights; then all weights."""

    losses: list[float]
    seconds: list[float]
    gradient_bytes: int
    weights: list[float]
