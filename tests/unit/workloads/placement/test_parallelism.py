"""Placement of ranks, and layouts that don't fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.workloads.placement.layout import Parallelism, place

GOOD = {"tensor": 4, "pipeline": 2, "data": 2, "micro_batch": 2, "global_batch": 16}


@given(t=st.integers(1, 4), per_domain=st.integers(1, 3), p=st.integers(1, 4), d_network=st.integers(1, 3))
def test_tensor_groups_share_a_domain_others_a_rail_or_domain(t: int, per_domain: int, p: int, d_network: int) -> None:
    d, rails = per_domain * d_network, t * per_domain
    parallelism = Parallelism(tensor=t, pipeline=p, data=d, micro_batch=1, global_batch=d)
    placement = place(parallelism, p * d_network, rails)
    seen: list[int] = []
    for replica in range(d):
        groups = [placement.gpus[stage, replica].tolist() for stage in range(p)]
        seen += [gpu for group in groups for gpu in group]
        for group in groups:
            assert len({gpu // rails for gpu in group}) == 1
            assert [gpu % rails for gpu in group] == [gpu % rails for gpu in groups[0]]
    assert sorted(seen) == list(range(placement.domains * rails))
    for stage in range(p):
        grid = placement.data_grid(stage, t - 1)
        assert [len(row) for row in grid] == [per_domain] * d_network
        assert all(len({gpu // rails for gpu in row}) == 1 for row in grid)
        assert all(len({gpu % rails for gpu in rail}) == 1 for rail in zip(*grid, strict=True))


@given(t_h=st.integers(2, 4), t_l=st.integers(1, 3), p=st.integers(1, 3), d=st.integers(1, 3))
def test_tensor_groups_over_domains_keep_other_traffic_on_rails(t_h: int, t_l: int, p: int, d: int) -> None:
    parallelism = Parallelism(tensor=t_h * t_l, pipeline=p, data=d, micro_batch=1, global_batch=d)
    placement = place(parallelism, t_l * p * d, t_h)
    grids = [[placement.tensor_grid(stage, replica) for stage in range(p)] for replica in range(d)]
    for pipeline in grids:
        for grid in pipeline:
            assert [[gpu % t_h for gpu in row] for row in grid] == [list(range(t_h))] * t_l
            assert all(len({gpu // t_h for gpu in row}) == 1 for row in grid)
    every = [gpu for pipeline in grids for grid in pipeline for row in grid for gpu in row]
    assert sorted(every) == list(range(t_h * t_l * p * d))
    for stage in range(p):
        for rank in range(t_h * t_l):
            column = placement.data_grid(stage, rank)
            assert [len(row) for row in column] == [1] * d
            assert {gpu % t_h for row in column for gpu in row} == {rank % t_h}


def test_tensor_is_a_part_or_a_multiple_of_a_domain() -> None:
    parallelism = Parallelism(tensor=6, pipeline=2, data=1, micro_batch=1, global_batch=1)
    with pytest.raises(BadInput) as caught:
        place(parallelism, 3, 4)
    assert str(caught.value) == (
        "parallelism.tensor: 6 must divide the 4 GPUs of an HB domain, or be a multiple of them"
    )


def test_micro_batches_divide_the_global_batch_by_pipelines() -> None:
    assert Parallelism(**GOOD).micro_batches == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": 3},
            "w.parallelism.data: 3 must be such that tensor * pipeline * data is the fabric's 4 x 4 = 16 GPUs, "
            "not 4 * 2 * 3 = 24",
        ),
        (
            {"tensor": 16, "pipeline": 2, "data": 1, "global_batch": 2},
            "w.parallelism.data: 1 must be such that tensor * pipeline * data is the fabric's 4 x 4 = 16 GPUs, "
            "not 16 * 2 * 1 = 32",
        ),
        ({"tensor": 2, "pipeline": 8, "data": 1}, "w.parallelism.pipeline: 8 must divide the 4 HB domains"),
        ({"global_batch": 18}, "w.parallelism.global_batch: 18 must be a multiple of data * micro_batch = 4"),
        (
            {"virtual_stages": 2, "global_batch": 12},
            "w.parallelism.virtual_stages: 2 needs a number of micro-batches (3) that is a multiple of pipeline (2)",
        ),
        (
            {"pipeline": 1, "data": 4, "virtual_stages": 2},
            "w.parallelism.virtual_stages: 2 must be 1 where pipeline is 1",
        ),
    ],
)
def test_parallelism_that_does_not_fit_is_named(change: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        place(Parallelism(**{**GOOD, **change}), 4, 4, "w.parallelism")
    assert str(caught.value) == message
