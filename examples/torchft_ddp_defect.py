"""Show a defect of torchft 0.2.0: a replica group that dies inside an allreduce ends the others under torchft's DDP.

    .venv/bin/python examples/torchft_ddp_defect.py

Two replica groups train on this machine, without a fabric. In the third step group 1 waits until group 0 is inside its
allreduce, and kills itself. Group 0 should drop the step and go on alone, as it does with `Manager.allreduce`; under
`torchft.DistributedDataParallel` it ends with an AssertionError. The exit status is 1 if the defect shows, else 0.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

STEPS, LAST_TOGETHER = 6, 3
LIMIT = timedelta(seconds=5)


class Dying(ProcessGroupGloo):  # type: ignore[misc]  # torchft has no types
    """A process group whose process kills itself in the allreduce of a step, a moment after its peer has begun it."""

    calls = 0

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        self.calls += 1
        if self.calls == LAST_TOGETHER:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().allreduce(tensors, opts)


def train(group: int, lighthouse: str, with_ddp: bool, both_are_ready: Barrier) -> None:
    """Train as a replica group; group 1 dies."""
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse
    torch.manual_seed(1)
    model = nn.Linear(64, 64, bias=False)  # one gradient: one allreduce in each step
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    both_are_ready.wait()
    manager = Manager(
        pg=(Dying if group else ProcessGroupGloo)(timeout=LIMIT),
        load_state_dict=lambda state: model.load_state_dict(state["model"]),
        state_dict=lambda: {"model": model.state_dict()},
        min_replica_size=1,
        replica_id=f"group{group}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        timeout=LIMIT,
        connect_timeout=LIMIT,
        quorum_timeout=timedelta(seconds=30),
        hostname=socket.gethostname(),
    )
    optimizer = Optimizer(manager, plain)
    parallel = DistributedDataParallel(manager, model) if with_ddp else model
    while (step := manager.current_step()) < STEPS:
        optimizer.zero_grad()
        parallel(torch.ones(8, 64)).square().mean().backward()
        if not with_ddp:
            manager.allreduce(model.weight.grad).wait()
        optimizer.step()
        what = "done" if manager.current_step() > step else "dropped"
        print(f"  group {group}: step {step + 1} {what}, {manager.num_participants()} groups", flush=True)
    os._exit(0)  # threads of torchft's may wait for their timeouts


def survives(with_ddp: bool) -> bool:
    """Return whether group 0 does all its steps although group 1 dies."""
    print("torchft.DistributedDataParallel:" if with_ddp else "Manager.allreduce:", flush=True)
    context = multiprocessing.get_context("spawn")
    lighthouse, barrier = LighthouseServer("[::]:0", 1, join_timeout_ms=2000), context.Barrier(2)
    address = f"http://localhost:{lighthouse.address().rpartition(':')[2]}"
    groups = [context.Process(target=train, args=(n, address, with_ddp, barrier)) for n in range(2)]
    for group in groups:
        group.start()
    groups[0].join(60)
    for group in groups:
        group.kill()
    lighthouse.shutdown()
    print(f"  group 0 ended with exit status {groups[0].exitcode}, group 1 was killed", flush=True)
    return groups[0].exitcode == 0


def main() -> int:
    """Train with both, and return 1 if torchft's DDP alone doesn't survive."""
    if not survives(with_ddp=False):
        print("Manager.allreduce did not survive either")
        return 2
    is_defect = not survives(with_ddp=True)
    print("the defect shows" if is_defect else "no defect: group 0 survives with both")
    return int(is_defect)


if __name__ == "__main__":
    sys.exit(main())
