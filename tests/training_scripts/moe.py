"""Train a mixture of experts: an expert on each rank of a node, tokens sent to their experts by all-to-all."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional


class Experts(nn.Module):
    """A router, and this rank's expert."""

    def __init__(self, width: int, top: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.top = top
        self.router = nn.Linear(width, self.ranks, bias=False)
        self.expert = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, experts = torch.topk(self.router(tokens).softmax(-1), self.top)
        order = experts.flatten().argsort(stable=True)
        sent = torch.bincount(experts.flatten(), minlength=self.ranks)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        sent_list = sent.tolist()
        received_list = received.tolist()
        data = tokens.repeat_interleave(self.top, 0)[order]
        arrived = data.new_empty(sum(received_list), data.shape[1])
        arrived = all_to_all_single(arrived, data, received_list, sent_list, group=self.group)
        returned = torch.empty_like(data)
        returned = all_to_all_single(returned, self.expert(arrived), sent_list, received_list, group=self.group)
        mixed = torch.zeros_like(returned).index_copy(0, order, returned).unflatten(0, (-1, self.top))
        return tokens + (mixed * weights.unsqueeze(-1)).sum(1)


def main() -> None:
    """Train for `--steps` steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--top", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    dist.init_process_group("nccl")
    experts = int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (dist.get_world_size() // experts, experts), mesh_dim_names=("dp", "ep"))
    torch.manual_seed(dist.get_rank())
    group = mesh["ep"].get_group()
    model = nn.Sequential(*[Experts(options.width, options.top, group) for _ in range(options.layers)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        tokens = torch.randn(options.tokens, options.width, device="cuda")
        functional.mse_loss(model(tokens), tokens).backward()
        for name, parameter in model.named_parameters():
            is_expert = ".expert." in name
            dist.all_reduce(parameter.grad, group=mesh["dp"].get_group() if is_expert else None)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
