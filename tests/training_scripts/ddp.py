"""Train a small GPT with DistributedDataParallel as nanoGPT does: accumulated gradients, clipping, mixed precision."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Embedding, layers, and the output that shares the embedding's weights."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train for `--steps` steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--bucket-mb", type=float, default=0.1)
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    torch.manual_seed(1337 + rank)
    model = Gpt(options.vocabulary, options.width, options.layers, 4, options.length).to(device)
    parallel = DistributedDataParallel(
        model,
        device_ids=[int(os.environ["LOCAL_RANK"])] if device != "cpu" else None,
        bucket_cap_mb=options.bucket_mb,
    )
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    for step in range(options.steps):
        for micro_step in range(options.accumulate):
            parallel.require_backward_grad_sync = micro_step == options.accumulate - 1
            tokens = torch.randint(options.vocabulary, (2, options.length + 1)).pin_memory().to(device)
            with torch.autocast(device_type=device.partition(":")[0], dtype=torch.bfloat16):
                loss = parallel(tokens[:, :-1], tokens[:, 1:]) / options.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG if device != "cpu" else dist.ReduceOp.SUM)
        if rank == 0:
            print("step", step, "loss", float(total))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
