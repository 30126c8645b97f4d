"""Train a small GPT with Megatron Core: tensor, pipeline and data parallelism, and a distributed optimizer."""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

Batch = dict[str, torch.Tensor]
Loss = Callable[[torch.Tensor], tuple[torch.Tensor, Batch]]


def batches(options: argparse.Namespace, device: torch.device) -> Iterator[Batch]:
    """Yield batches of random tokens."""
    shape = (options.batch, options.length)
    positions = torch.arange(options.length, device=device).expand(shape)
    while True:
        tokens = torch.randint(options.vocabulary, shape, device=device)
        yield {"tokens": tokens, "positions": positions}


def mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, Batch]:
    """Return the loss of a batch, and what is logged of it."""
    loss = losses.float().mean()
    return loss, {"loss": loss.detach()}


def forward_step(data: Iterator[Batch], model: torch.nn.Module) -> tuple[torch.Tensor, Loss]:
    """Compute a micro-batch."""
    batch = next(data)
    output = model(batch["tokens"], batch["positions"], None, labels=batch["tokens"])
    return output, partial(mean_loss)


def main() -> None:
    """Train for `--steps` steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(options.tensor, options.pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    device = torch.device("cuda", local_rank)
    config = TransformerConfig(
        num_layers=options.layers,
        hidden_size=options.width,
        num_attention_heads=options.heads,
        tensor_model_parallel_size=options.tensor,
        pipeline_model_parallel_size=options.pipeline,
        sequence_parallel=options.sequence_parallel,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        params_dtype=torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=options.vocabulary,
        max_sequence_length=options.length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )
    of_data = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    model = DistributedDataParallel(config, of_data, gpt.to(device).bfloat16())
    of_optimizer = OptimizerConfig(lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(of_optimizer, [model])
    config.finalize_model_grads_func = finalize_model_grads
    forward_backward = get_forward_backward_func()
    data = batches(options, device)
    for _ in range(options.steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward_step,
            data_iterator=data,
            model=[model],
            num_microbatches=options.micro_batches,
            seq_length=options.length,
            micro_batch_size=options.batch,
            forward_only=False,
        )
        optimizer.step()


if __name__ == "__main__":
    main()
