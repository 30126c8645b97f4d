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
