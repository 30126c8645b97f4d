"""Time of a training step: computing, what communication adds to it, the pipeline's bubble, and the optimizer."""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from railyard.results.theory.step import communication
from railyard.results.theory.step.compute import BYTES, ComputeTime, compute_time
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.memory import ADAM_BYTES, gpu_parameters
from railyard.results.theory.step.overlap import beside_weight_gradients_s, exposed_tensor_s
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
from railyard.workloads.models.transformer import Transformer

ZERO_2: Final = 2
FSDP: Final = 3


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by cause; they add up to `total_s`. Of communication, what computing doesn't hide.

    matmul_s, attention_s, memory_s, launch_s, output_s: computing on all micro-batches (compute.py)
    imbalance_s: waiting for the stage that has most to compute: more layers, or the output layer
    tensor_s, context_s, expert_s, data_s: communication of each dimension
    bubble_s: filling and draining the pipeline
    pipeline_s: transfers between stages
    optimizer_s: Adam
    """

    matmul_s: FloatArray
    attention_s: FloatArray
    memory_s: FloatArray
    launch_s: FloatArray
    output_s: FloatArray
    imbalance_s: FloatArray
    tensor_s: FloatArray
    context_s: FloatArray
    expert_s: FloatArray
    bubble_s: FloatArray
    pipeline_s: FloatArray
    data_s: FloatArray
    optimizer_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Time of a step, s."""
        total: FloatArray = np.sum([getattr(self, field.name) for field in fields(self)], axis=0)
        return total


def step_time(model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies) -> StepTime:
    """Return the time of a step by cause, for each strategy."""
    computing = compute_time(model, recipe, hardware, s)
    tensor = communication.tensor_s(model, recipe, hardware, s)
    context = communication.context_s(model, hardware, s, computing.attention_s)
    experts = communication.expert_s(model, hardware, s)
    average_s = computing.layers_s + computing.output_s / s.pipeline
    # a second micro-batch computes meanwhile, so only what takes longer than its computing is waited for
    if recipe.overlap_experts:
        experts = np.maximum(0.0, experts - average_s)
    tensor = exposed_tensor_s(model, recipe, hardware, s, tensor)
    # forward and the gradients of inputs and of weights take as long each
    weight_gradients_s = computing.matmul_s / (4 if recipe.recompute == "full" else 3)
    tensor = beside_weight_gradients_s(recipe, tensor, weight_gradients_s)
    slowest_s = np.maximum(_slowest_stage_s(model, recipe, computing, s), average_s)
    micro_batch_s = slowest_s + tensor + context + experts
    m = s.micro_batches(recipe.global_batch)
    return StepTime(
        matmul_s=m * computing.matmul_s,
        attention_s=m * computing.attention_s,
        memory_s=m * computing.memory_s,
        launch_s=m * computing.launch_s,
        output_s=m * computing.output_s / s.pipeline,
        imbalance_s=m * (slowest_s - average_s),
        tensor_s=m * tensor,
        context_s=m * context,
        expert_s=m * experts,
        bubble_s=(s.pipeline - 1) / s.virtual_stages * (average_s + tensor + context + experts),
        pipeline_s=_pipeline_s(model, recipe, hardware, s, micro_batch_s),
        data_s=_data_s(model, recipe, hardware, s, micro_batch_s),
        optimizer_s=_optimizer_s(model, recipe, hardware, s),
    )


def _pipeline_s(
    model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies, micro_batch_s: FloatArray
) -> FloatArray:
    """Return the time that transfers between stages add to a step.

    Each micro-batch enters and leaves a stage once for each of its chunks, forward and backward. While the pipeline
    fills and drains there is nothing to run beside.
    """
    hop_s = communication.hop_s(model, recipe, hardware, s)
    m = s.micro_batches(recipe.global_batch)
    filling_s = 2 * hop_s * (s.pipeline - 1)
    transfers_s = 2 * hop_s * s.virtual_stages
    if recipe.overlap_pipeline:
        return m * np.maximum(0.0, transfers_s - micro_batch_s) + filling_s
    return m * transfers_s + filling_s


def _slowest_stage_s(model: Transformer, recipe: Recipe, computing: ComputeTime, s: Strategies) -> FloatArray:
    """Return the computing time of a micro-batch at the stage that has most.

    Chunks (p v of them) take whole layers. Where the layers don't fill all of them, the last has room for the output
    layer.
    """
    if recipe.equal_stages:
        return computing.layers_s + computing.output_s / s.pipeline
    layer_s = computing.layers_s * s.pipeline / model.layers
    chunks = s.pipeline * s.virtual_stages
    layers_of_chunk = np.ceil(model.layers / chunks)
    full_stage_s = s.virtual_stages * layers_of_chunk * layer_s
    free_layers = chunks * layers_of_chunk - model.layers
    last_stage_s = full_stage_s - np.minimum(free_layers, computing.output_s / layer_s) * layer_s + computing.output_s
    several = np.maximum(np.where(free_layers > 0, full_stage_s, 0.0), last_stage_s)
    return np.where(s.pipeline > 1, several, computing.layers_s + computing.output_s)


def _data_s(
    model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies, micro_batch_s: FloatArray
) -> FloatArray:
    """Return the time that data-parallel communication adds to a step.

    ReduceScatter of gradients and AllGather of parameters (as an AllReduce where ZeRO is 0), once a step. Overlapped,
    they run beside the last micro-batch's backward and the first one's forward pass, and only the first layer's
    part has nothing to run beside. ZeRO 2 keeps no whole gradients, so it reduces those of every micro-batch. FSDP
    gathers parameters in both passes of every micro-batch too.
    """
    parameters = gpu_parameters(model, s)
    m = s.micro_batches(recipe.global_batch)
    layers = model.layers / s.pipeline
    if recipe.zero == FSDP:
        # layer by layer, so each layer has a ring's latency
        layer_s = communication.data_ring_s(parameters.static / layers, BYTES, hardware, s)
        layer_s = layer_s + communication.expert_data_ring_s(parameters.experts / layers, BYTES, hardware, s)
        if not recipe.overlap_data:
            return m * 3 * layers * layer_s
        waiting_s = np.maximum(0.0, 3 * layers * layer_s - micro_batch_s) + layer_s
        return m * waiting_s
    gradients_s = communication.data_ring_s(parameters.static, recipe.gradient_bytes, hardware, s)
    gradients_s = gradients_s + communication.expert_data_ring_s(parameters.experts, recipe.gradient_bytes, hardware, s)
    value_bytes = recipe.gradient_bytes
    if recipe.zero:
        value_bytes = BYTES
    gathered_s = communication.data_ring_s(parameters.static, value_bytes, hardware, s)
    gathered_s = gathered_s + communication.expert_data_ring_s(parameters.experts, value_bytes, hardware, s)
    earlier_micro_batches = 0 * m
    if recipe.zero == ZERO_2:
        earlier_micro_batches = m - 1
    if not recipe.overlap_data:
        return (earlier_micro_batches + 1) * gradients_s + gathered_s
    # the last layer's gradients and the first layer's parameters have no computing left to run beside
    layers = np.maximum(1.0, layers)
    total_s = gradients_s + gathered_s
    last_s = np.maximum(0.0, total_s - micro_batch_s) + total_s / layers
    earlier_s = np.maximum(0.0, gradients_s - micro_batch_s) + gradients_s / layers
    return earlier_micro_batches * earlier_s + last_s


def _optimizer_s(model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of Adam over a GPU's share of the parameters.

    Adam reads the fp32 copy and both moments, writes the three, and the 16-bit parameter; the gradient is read twice,
    for the norm and for the update.
    """
    parameters = gpu_parameters(model, s)
    # with ZeRO each replica updates its own part
    split = np.ones_like(s.tensor) if recipe.zero == 0 else s.replicas
    expert_split = np.ones_like(s.tensor) if recipe.zero == 0 else s.expert_replicas
    share = parameters.static / split + parameters.experts / expert_split
    moved_bytes = share * (2 * ADAM_BYTES + BYTES + 2 * recipe.gradient_bytes)
    return hardware.waiting * moved_bytes / (hardware.memory_bytes_per_s * hardware.memory_share)
