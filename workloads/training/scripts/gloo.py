"""Train a small network with torch.distributed over Gloo: gradients are summed by plain allreduces.

Environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them. Prints `step N HASH` after each step,
with a hash of all weights. Rank 0 keeps a checkpoint every few steps, from which all ranks continue after a restart.
"""

import os
from datetime import timedelta

import torch.distributed as dist
from torch import nn

from railyard.workloads.training.scripts.model import Momentum, batch, load, network, parse, save, weights_hash


def main() -> None:
    """Train `--steps` steps. A collective that takes longer than `--timeout` ends the process."""
    options = parse(__doc__)
    rank = int(os.environ["RANK"])
    model = network(options.width, options.seed)
    optimizer = Momentum(model)
    begun = load(options.checkpoint, model, optimizer)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    for step in range(begun, options.steps):
        inputs, classes = batch(options, step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), classes).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        print("step", step + 1, weights_hash(model), flush=True)
        if rank == 0 and (step + 1) % options.checkpoint_every == 0:
            save(options.checkpoint, step + 1, model, optimizer)
    dist.barrier()
    # without it, its threads may abort the process at its end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
