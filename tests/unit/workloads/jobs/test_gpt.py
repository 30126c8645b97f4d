"""A GPT's iteration: the order of its pipeline, the bytes it sends, the time that order takes."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.results.theory.predict import predict_iteration, predict_phase
from railyard.topologies.spec import FabricSpec
from railyard.workloads.jobs.gpt import GptJob, gpt_iteration, gpt_job, gpt_schedule
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, cross_rail_bytes, line_rate_duration_s
from railyard.workloads.models.catalogue import GptModel, load_dense
from railyard.workloads.placement.layout import Parallelism, place
from railyard.workloads.schedule import Rates
from railyard.workloads.spec import build, parse_workload
from railyard.workloads.tasks import Compute, Transfer

RATES = Rates(hb=300e9, rail=25e9)
FABRIC = FabricSpec(kind="rail-only")


@st.composite
def jobs(draw: st.DrawFn) -> GptJob:
    """Small jobs of every shape: several tensor groups to a domain, no pipeline, interleaving, no replicas."""
    t, per_domain = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    p, d_network = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    d, v = per_domain * d_network, draw(st.integers(1, 2)) if p > 1 else 1
    m = draw(st.integers(1, 2)) * p if v > 1 else draw(st.integers(1, 4))
    parallelism = Parallelism(tensor=t, pipeline=p, data=d, micro_batch=1, global_batch=m * d, virtual_stages=v)
    return GptJob(
        name="small",
        placement=place(parallelism, p * d_network, t * per_domain),
        pairs_per_pass=draw(st.integers(1, 2)),
        gather_bytes=draw(st.integers(1, 10**6)),
        boundary_bytes=draw(st.integers(1, 10**5)),
        sync_bytes=draw(st.integers(1, 10**6)),
        compute_s=draw(st.sampled_from([0.0, 0.1])),
    )


@given(job=jobs())
def test_iteration_has_its_bytes_on_rails_and_its_computing(job: GptJob) -> None:
    p = job.placement.parallelism
    schedule, iteration = gpt_schedule(job), gpt_iteration(job)
    t, stages, d, m, v = p.tensor, p.pipeline, p.data, p.micro_batches, p.virtual_stages
    gathered, reduced = iteration.each_micro_batch[0].data_bytes, sum(s.data_bytes for s in iteration.sync)
    boundary = iteration.boundary.data_bytes if iteration.boundary else 0
    expected = {
        "TP": stages * d * m * v * 2 * job.pairs_per_pass * 2 * (t - 1) * gathered,
        "PP": t * d * m * 2 * (stages * v - 1) * boundary,
        "DP": stages * t * 2 * (d - 1) * reduced,
    }
    assert bytes_by_kind(schedule) == {kind: size for kind, size in expected.items() if size}
    assert cross_rail_bytes(schedule) == 0  # Rail-only section III-B
    seconds = dict.fromkeys(range(job.placement.domains * job.placement.rails), 0.0)
    for task in schedule.tasks:
        if isinstance(task, Compute):
            seconds[task.gpu] += task.seconds
    assert all(isclose(s, m * job.compute_s, abs_tol=1e-12) for s in seconds.values())


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 1), (4, 8, 1), (3, 1, 1), (2, 4, 2), (4, 8, 2), (2, 6, 3)])
def test_computing_alone_takes_equations_7_and_9(p: int, m: int, v: int) -> None:
    parallelism = Parallelism(tensor=2, pipeline=p, data=1, micro_batch=1, global_batch=m, virtual_stages=v)
    job = GptJob("computing", place(parallelism, p, 2), 1, 1, 1, 1, compute_s=3.0)
    assert line_rate_duration_s(gpt_schedule(job), RATES) == pytest.approx((m + (p - 1) / v) * 3.0, rel=1e-6)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 1), (4, 8, 1), (2, 4, 2)])
def test_tasks_take_equation_6_and_its_omitted_term(p: int, m: int, v: int) -> None:
    parallelism = Parallelism(tensor=4, pipeline=p, data=2, micro_batch=1, global_batch=m * 2, virtual_stages=v)
    job = GptJob("tensor", place(parallelism, 2 * p, 4), 1, 1e9, 1, 1e9, compute_s=0.05)
    predicted = predict_iteration(gpt_iteration(job), RATES, FABRIC)
    missing = (p - 1) / v * sum(predict_phase(x, RATES, FABRIC) for x in gpt_iteration(job).each_micro_batch)
    assert line_rate_duration_s(gpt_schedule(job), RATES) == pytest.approx(predicted + missing, rel=1e-6)


@pytest.mark.parametrize(("p", "d"), [(1, 1), (1, 3), (2, 1), (2, 2)])
def test_tensor_parallelism_over_two_domains_takes_eq_1s_time(p: int, d: int) -> None:
    parallelism = Parallelism(tensor=8, pipeline=p, data=d, micro_batch=1, global_batch=4 * d)
    job = GptJob("wide", place(parallelism, 2 * p * d, 4), 1, 1e9, 1, 1e9, compute_s=0.05)
    schedule, step = gpt_schedule(job), gpt_iteration(job).each_micro_batch[0]
    assert (step.collective, step.x, step.y) == ("all-gather-hierarchical", 4, 2)
    by_hand = 1e9 / (8 * RATES.rail) + 3 * 1e9 / (4 * RATES.hb)
    assert predict_phase(step, RATES, FABRIC) / step.repeats == pytest.approx(by_hand)
    if p == 1:  # else PP waits on rails that TP keeps busy, which Eq. 6 knows nothing of
        predicted = predict_iteration(gpt_iteration(job), RATES, FABRIC)
        assert line_rate_duration_s(schedule, RATES) == pytest.approx(predicted, rel=1e-6)
    assert all(t.src // 4 == t.dst // 4 or t.src % 4 == t.dst % 4 for _, t in schedule.transfers)


def test_merging_keeps_bytes_and_time() -> None:
    model = GptModel.load("gpt-145.6b")
    parallelism = Parallelism(tensor=4, pipeline=2, data=2, micro_batch=2, global_batch=16)
    placement = place(parallelism, 4, 4)
    whole, merged = (gpt_job(model, "j", placement, 10, 156e12, pairs) for pairs in (None, 1))
    assert (whole.pairs_per_pass, merged.pairs_per_pass) == (20, 1)
    one, other = gpt_schedule(whole), gpt_schedule(merged)
    assert bytes_by_kind(one) == bytes_by_kind(other)
    assert len(other.tasks) < len(one.tasks) / 5
    assert line_rate_duration_s(one, RATES) == pytest.approx(line_rate_duration_s(other, RATES))


def test_the_figures_of_a_layer() -> None:
    """2 b h s bytes gathered, 2 b h s / t handed on, 2 l S_T / t reduced; 145.6B with 10 layers at a stage."""
    parallelism = Parallelism(tensor=4, pipeline=2, data=2, micro_batch=2, global_batch=16)
    job = gpt_job(GptModel.load("gpt-145.6b"), "j", place(parallelism, 4, 4), 10, 156e12)
    assert job.gather_bytes == 2 * 2 * 12288 * 2048
    assert job.boundary_bytes == job.gather_bytes / 4
    assert job.sync_bytes == pytest.approx(2 * 10 * 12 * 12288**2 / 4, rel=1e-4)
    assert job.compute_s == pytest.approx(0.7534, rel=1e-3)


def test_modern_model_has_its_own_bytes_and_computing() -> None:
    """Llama 3 8B: matrices of 4,096 x (2 x 4,096 + 2 x 1,024 + 3 x 14,336) a layer; attention is not repeated."""
    parallelism = Parallelism(tensor=4, pipeline=2, data=1, micro_batch=1, global_batch=8)
    model = load_dense("llama3-8b")
    job = gpt_job(model, "j", place(parallelism, 2, 4), 16, 156e12)
    assert job.gather_bytes == 2 * 4096 * 8192
    matrices = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    assert job.sync_bytes == 2 * 16 * (matrices + 2 * 4096) / 4
    forward = 2 * 8192 * matrices + 4 * 8192**2 * 4096
    assert job.compute_s == pytest.approx(16 * 3 * forward / 4 / 156e12)


def test_full_size_of_a_modern_model_is_its_own_job() -> None:
    spec = parse_workload({"kind": "gpt", "model": "llama3-8b", "bytes": "1MB"})
    shape = build(spec, FabricSpec(kind="rail-only", domains=4, rails=4), 10_000_000, 90_000_000).scale.shape
    assert {name: factor.real for name, factor in shape.items()} == {
        **{name: factor.emulated for name, factor in shape.items()},
        "collectives_per_stage_and_micro_batch": 4 * 2 * 16,
    }
    with pytest.raises(BadInput, match="mixtral-8x7b"):
        load_dense("mixtral-8x7b")


def test_a_computing_rank_does_not_communicate() -> None:
    """What a GPU sends in an iteration waits, directly or not, for what it computed before."""
    parallelism = Parallelism(tensor=2, pipeline=2, data=1, micro_batch=1, global_batch=2)
    schedule = gpt_schedule(GptJob("j", place(parallelism, 2, 2), 1, 1000, 1000, 1000, compute_s=0.1))
    latest: dict[int, int] = {}
    over: list[set[int]] = []
    for number, task in enumerate(schedule.tasks):
        over.append(set(task.after).union(*(over[i] for i in task.after)))
        gpu = task.src if isinstance(task, Transfer) else task.gpu
        if gpu in latest:
            assert latest[gpu] in over[number]
        if isinstance(task, Compute):
            latest[gpu] = number
