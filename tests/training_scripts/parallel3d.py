"""Train an MLP with tensor, pipeline and data parallelism: one mesh, DTensor, torch.distributed.pipelining and DDP."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional


class Block(nn.Module):
    """Two linear layers around an activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(x)))


def main() -> None:
    """Train for `--steps` steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2, help="of a stage")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    dist.init_process_group("nccl")
    data = dist.get_world_size() // (options.tensor * options.pipeline)
    mesh = init_device_mesh("cuda", (options.pipeline, data, options.tensor), mesh_dim_names=("pp", "dp", "tp"))
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(1)
    layers = nn.Sequential(*[Block(options.width) for _ in range(options.layers)]).to(device)
    for block in layers:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    stage = PipelineStage(layers, mesh["pp"].get_local_rank(), options.pipeline, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, options.micro_batches, loss_fn=functional.mse_loss)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    is_first = mesh["pp"].get_local_rank() == 0
    is_last = mesh["pp"].get_local_rank() == options.pipeline - 1
    for _ in range(options.steps):
        optimizer.zero_grad()
        batch = torch.randn(options.batch, options.width, device=device)
        inputs = [batch] if is_first else []
        if is_last:
            schedule.step(*inputs, target=batch, losses=[])
        else:
            schedule.step(*inputs)
        for parameter in layers.parameters():
            dist.all_reduce(parameter.grad.to_local(), group=mesh["dp"].get_group())
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
