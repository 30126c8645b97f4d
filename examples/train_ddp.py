"""A plain program with PyTorch's DistributedDataParallel, to be started as under torchrun. It knows no Railyard."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = nn.functional.mse_loss(model(inputs := torch.randn(32, 256)), inputs.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
weights = nn.utils.parameters_to_vector(model.parameters())
everyones = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
dist.all_gather(everyones, weights.detach())
assert all(torch.equal(weights, other) for other in everyones)
dist.destroy_process_group()
