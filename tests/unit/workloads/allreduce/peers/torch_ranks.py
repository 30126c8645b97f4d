"""Three ranks of torch.distributed on loopback, over Gloo, then Railyard.

    python -m tests.unit.workloads.allreduce.peers.torch_ranks

One import of PyTorch, then a fork a rank. What each rank saw goes to standard output, pickled: `Seen` as a dict.
"""

import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers load it at their first step: once here, not on each rank
import torch.distributed as dist
from torch import nn

from railyard.workloads.allreduce.engine.jobs import loopback
from railyard.workloads.allreduce.peers import torch_backend
from railyard.workloads.allreduce.peers.training import Training, TrainingResult, train
from tests.unit.workloads.allreduce.multirail_net import QUICK, free_port, rails_of

RANKS = 3
kept: list[Any] = []
TRAINING = Training(steps=60, batch=32, width=64, bucket_mb=0.05)


@dataclass
class Seen:
    """By backend: results of collectives, and a training. `refused`: what was said to calls that can't be; `aborted`:
    to those on a group that one rank aborts, for which it took `abort_s`.
    """

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    trained: dict[str, TrainingResult] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    in_place: bool = False
    aborted: list[str] = field(default_factory=list)
    abort_s: float = 0.0


def collectives(rank: int) -> dict[str, Any]:
    """Return every collective once; numbers small enough that their sums are exact in any order."""
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16):
        tensor = (torch.arange(1001) % 7 + rank).to(dtype).reshape(7, 11, 13)
        dist.all_reduce(tensor)
        found[f"all_reduce {dtype}"] = tensor.tolist()
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        tensor = torch.full((5, 3), rank).to(dtype)
        dist.broadcast(tensor, src=1)
        found[f"broadcast {dtype}"] = tensor.tolist()
    parts = [torch.zeros(2, 3, dtype=torch.bfloat16) for _ in range(RANKS)]
    dist.all_gather(parts, torch.full((2, 3), rank + 1.5, dtype=torch.bfloat16))
    found["all_gather"] = [part.tolist() for part in parts]
    whole = torch.zeros(RANKS * 4)
    dist.all_gather_single(whole, torch.full((4,), float(rank)))
    found["all_gather_single"] = whole.tolist()
    mine = torch.zeros(2)
    dist.reduce_scatter(mine, [torch.full((2,), float(rank + part)) for part in range(RANKS)])
    found["reduce_scatter"] = mine.tolist()
    dist.reduce_scatter_single(mine, torch.arange(2.0 * RANKS) * (rank + 1))
    found["reduce_scatter_single"] = mine.tolist()
    objects: list[Any] = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    found["all_gather_object"] = objects
    several = [torch.full((100,), float(10 * rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in several]
    for work in reversed(works):
        work.wait()
    found["asynchronous"] = [tensor.tolist() for tensor in several]
    dist.barrier()
    return found


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def refusals(rank: int) -> dict[str, str]:
    """What is said to each rank, with the group as it was; and last a call that ends the group, and DDP's after it."""
    found = {
        "bool": refusal(lambda: dist.all_reduce(torch.zeros(3, dtype=torch.bool))),
        "strides": refusal(lambda: dist.all_reduce(torch.zeros(4, 4).t()[1:])),
        "max": refusal(lambda: dist.all_reduce(torch.zeros(3), op=dist.ReduceOp.MAX)),
        "lengths": refusal(lambda: dist.all_gather_single(torch.zeros(4), torch.zeros(4))),
        "second": refusal(lambda: dist.new_group(list(range(RANKS)))),
        "some": refusal(lambda: dist.new_group([0, 1])),
    }
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    found["unlike"] = refusal(lambda: dist.all_reduce(torch.zeros(3 + rank)))
    found["after"] = refusal(lambda: model(torch.ones(1, 4)).sum().backward())
    return found


def abort(rank: int, seen: Seen) -> None:
    """Rank 1 aborts with an operation under way that the others never begin, and another one waiting behind it."""
    dist.barrier()
    if rank == 1:
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
        time.sleep(0.1)
        began = time.monotonic()
        dist.group.WORLD.abort()
        seen.abort_s = time.monotonic() - began
        seen.aborted = [refusal(work.wait) for work in works]
    else:
        time.sleep(0.2)
        seen.aborted = [refusal(dist.barrier)]


def on_rank(rank: int, folder: Path, first_port: int) -> Seen:
    torch.set_num_threads(1)
    seen = Seen()
    layout = loopback(rails_of("tcp glex"), RANKS, first_port)

    def met(backend: str, name: str) -> None:
        limit = timedelta(seconds=30)
        dist.init_process_group(backend, f"file://{folder / name}", limit, RANKS, rank)

    for backend in ("gloo", "railyard"):
        torch_backend.register(layout, "equal", QUICK)
        met(backend, f"{backend}1")
        seen.results[backend] = collectives(rank)
        end_group()
        seen.trained[backend] = train(backend, rank, RANKS, f"file://{folder / backend}2", TRAINING)
        end_group()
    met("railyard", "last")
    tensor = torch.ones(1 << 16)
    dist.all_reduce(tensor)
    seen.in_place = bool((tensor == RANKS).all()) and copied_once(tensor)
    seen.refused = refusals(rank)
    end_group()
    met("railyard", "aborted")
    abort(rank, seen)
    return seen


def end_group() -> None:
    """But keep it: Gloo's may hang if it goes right after its last operation (ddp.py says why)."""
    kept.append(dist.group.WORLD)
    dist.destroy_process_group()


def copied_once(tensor: Any) -> bool:
    """The group has copied no more than a result into the tensor's own memory."""
    copies = dist.group.WORLD.group.copies
    return bool(copies.result == tensor.nbytes and copies.own_part == 0)


def fork(rank: int, folder: Path, first_port: int) -> int:
    """The rank's process id, here; the rank never returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        seen = asdict(on_rank(rank, folder, first_port))
        (folder / f"seen{rank}").write_bytes(pickle.dumps(seen))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    first_port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pid in [fork(rank, folder, first_port) for rank in range(RANKS)]:
            os.waitpid(pid, 0)
        seen = [pickle.loads((folder / f"seen{rank}").read_bytes()) for rank in range(RANKS)]
    pickle.dump(seen, sys.stdout.buffer)


if __name__ == "__main__":
    main()
