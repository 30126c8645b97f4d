"""Memory of a GPU by ZeRO's stages, expert parallelism and recomputation."""

import pytest

from railyard.results.theory.step.memory import gpu_memory, gpu_parameters
from railyard.results.theory.step.strategy import Recipe, one_strategy
from railyard.workloads.models.catalogue import load_transformer


def state_bytes(zero: int) -> float:
    """Bytes of parameters, gradients and Adam's state of Llama 3 8B on 8 GPUs."""
    model = load_transformer("llama3-8b")
    return float(gpu_memory(model, Recipe(8, zero=zero), one_strategy(data=8)).state_bytes[0])


def test_zero_splits_16_bytes_of_a_parameter() -> None:
    parameters = load_transformer("llama3-8b").all_parameters
    assert state_bytes(0) == pytest.approx(16 * parameters)
    assert state_bytes(1) == pytest.approx((4 + 12 / 8) * parameters)
    assert state_bytes(2) == pytest.approx((2 + 14 / 8) * parameters)
    # two whole layers come on top
    assert 16 / 8 * parameters < state_bytes(3) < 16 / 8 * parameters + 1e9


def test_experts_are_split_by_expert_parallelism() -> None:
    model = load_transformer("mixtral-8x7b")
    few, many = (gpu_parameters(model, one_strategy(data=8, expert=expert)) for expert in (1, 8))
    assert few.experts[0] == 8 * many.experts[0] == model.all_expert_parameters
    assert few.static[0] == many.static[0] == model.all_parameters - model.all_expert_parameters


def test_recomputation_keeps_less() -> None:
    model = load_transformer("llama3-70b")
    strategy = one_strategy(tensor=8, pipeline=4, data=2)
    none, selective, full = (
        float(gpu_memory(model, Recipe(64, recompute=recompute), strategy).activation_bytes[0])
        for recompute in ("none", "selective", "full")
    )
    assert none > 1.2 * selective > 3 * full


def test_quantized_inputs_of_matmuls_take_less() -> None:
    """Of a layer's 8 h + 6 f bytes and attention's, norms' and attention's outputs and f values are kept quantized."""
    model = load_transformer("llama3-405b")
    strategy = one_strategy(tensor=4, pipeline=16, data=4, virtual_stages=4)
    bf16, fp8, nvfp4 = (
        float(gpu_memory(model, Recipe(1536), strategy, precision).activation_bytes[0])
        for precision in ("bf16", "fp8", "nvfp4")
    )
    saved = 8192 * model.layers * (3 * model.hidden + model.ffn) / 4 * (1 + 15 / 64)
    assert bf16 - fp8 == pytest.approx(saved)
    assert bf16 - nvfp4 == pytest.approx(1.5 * saved)
