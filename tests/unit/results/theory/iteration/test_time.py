"""Iteration times by hand, against the published rows, and the constants against their fit."""

from dataclasses import replace
from statistics import fmean

import pytest

from railyard.results.theory.iteration import iteration_time as theory
from railyard.results.theory.iteration.fit import (
    as_job,
    fitted_constants,
    hfu_pct,
    leave_model_out_s,
    main,
    measured,
    predicted_s,
)
from railyard.results.theory.iteration.iteration_time import (
    A100,
    Job,
    Recipe,
    Strategy,
    activation_bytes,
    gpu_bytes,
    iteration_time,
    make_cluster,
    stage_parameters,
)
from railyard.workloads.models.catalogue import GptModel
from tests.unit.iteration_jobs import one, with_constants

GPT_1T = GptModel.load("gpt-1008b")


def test_flops_are_the_published_formulas() -> None:
    """Narayanan Eq. 3 and Korthikanti Eq. 7, term by term; selective adds one forward of attention, 4 s^2 h."""
    s, h, layers, v, batch = 2048, 25_600, 128, 51_200, 3072
    parts = {
        mode: batch * (layers * theory.layer_flops(GPT_1T, mode) + 6 * s * h * v)
        for mode in ("none", "selective", "full")
    }
    assert parts["full"] == pytest.approx(96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)))
    assert parts["full"] == pytest.approx(theory.hardware_flops(GPT_1T, "full", batch))
    assert parts["none"] == pytest.approx(72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h)))
    assert parts["none"] == pytest.approx(theory.hardware_flops(GPT_1T, "none", batch))
    assert parts["selective"] - parts["none"] == pytest.approx(batch * layers * 4 * s**2 * h)


def test_the_network_terms_by_hand() -> None:
    """GPT-1T on A100s, t=8 in the domain, p=64 and d=6 over rails: Eq. 8, 10 and 11 written out."""
    of = Job(GPT_1T, Recipe(3072), make_cluster("a100", 3072, 8))
    of = with_constants(of, hb_latency_s=0.0, rail_latency_s=0.0)
    times = iteration_time(of, one(Strategy(8, 1, 1, 64, 1, 6, 1, 1)))
    gathered, boundary = 2 * 25_600 * 2048, 2 * 25_600 * 2048 / 8
    assert times.bubble_network_s[0] == pytest.approx(2 * 63 * boundary / 25e9)
    gather_s = 7 / 8 * gathered / 300e9
    assert times.last_stage_network_s[0] == pytest.approx(8 * 128 * 512 * gather_s / 64 + 2 * 512 * boundary / 25e9)
    layers = 128 / 64 * (12 * 25_600**2 + 13 * 25_600)
    held = (layers + (51_200 + 2048) * 25_600) / 8
    assert times.sync_s[0] == pytest.approx(2 * 5 / 6 * 2 * held / 25e9)
    assert times.total_s[0] == pytest.approx(times.compute_s[0] + times.network_s[0])


def test_latency_adds_a_hop_for_each_ring_step_and_message() -> None:
    of = with_constants(
        Job(GPT_1T, Recipe(3072), make_cluster("a100", 3072, 8)), hb_latency_s=1e-3, rail_latency_s=1e-2
    )
    without = with_constants(of, hb_latency_s=0.0, rail_latency_s=0.0)
    s = one(Strategy(4, 2, 2, 32, 1, 6, 1, 2))
    late, prompt = iteration_time(of, s), iteration_time(without, s)
    assert (late.sync_s - prompt.sync_s)[0] == pytest.approx(2 * 5 * 1e-2)
    assert (late.bubble_network_s - prompt.bubble_network_s)[0] == pytest.approx(2 * 31 * 1e-2 + 2 * 32 * 1e-3)
    collectives = 8 * 128 / 64 * 512 * (3 * 1e-3 + 1e-2)
    assert (late.last_stage_network_s - prompt.last_stage_network_s)[0] == pytest.approx(
        collectives + 2 * 512 * 2 * 1e-2
    )


def test_memory_by_hand() -> None:
    """Korthikanti's 22B on 8 GPUs: 16 bytes of 2.78 G parameters, and 34 s b h l/t with selective recomputation."""
    model = GptModel.load("gpt-22b")
    of = Job(model, Recipe(4), make_cluster("a100", 8, 8))
    s = one(Strategy(8, 1, 1, 1, 1, 1, 4, 1))
    held = (48 * (12 * 6144**2 + 13 * 6144) + (51_200 + 2048) * 6144) / 8
    unit = 2048 * 4 * 6144
    kept, attention = 34 * unit * 48 / 8, 5 * 64 * 2048 / 6144 * unit / 8
    assert stage_parameters(of, s)[0] == held
    assert activation_bytes(of, s)[0] == pytest.approx(kept + attention)
    assert gpu_bytes(of, s)[0] == pytest.approx(16 * held + kept + attention)
    interleaved = one(Strategy(8, 1, 1, 8, 1, 1, 1, 3))
    plain = one(Strategy(8, 1, 1, 8, 1, 1, 1, 1))
    of = replace(of, recipe=Recipe(64, "none"))
    assert activation_bytes(of, interleaved)[0] / activation_bytes(of, plain)[0] == pytest.approx(1 + 7 / 24)


def test_constants_equal_the_fit() -> None:
    """iteration_time.py holds what `python -m railyard.results.theory.iteration.fit` prints, to its four digits."""
    found = fitted_constants([row for row in measured() if row.fitted])
    assert found.matmul_efficiency == pytest.approx(A100.matmul_efficiency, rel=5e-4)
    assert found.memory_efficiency == pytest.approx(A100.memory_efficiency, rel=5e-4)
    assert found.overhead_flops == pytest.approx(A100.overhead_flops, rel=5e-4)


def test_the_fit_finds_constants_that_are_known() -> None:
    """Rows made with other constants give these back."""
    made = replace(A100, matmul_efficiency=0.5, memory_efficiency=0.6, overhead_flops=3e11)
    rows = []
    for row in measured():
        of, strategy = as_job(row)
        of = replace(of, cluster=replace(of.cluster, constants=made))
        rows.append(replace(row, seconds=float(iteration_time(of, strategy).total_s[0])))
    found = fitted_constants(rows)
    assert found.matmul_efficiency == pytest.approx(0.5)
    assert found.memory_efficiency == pytest.approx(0.6)
    assert found.overhead_flops == pytest.approx(3e11)


@pytest.mark.parametrize(
    ("table", "rows", "mean", "worst"), [("korthikanti", 8, 3.5, 8.0), ("megatron", 10, 6.0, 10.0)]
)
def test_published_times_are_met(table: str, rows: int, mean: float, worst: float) -> None:
    """calculon (Isaev et al. 2023) has 3.65% and 8.87% on Korthikanti's. Rows held out meet the mean by themselves."""
    errors = {row: abs(100 * (predicted_s(row) / row.seconds - 1)) for row in measured() if row.table == table}
    assert len(errors) == rows
    assert fmean(errors.values()) <= mean, errors
    assert max(errors.values()) <= worst, errors
    assert fmean(e for row, e in errors.items() if not row.fitted) <= mean


def test_models_left_out_altogether_are_still_near() -> None:
    """No row predicted by constants that saw its model's shape; GPT-1T is then an extrapolation."""
    errors = [abs(100 * (leave_model_out_s(row) / row.seconds - 1)) for row in measured()]
    assert fmean(errors) <= 4.0
    assert max(errors) <= 9.0


def test_hfu_of_the_published_times_is_the_published_hfu() -> None:
    """The FLOPs are counted as Korthikanti et al. counted them: their HFU follows from their seconds."""
    found = {row.model: hfu_pct(row, row.seconds) - row.hfu_pct for row in measured() if row.hfu_pct is not None}
    assert len(found) == 4
    assert max(map(abs, found.values())) < 0.6, found


def test_the_fit_prints_its_constants_and_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"matmul_efficiency={A100.matmul_efficiency:.4f}"
    assert len(lines) == 3 + 18
