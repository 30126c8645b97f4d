"""The measured steps: which are fitted, how near predictions come, and how often intervals hold them."""

from collections import Counter

import pytest

from railyard.results.published.catalogue import FIGURES
from railyard.results.theory.step.calibration import expert_constants, gpu_constants, matmul_share, platforms_to_fit
from railyard.results.theory.step.hardware import efficiency
from railyard.results.theory.step.holdout.report import predicted_steps
from railyard.results.theory.step.holdout.rows import measured_steps
from railyard.results.theory.step.interval import COVERAGE, interval_of, job_class, outside_of_measured
from railyard.workloads.models.catalogue import load_transformer


def test_fitted_rows_are_the_allowed_rows() -> None:
    fitted = Counter((row["table"], row["release"]) for row in measured_steps() if row.fitted)
    assert fitted == {
        ("korthikanti", ""): 4,
        ("megatron", ""): 5,
        ("bridge", "25.09"): 17,
        ("bridge", "25.11"): 28,
    }
    assert Counter(row["table"] for row in measured_steps()) == {
        "korthikanti": 8, "megatron": 10, "vtrain": 109, "dgxc": 36, "mpt": 139, "mpt-h100": 62, "bridge": 205,
    }  # fmt: skip


def test_bars_are_met_or_explained() -> None:
    claims = FIGURES["holdout"]().claims
    missed = {claim.what: claim.ours for claim in claims if not claim.agrees}
    assert missed == {
        "mean error, A100, GPT of 2021/22, 109 rows": pytest.approx(6.04, abs=0.01),
    }
    assert all(claim.note for claim in claims if not claim.agrees)


def test_calibration_finds_the_stored_constants() -> None:
    shares = efficiency()
    for platform in platforms_to_fit():
        platform_shares = shares["all"] | shares.get(platform, {})
        assert platform_shares["fp8"] == platform_shares["mxfp8"] == matmul_share(platform)
    stored = tuple(shares["all"][name] for name in ("experts", "moe_layer_s", "moe_graph_s"))
    assert expert_constants() == stored
    constants = gpu_constants([row for row in measured_steps() if row["platform"] == "a100" and row.fitted])
    a100 = shares["all"]
    assert constants.bf16_share == pytest.approx(a100["training"] * a100["large_matmul"], rel=1e-3)
    assert constants.memory_share == pytest.approx(a100["memory"], rel=1e-3)
    assert constants.overhead_flops == pytest.approx(a100["overhead_flops"], rel=1e-3)


def test_intervals_hold_most_rows_held_out() -> None:
    held_out = [step for step in predicted_steps() if not step.row.fitted]
    inside = sum(step.is_inside for step in held_out)
    assert inside / len(held_out) == pytest.approx(COVERAGE, abs=0.05)


def models_of(platform: str, precision: str, is_moe: bool = False, is_fsdp: bool = False) -> int:
    """Return how many models the interval of a class is from."""
    return interval_of(job_class(platform, precision, is_moe, is_fsdp)).models


def test_classes_of_few_models_take_a_wider_class() -> None:
    assert models_of("a100", "bf16") == 8
    # three models were measured on H100 in bf16 without FSDP, five in any format
    assert models_of("h100", "bf16") == models_of("h100", "fp8") == 5
    assert models_of("h100", "bf16", is_fsdp=True) == 7
    assert models_of("mi300x", "fp8") > 12
    # no MoE rows of H100 are of enough models, and all of them scatter widely
    dense = interval_of(job_class("mi300x", "fp8", is_moe=False, is_fsdp=False))
    moe = interval_of(job_class("h100", "fp8", is_moe=True, is_fsdp=False))
    assert moe.high / moe.low > dense.high / dense.low


def test_jobs_beyond_all_measured_steps_are_named() -> None:
    def outside(platform: str, precision: str, name: str, sequence: int, gpus: int, is_fsdp: bool = False) -> list[str]:
        model = load_transformer(name).model_copy(update={"sequence": sequence})
        job = job_class(platform, precision, bool(model.moe_layers), is_fsdp)
        return outside_of_measured(job, platform, model, gpus)

    assert outside("h100", "fp8", "llama3-70b", 4096, 1024) == []
    platform, sequence, gpus = outside("mi300x", "bf16", "llama3-405b", 131072, 16384)
    assert "mi300x" in platform
    assert "65,536" in sequence
    assert "3,072" in gpus
    (number_format,) = outside("b200", "nvfp4", "llama3-8b", 4096, 64)
    assert "dense model on b200 in nvfp4" in number_format
    # dense models were measured with longer sequences, more GPUs and FSDP
    sharding, sequence, gpus, parameters = outside("h100", "fp8", "kimi-k2", 16384, 2048, is_fsdp=True)
    assert "mixture of experts on h100 with FSDP" in sharding
    assert "8,192" in sequence
    assert "1,024" in gpus
    assert "671 B" in parameters
