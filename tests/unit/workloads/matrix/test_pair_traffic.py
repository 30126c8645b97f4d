"""Bytes by pair: the sums of the formulas, the matrix of the tasks, and nothing between rails where none should be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.workloads.jobs.gpt import gpt_job, gpt_schedule
from railyard.workloads.jobs.moe import moe_job, moe_schedule
from railyard.workloads.matrix.pair_traffic import SCOPES, Scope, Traffic, Uniform, gpt_traffic, moe_traffic
from railyard.workloads.matrix.traffic_matrix import traffic_matrix
from railyard.workloads.models.catalogue import GptModel, MoeModel
from railyard.workloads.models.mixture import mixture_of
from railyard.workloads.placement.layout import (
    Layout,
    Parallelism,
    data_parallel,
    hierarchical,
    layout_from_ranks,
    place,
)
from tests.unit.workloads.volumes import gpt_volumes, moe_volumes

SHAPE = {"hidden": 24, "heads": 12, "sequence": 12, "vocabulary": 50, "parameters": 1, "domain_gpus": 2}
ONE = {"tensor": 1, "pipeline": 1, "data": 1, "micro_batch": 1, "global_batch": 1}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[GptModel, Parallelism, int]:
    """A GPT with layers to suit, its parallelism, and a size of HB domain that divides the GPUs."""
    t, d = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    p, v = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    b, rounds = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    v = v if p > 1 else 1
    parallelism = Parallelism(
        tensor=t, pipeline=p, data=d, micro_batch=b, global_batch=b * d * p * rounds, virtual_stages=v
    )
    model = GptModel.model_validate({"kind": "gpt", "training": ONE, "layers": 2 * p * v, **SHAPE})
    return model, parallelism, draw(st.sampled_from([k for k in range(1, t * p * d + 1) if t * p * d % k == 0]))


def check_pairs(traffic: Traffic) -> None:
    """Each pair once, nothing to oneself, nothing empty; and the three places have all of it."""
    for kind, pairs in traffic.pairs.items():
        assert (pairs.src != pairs.dst).all()
        assert (pairs.bytes > 0).all()
        assert len(set(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True))) == len(pairs.src)
        parts = [traffic.at(kind, scope) for scope in SCOPES]
        assert sum(part.total for part in parts) == pytest.approx(traffic.volumes[kind])
        assert [part.count for part in parts] == [part.src.size for part in parts]
    assert traffic.dense(traffic.gpus).sum() == pytest.approx(sum(traffic.volumes.values()))


@given(job=jobs())
def test_dense_model_volumes_equal_formulas_and_stay_on_rails(
    job: tuple[GptModel, Parallelism, int],
) -> None:
    model, p, rails = job
    traffic = gpt_traffic(model, hierarchical(p, p.gpus // rails, rails))
    check_pairs(traffic)
    assert traffic.volumes == pytest.approx(gpt_volumes(model, p))
    assert not traffic.at("TP", "across rails").bytes.size
    assert not traffic.at("DP", "across rails").bytes.size
    astray = traffic.at("PP", "across rails")
    back = set(zip(astray.src.tolist(), astray.dst.tolist(), strict=True))
    if p.virtual_stages == 1:
        assert not back
    else:  # only an interleaved pipeline's way back from the last stage to the first may change rails
        ends = hierarchical(p, p.gpus // rails, rails).pipelines[:, [0, -1]].tolist()
        assert back <= {pair for first, last in ends for pair in ((first, last), (last, first))}


@given(job=jobs(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_sums_do_not_depend_on_where_ranks_are(job: tuple[GptModel, Parallelism, int], seed: int) -> None:
    model, p, rails = job
    ranks = [int(n) for n in np.random.default_rng(seed).permutation(p.gpus)]
    traffic = gpt_traffic(model, layout_from_ranks(p, p.gpus // rails, rails, ranks))
    check_pairs(traffic)
    assert traffic.volumes == pytest.approx(gpt_volumes(model, p))


@given(n=st.integers(1, 4), rows=st.integers(1, 4), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_an_even_exchange_is_its_pairs_wherever_its_ranks_are(
    n: int, rows: int, seed: int, data: st.DataObject
) -> None:
    """In closed form, and pair by pair: all, in each place, and among the first GPUs."""
    rails = data.draw(st.sampled_from([k for k in range(1, n * rows + 1) if n * rows % k == 0]))
    groups = np.random.default_rng(seed).permutation(n * rows).reshape(rows, n).astype(np.int32)
    exchange = Uniform(groups, 2.5)
    wanted = {(a, b) for row in groups.tolist() for a in row for b in row if a != b}
    places: dict[Scope, set[tuple[int, int]]] = {
        "HB domain": {(a, b) for a, b in wanted if a // rails == b // rails},
        "rail": {(a, b) for a, b in wanted if a // rails != b // rails and a % rails == b % rails},
        "across rails": {(a, b) for a, b in wanted if a // rails != b // rails and a % rails != b % rails},
    }
    for part, pairs in [(exchange, wanted), *((exchange.at(place_, rails), p) for place_, p in places.items())]:
        assert sorted(zip(part.src.tolist(), part.dst.tolist(), strict=True)) == sorted(pairs)
        assert (part.count, part.total) == (len(pairs), 2.5 * len(pairs))
        first = part.between_first(n)
        few = sorted((a, b) for a, b in pairs if a < n and b < n)
        assert sorted(zip(first.src.tolist(), first.dst.tolist(), strict=True)) == few
    assert exchange.scaled(2).total == 2 * exchange.total


def test_16384_experts_are_counted_without_a_list() -> None:
    """268 million pairs: 255 each in its HB domain, 63 on its rail, the rest across rails."""
    n, rails = 16_384, 256
    model = MoeModel.load("moe-1.3b-128").model_copy(update={"experts": n, "gpus": n, "global_batch": 4 * n})
    traffic = moe_traffic(mixture_of(model), data_parallel(n, 4 * n, rails, n))
    assert traffic.volumes == pytest.approx(moe_volumes(model))
    counts = [traffic.at("EP", scope).count for scope in SCOPES]
    assert counts == [n * 255, n * 63, n * (n - 1 - 255 - 63)]
    assert traffic.dense(8).sum() > 0
    with pytest.raises(ValueError, match=r"268,419,072 pairs .* 16,777,216"):
        _ = traffic.pairs["EP"].src


@given(groups=st.integers(1, 3), experts=st.sampled_from([2, 4, 6]), data=st.data())
def test_mixture_sends_the_bytes_of_the_formulas(groups: int, experts: int, data: st.DataObject) -> None:
    n = groups * experts
    rails = data.draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    moe = {"moe_layers": 2, "experts": experts, "experts_per_token": 1, "gpus": n, "global_batch": 2 * n}
    model = MoeModel.model_validate({"kind": "moe", "layers": 4, **SHAPE, **moe})
    traffic = moe_traffic(mixture_of(model), data_parallel(n, model.global_batch, rails, experts))
    check_pairs(traffic)
    assert traffic.volumes == pytest.approx(moe_volumes(model, n))
    assert len(set(traffic.pairs["EP"].bytes)) == 1  # uniform


def test_gpus_hold_several_experts_or_the_count_is_refused() -> None:
    model = MoeModel.load("moe-1.3b-128")
    traffic = moe_traffic(mixture_of(model), data_parallel(64, 256, 8, 128))
    assert traffic.volumes == pytest.approx(moe_volumes(model, 64))
    with pytest.raises(BadInput, match=r"experts: 128 .* 192 GPUs"):
        data_parallel(192, 768, 8, model.experts)


def test_pairs_equal_the_pairs_of_the_tasks() -> None:
    """t = 2, p = 2 in two chunks each, d = 4 as 2 x 2: nothing merged, nothing rounded."""
    p = Parallelism(tensor=2, pipeline=2, data=4, micro_batch=1, global_batch=8, virtual_stages=2)
    model = GptModel.model_validate({"kind": "gpt", "training": ONE, "layers": 8, **SHAPE})
    schedule = gpt_schedule(gpt_job(model, "small", place(p, 4, 4), 4, 1e12))
    traffic = gpt_traffic(model, hierarchical(p, 4, 4))
    for kind in ("TP", "PP", "DP"):
        alone = Traffic(4, 4, {kind: traffic.pairs[kind]})
        np.testing.assert_allclose(alone.dense(16), traffic_matrix(schedule, kind))


def test_pairs_of_a_mixture_equal_pairs_of_its_tasks() -> None:
    moe = {"moe_layers": 2, "experts": 4, "experts_per_token": 1, "gpus": 4, "global_batch": 8}
    model = MoeModel.model_validate({"kind": "moe", "layers": 4, **SHAPE, **moe})
    layout = data_parallel(4, 4, 2, 4)
    job = moe_job(mixture_of(model), "small", layout, model.all_to_alls, model.tokens_per_gpu, 1, 1e12, "all-to-all")
    traffic = moe_traffic(mixture_of(model), data_parallel(4, 8, 2, 4))
    np.testing.assert_allclose(traffic.dense(4), traffic_matrix(moe_schedule(job)))


def test_hierarchical_gather_32x2_sends_1_of_63_bytes_over_rails() -> None:
    """Rail-only Fig. 4: 98% of AllReduce in HB domains, 2% on rails."""
    p = Parallelism(tensor=8, pipeline=8, data=64, micro_batch=1, global_batch=4096)
    traffic = gpt_traffic(GptModel.load("gpt-1008b"), hierarchical(p, 16, 256))
    on_rails = float(traffic.at("DP", "rail").bytes.sum())
    assert on_rails / traffic.volumes["DP"] == pytest.approx(1 / 63)


def test_stages_must_divide_the_layers() -> None:
    layout: Layout = hierarchical(Parallelism(**{**ONE, "pipeline": 3}), 3, 1)
    with pytest.raises(ValueError, match=r"3 stages .* 128 layers"):
        gpt_traffic(GptModel.load("gpt-1008b"), layout)
