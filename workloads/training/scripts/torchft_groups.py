"""Train a small network with torchft: every rank is a replica group of its own, which may fail and join again.

Environment: RANK, WORLD_SIZE, MASTER_ADDR as torchrun sets them, and TORCHFT_LIGHTHOUSE. Prints `step N HASH` for each
step that was committed, with a hash of all weights, and `discarded N REASON` for one that was computed in vain.
"""

import os
import socket
from datetime import timedelta

from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from railyard.workloads.training.scripts.model import Momentum, batch, network, parse, weights_hash


def main() -> None:
    """Train until `--steps` are committed. A step needs `--min-groups` replica groups, by default all."""
    options = parse(__doc__, min_groups=int(os.environ["WORLD_SIZE"]))
    rank = int(os.environ["RANK"])
    model = network(options.width, options.seed)
    plain = Momentum(model)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    limit = timedelta(seconds=options.timeout)
    host = socket.gethostname()
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=options.min_groups,
        replica_id=f"group{rank}",
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        timeout=limit,
        connect_timeout=limit,
        quorum_timeout=timedelta(seconds=60),
    )
    optimizer = Optimizer(manager, plain)
    parallel = DistributedDataParallel(manager, model) if options.ddp else model
    while (step := manager.current_step()) < options.steps:
        inputs, classes = batch(options, step, rank)
        optimizer.zero_grad()  # begins a quorum
        nn.functional.cross_entropy(parallel(inputs), classes).backward()
        if not options.ddp:
            # all are begun before the first is waited for
            works = [manager.allreduce(parameter.grad) for parameter in model.parameters()]
            for work in works:
                work.wait()
        optimizer.step()
        if manager.current_step() > step:
            print("step", manager.current_step(), weights_hash(model), flush=True)
        else:
            error = manager.errored()
            reason = str(error.original_exception) if error else f"{manager.num_participants()} groups"
            print("discarded", step + 1, " ".join(reason.split()), flush=True)
    manager.shutdown(wait=False)
    # threads of torchft's may wait for their timeouts
    os._exit(0)


if __name__ == "__main__":
    main()
