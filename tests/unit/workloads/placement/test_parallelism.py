"""Placement of ranks, and layouts that don't fit."""

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.placement.layout import Parallelism, place
from tests.unit.workloads.messages import CheckMessages

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


def test_micro_batches_divide_the_global_batch_by_pipelines() -> None:
    assert Parallelism(**GOOD).micro_batches == 4


def test_messages_of_parallelism_that_does_not_fit(check_messages: CheckMessages) -> None:
    changes: tuple[dict[str, int], ...] = (
        {"data": 3},
        {"tensor": 16, "pipeline": 2, "data": 1, "global_batch": 2},
        {"tensor": 2, "pipeline": 8, "data": 1},
        {"global_batch": 18},
        {"virtual_stages": 2, "global_batch": 12},
        {"pipeline": 1, "data": 4, "virtual_stages": 2},
    )
    calls: dict[str, Callable[[], object]] = {}
    for change in changes:
        calls[str(change)] = partial(place, Parallelism(**{**GOOD, **change}), 4, 4, "w.parallelism")
    wide = Parallelism(tensor=6, pipeline=2, data=1, micro_batch=1, global_batch=1)
    calls["tensor parallelism over parts of domains"] = partial(place, wide, 3, 4)
    check_messages(calls)
