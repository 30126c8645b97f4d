"""A plain program that sums tensors by torch.distributed over Gloo, to be started as under torchrun."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100):
    tensor = torch.full((65_536,), float(step + dist.get_rank()))
    dist.all_reduce(tensor)
    assert torch.all(tensor == sum(step + rank for rank in range(dist.get_world_size())))
    if step % 10 == 0:
        print("summed", step, flush=True)
dist.destroy_process_group()
