"""Train a small linear classifier with Open MPI: gradients are summed by MPI_Iallreduce.

Started by mpirun. Prints `step N HASH` after each step, with a hash of all weights. Rank 0 keeps a checkpoint every few
steps, from which all ranks continue after a restart.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

CLASSES = 4
BATCH = 32
POLL_S = 0.0005


def main() -> None:
    """Train `--steps` steps of a softmax regression with momentum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=4096, help="inputs of the classifier")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compute", type=float, default=0.0, help="time that a GPU would compute in a step, s")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.npz"))
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    weights = np.zeros((options.width, CLASSES), np.float32)
    momentum = np.zeros_like(weights)
    begun = 0
    if options.checkpoint.exists():
        with np.load(options.checkpoint) as kept:
            weights = kept["weights"]
            momentum = kept["momentum"]
            begun = int(kept["step"])
    world.Barrier()
    for step in range(begun, options.steps):
        time.sleep(options.compute)
        random = np.random.default_rng((options.seed, step, world.rank))
        inputs = random.standard_normal((BATCH, options.width), np.float32)
        scores = inputs @ weights
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares[np.arange(BATCH), inputs[:, :CLASSES].argmax(1)] -= 1
        gradient = inputs.T @ shares / BATCH
        request = world.Iallreduce(MPI.IN_PLACE, gradient)
        # Open MPI polls without a pause, which leaves no processor time for others
        while not request.Test():
            time.sleep(POLL_S)
        momentum = 0.9 * momentum + gradient / world.size
        weights = weights - np.float32(0.05) * momentum
        # a line at once, and not in parts: mpirun tags what it reads with the rank
        sys.stdout.write(f"step {step + 1} {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}\n")
        sys.stdout.flush()
        if world.rank == 0 and (step + 1) % options.checkpoint_every == 0:
            new = options.checkpoint.with_suffix(".new.npz")
            np.savez(new, weights=weights, momentum=momentum, step=step + 1)
            os.replace(new, options.checkpoint)  # noqa: PTH105


if __name__ == "__main__":
    main()
