"""Steps that were first predicted when the model was done: in no fit, no choice and no interval.

NVIDIA/dgxc-benchmarking@143b90d, llama3.1/README_70b.md and README_405b.md (NeMo 24.09): H100, sequences of 8,192,
micro-batches of 1, no recomputation. 70B: t=4, p=4, c=2, v=5 and 2 sequences a GPU; 405B: t=8, p=9, c=2, v=7.
"""

from statistics import fmean

import pytest

from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.step_time import step_time
from railyard.results.theory.step.strategy import Recipe, one_strategy
from railyard.topologies.platforms import Precision
from railyard.workloads.models.catalogue import load_transformer

STEPS_S = {
    ("llama3-70b", "bf16"): (14.72, 14.73, 14.80, 14.89, 14.92, 14.98),
    ("llama3-405b", "bf16"): (17.20, 17.52, 17.62),
    ("llama3-70b", "fp8"): (11.01, 10.93, 11.16, 11.18, 11.28, 11.39),
    ("llama3-405b", "fp8"): (11.24, 11.31, 12.35),
}
FEWEST_GPUS = {"llama3-70b": 64, "llama3-405b": 576}
BATCH = {"llama3-70b": 128, "llama3-405b": 252}
SPLIT = {
    "llama3-70b": {"tensor": 4, "pipeline": 4, "context": 2, "virtual_stages": 5},
    "llama3-405b": {"tensor": 8, "pipeline": 9, "context": 2, "virtual_stages": 7},
}


def predicted_s(name: str, precision: Precision, scale: int) -> float:
    """Time of a step on `scale` times the fewest GPUs, with as many times the batch, s."""
    gpus = FEWEST_GPUS[name] * scale
    split = SPLIT[name]
    data = gpus // (split["tensor"] * split["pipeline"] * split["context"])
    hardware = make_hardware("h100", gpus, precision=precision)
    recipe = Recipe(BATCH[name] * scale)
    return float(step_time(load_transformer(name), recipe, hardware, one_strategy(**split, data=data)).total_s[0])


@pytest.mark.parametrize(("precision", "mean_pct", "worst_pct"), [("bf16", 5, 6), ("fp8", 8, 9)])
def test_later_rows_are_predicted_within_the_bars(precision: Precision, mean_pct: float, worst_pct: float) -> None:
    errors_pct: list[float] = []
    for (name, number_format), steps_s in STEPS_S.items():
        if number_format == precision:
            for doublings, measured_s in enumerate(steps_s):
                error = predicted_s(name, precision, 2**doublings) / measured_s - 1
                errors_pct.append(100 * abs(error))
    assert len(errors_pct) == 9
    assert fmean(errors_pct) < mean_pct
    assert max(errors_pct) < worst_pct


LLAMA3_405B = (
    # GPUs, context, data, sequence, sequences of a step, TFLOP/s of a GPU
    (8192, 1, 64, 8192, 2048, 430),
    (16384, 1, 128, 8192, 2048, 400),
    (16384, 16, 8, 131_072, 128, 380),
)
"""Grattafiori et al. 2024 (The Llama 3 Herd of Models), Table 4; t = 8, p = 16, H100."""


@pytest.mark.parametrize(("gpus", "context", "data", "sequence", "batch", "tflops"), LLAMA3_405B)
def test_llama3_405b_steps_follow_from_published_tflops(
    gpus: int, context: int, data: int, sequence: int, batch: int, tflops: float
) -> None:
    """A chunk of a layer (v = 8), optimizer state and gradients sharded, gradients in fp32 (their section 3.3.2).

    The paper states no times, and not how FLOPs are counted: 12.0 s by the pairs that the causal mask leaves.
    """
    model = load_transformer("llama3-405b").model_copy(update={"sequence": sequence})
    step_flops = 3 * model.forward_flops(sequence, causal=True) * batch
    measured_s = step_flops / (gpus * tflops * 1e12)
    strategy = one_strategy(tensor=8, pipeline=16, context=context, data=data, virtual_stages=8)
    recipe = Recipe(batch, zero=2, gradient_bytes=4)
    seconds = step_time(model, recipe, make_hardware("h100", gpus), strategy).total_s[0]
    assert seconds == pytest.approx(measured_s, rel=0.05)


@pytest.mark.parametrize(
    ("platform", "gpus", "larger", "split", "published"),
    [
        ("gb200-nvl72", 512, 2560, {"tensor": 4, "pipeline": 16}, 0.95),
        ("gb200-nvl72", 512, 5120, {"tensor": 4, "pipeline": 16}, 0.90),
        ("h200", 512, 1024, {"tensor": 4, "context": 2, "pipeline": 8}, 0.986),
    ],
)
def test_llama3_405b_scales_as_published(
    platform: str, gpus: int, larger: int, split: dict[str, int], published: float
) -> None:
    """fp8, with the batch held (strong scaling), of speed-ups of 90, 95 and 98.6% of linear."""
    model = load_transformer("llama3-405b").model_copy(update={"sequence": 8192})
    model_gpus = split["tensor"] * split.get("context", 1) * split["pipeline"]
    times: list[float] = []
    for count in (gpus, larger):
        strategy = one_strategy(**split, data=count // model_gpus, virtual_stages=8)
        hardware = make_hardware(platform, count, precision="fp8")
        times.append(float(step_time(model, Recipe(1280), hardware, strategy).total_s[0]))
    assert times[0] / times[1] * gpus / larger == pytest.approx(published, abs=0.03)
