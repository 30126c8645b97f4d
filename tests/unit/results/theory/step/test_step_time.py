"""The time of a step: against Rail-only's model on the jobs of the papers, and term by term."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.results.theory.iteration.fit import Measured, measured
from railyard.results.theory.iteration.fit import predicted_s as by_equations_s
from railyard.results.theory.iteration.iteration_time import A100
from railyard.results.theory.step.communication import expert_s, inside_domain, ring_s
from railyard.results.theory.step.compute import stored_bytes
from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.step_time import step_time
from railyard.results.theory.step.strategy import Recipe, one_strategy
from railyard.workloads.models.catalogue import GptModel, load_transformer


def published_job_s(row: Measured) -> float:
    """Time of a job of the papers by this model with the constants of the equations, s."""
    model = GptModel.load(row.model)
    training = model.training
    recipe = Recipe(
        training.global_batch,
        recompute=row.recipe.recompute,
        sequence_parallel=row.recipe.sequence_parallel,
        zero=0,
        overlap_data=False,
        overlap_input_gradients=False,
        equal_stages=True,
    )
    strategy = one_strategy(
        tensor=training.tensor,
        pipeline=training.pipeline,
        data=training.data,
        virtual_stages=training.virtual_stages,
        micro_batch=training.micro_batch,
    )
    hardware = replace(
        make_hardware("a100", training.gpus, min(model.domain_gpus, training.gpus)),
        matmul_share=A100.matmul_efficiency,
        bf16_share=A100.matmul_efficiency,
        memory_share=A100.memory_efficiency,
        pass_s=A100.overhead_flops / A100.matmul_efficiency / 312e12,
        hb_share=1.0,
        rail_share=1.0,
        small_group=0.0,
        speed_spread=0.0,
    )
    return float(step_time(model.transformer, recipe, hardware, strategy).total_s[0])


@pytest.mark.parametrize("row", measured(), ids=lambda row: f"{row.table} {row.model} {row.mode}")
def test_jobs_of_the_papers_are_near_the_equations(row: Measured) -> None:
    """Equations 6 to 11 lack only the gathering of what stages receive."""
    assert published_job_s(row) == pytest.approx(by_equations_s(row), rel=0.02)


def test_gpt_stores_the_bytes_of_korthikanti() -> None:
    model = load_transformer("gpt-22b")
    (kind,) = model.layer_kinds
    stored = stored_bytes(model, kind, Recipe(4), one_strategy())
    assert stored.other[0] == 34 * model.hidden
    assert stored.scores[0] == 5 * model.heads * model.sequence
    split = stored_bytes(model, kind, Recipe(4, sequence_parallel=False), one_strategy(tensor=8))
    assert split.other[0] == (10 + 24 / 8) * model.hidden


@given(
    inside=st.sampled_from([1, 2, 4, 8]),
    across=st.sampled_from([1, 2, 16, 128]),
    data_bytes=st.floats(1e6, 1e11),
)
def test_ring_is_never_faster_than_its_rails(inside: int, across: int, data_bytes: float) -> None:
    hardware = replace(make_hardware("h100", 1024), hb_latency_s=0.0, rail_latency_s=0.0)
    x, y = np.array([float(inside)]), np.array([float(across)])
    ring = ring_s(np.array([data_bytes]), x, x * y, hardware)[0]
    if across == 1:
        share = 1 + hardware.small_group / inside
        assert ring == pytest.approx((inside - 1) / inside * data_bytes * share / hardware.hb_rate)
    else:
        over_rails = (across - 1) / (inside * across) * data_bytes / hardware.rail_rate
        assert ring >= over_rails * (1 - 1e-9)


def test_groups_fill_hb_domains_evenly() -> None:
    group = np.array([8.0, 16.0, 12.0, 64.0])
    stride = np.array([1.0, 4.0, 2.0, 1.0])
    assert inside_domain(group, stride, 8).tolist() == [8, 2, 4, 8]
    assert inside_domain(group, stride, 72).tolist() == [8, 16, 12, 64]


def test_output_layer_is_the_last_stage_s() -> None:
    model = load_transformer("nemotron4-340b")
    hardware = make_hardware("h100", 128)
    strategy = one_strategy(tensor=8, pipeline=8, data=2, virtual_stages=12)
    apart = step_time(model, Recipe(32), hardware, strategy)
    spread = step_time(model, Recipe(32, equal_stages=True), hardware, strategy)
    # 7/8 of the output layer is beyond what each stage would have of it
    assert apart.imbalance_s[0] == pytest.approx(7 * apart.output_s[0])
    assert spread.imbalance_s[0] == 0


def test_free_chunks_take_the_output_layer() -> None:
    """126 layers in 16 x 8 chunks leave two chunks free, and the output layer is shorter than a layer."""
    model = load_transformer("llama3-405b")
    strategy = one_strategy(tensor=8, pipeline=16, data=64, virtual_stages=8)
    times = step_time(model, Recipe(2048), make_hardware("h100", 8192), strategy)
    layers_s = (times.matmul_s + times.attention_s + times.memory_s + times.launch_s)[0]
    assert (layers_s + times.output_s + times.imbalance_s)[0] == pytest.approx(layers_s * 128 / 126)


def test_terms_add_up() -> None:
    model = load_transformer("deepseek-v3")
    strategy = one_strategy(pipeline=8, data=32, expert=32, virtual_stages=2)
    times = step_time(model, Recipe(4096), make_hardware("b200", 256, precision="mxfp8"), strategy)
    terms = [getattr(times, field.name)[0] for field in fields(times)]
    assert min(terms) >= 0
    assert sum(terms) == pytest.approx(times.total_s[0])
    assert times.expert_s[0] > 0


def test_low_precision_is_faster_but_not_by_its_peak() -> None:
    model = load_transformer("llama3-70b")
    strategy = one_strategy(tensor=4, pipeline=8, data=2, virtual_stages=5)
    bf16_s, fp8_s = (
        step_time(model, Recipe(128), make_hardware("h100", 64, precision=precision), strategy).total_s[0]
        for precision in ("bf16", "fp8")
    )
    assert 1.2 < bf16_s / fp8_s < 1.7


def test_overlap_hides_communication() -> None:
    model = load_transformer("qwen3-235b-a22b")
    strategy = one_strategy(tensor=2, pipeline=8, data=16, expert=32, virtual_stages=4)
    hardware = make_hardware("h100", 256)
    beside = step_time(model, Recipe(2048, overlap_experts=True), hardware, strategy)
    apart = step_time(model, Recipe(2048, overlap_data=False), hardware, strategy)
    assert beside.expert_s[0] < apart.expert_s[0] / 2
    assert beside.data_s[0] < apart.data_s[0] / 2


def test_overlap_hides_tensor_rings_and_transfers_of_stages() -> None:
    model = load_transformer("llama3-70b")
    strategy = one_strategy(tensor=4, pipeline=8, data=8, virtual_stages=5)
    hardware = make_hardware("h100", 256)
    apart = step_time(model, Recipe(512), hardware, strategy)
    beside = step_time(model, Recipe(512, overlap_tensor=1.0, overlap_pipeline=True), hardware, strategy)
    # on a link of any speed the matmul of each collective would hide it; here a projection's is too short
    assert 0 < beside.tensor_s[0] < apart.tensor_s[0] / 10
    fast = replace(hardware, hb_bytes_per_s=4 * hardware.hb_bytes_per_s)
    assert step_time(model, Recipe(512, overlap_tensor=1.0), fast, strategy).tensor_s[0] == pytest.approx(0)
    half = step_time(model, Recipe(512, overlap_tensor=0.5), fast, strategy).tensor_s[0]
    assert half == pytest.approx(step_time(model, Recipe(512), fast, strategy).tensor_s[0] / 2)
    # 64 micro-batches in 5 chunks, and 7 transfers while the pipeline fills
    assert beside.pipeline_s[0] == pytest.approx(apart.pipeline_s[0] * 7 / (64 * 5 + 7))


def test_weight_gradients_hide_the_rings_of_input_gradients() -> None:
    """2 of 8 rings a layer are hidden, and without sequence parallelism half of 8, by AllReduces as long as two."""
    model = load_transformer("gpt-175b")
    strategy = one_strategy(tensor=8, pipeline=8)
    hardware = make_hardware("a100", 64)
    apart = step_time(model, Recipe(64, overlap_input_gradients=False), hardware, strategy)
    beside = step_time(model, Recipe(64), hardware, strategy)
    assert beside.tensor_s[0] == pytest.approx(apart.tensor_s[0] * 6 / 8)
    all_reduced = step_time(model, Recipe(64, sequence_parallel=False), hardware, strategy)
    assert all_reduced.tensor_s[0] == pytest.approx(apart.tensor_s[0] * 4 / 8)
    # between two servers with slow NICs the rings take longer than the matmuls
    slow = replace(hardware, rail_bytes_per_s=hardware.rail_bytes_per_s / 4)
    wide = one_strategy(tensor=16, pipeline=4)
    apart_s = step_time(model, Recipe(64, overlap_input_gradients=False), slow, wide).tensor_s[0]
    assert 6 / 8 * apart_s < step_time(model, Recipe(64), slow, wide).tensor_s[0] < apart_s


def test_all_gpus_wait_for_the_slowest() -> None:
    model = load_transformer("llama3-8b")
    alone, few, many = (make_hardware("h100", gpus) for gpus in (1, 64, 8192))
    assert alone.waiting == 1
    # the expected largest of 64 and of 8,192 standard normal values
    assert (few.waiting - 1) / few.speed_spread == pytest.approx(2.34, abs=0.02)
    assert (many.waiting - 1) / many.speed_spread == pytest.approx(3.80, abs=0.02)
    fast = step_time(model, Recipe(64), few, one_strategy(data=64))
    slow = step_time(model, Recipe(8192), many, one_strategy(data=8192))
    assert slow.matmul_s[0] / fast.matmul_s[0] == pytest.approx(many.waiting / few.waiting)


def test_groups_of_experts_limit_the_domains_of_a_token() -> None:
    """8 domains, each with a group: a token's 8 experts are in 4 groups, each hit with 1 - (3/4)^8."""
    model = load_transformer("deepseek-v3")
    free = model.model_copy(update={"expert_groups": 1, "groups_per_token": 1})
    hardware = replace(make_hardware("h100", 64), hb_bytes_per_s=1e30)
    strategy = one_strategy(data=64, expert=64)
    limited_s, free_s = (expert_s(each, hardware, strategy)[0] for each in (model, free))
    assert limited_s / free_s == pytest.approx(0.5 * (1 - 0.75**8) / (1 - (7 / 8) ** 8))
    # two domains of four groups each
    two = replace(hardware, domain_gpus=32)
    alone_s, spread_s = (expert_s(each, two, strategy)[0] for each in (model, free))
    assert alone_s == pytest.approx(spread_s, rel=0.05)
    assert alone_s < spread_s


def test_zero_2_reduces_the_gradients_of_every_micro_batch() -> None:
    model = load_transformer("llama3-8b")
    hardware = make_hardware("h100", 64)
    seconds: dict[tuple[int, int], float] = {}
    for zero in (1, 2):
        for batch in (64, 512):
            recipe = Recipe(batch, zero=zero, overlap_data=False)
            seconds[zero, batch] = float(step_time(model, recipe, hardware, one_strategy(data=64)).data_s[0])
    assert seconds[1, 64] == seconds[1, 512] == seconds[2, 64]
    # one AllGather, and a ReduceScatter of as many bytes for each of 8 micro-batches
    assert seconds[2, 512] == pytest.approx(seconds[1, 512] * 9 / 2)


def test_first_fused_kernels_get_half_of_newer_peaks() -> None:
    model = load_transformer("mpt-1b").model_copy(update={"sequence": 65536})
    strategy = one_strategy(data=8)
    seconds: dict[str, float] = {}
    for platform in ("a100", "h100"):
        recipe = Recipe(8, zero=3, kernels_of_2022=True)
        seconds[platform] = float(step_time(model, recipe, make_hardware(platform, 8), strategy).attention_s[0])
    # only the clock and the number of multiprocessors: half of what the peak grew by
    assert seconds["a100"] / seconds["h100"] == pytest.approx(989 / 312 / 2)
