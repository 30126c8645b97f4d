"""Placement of ranks: the groups that are grids, layouts that don't fit, and jobs on larger fabrics."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.placement.layout import (
    DIMENSIONS,
    Parallelism,
    Split,
    expert_split,
    grids,
    hierarchical,
    layout_from_order,
    layout_from_ranks,
    place,
    place_with_spares,
    relabelled,
    splits,
)
from railyard.workloads.schedule import Schedule
from tests.unit.workloads.messages import CheckMessages
from tests.unit.workloads.schedules import schedules

SIZES = st.integers(1, 6)


def parallel(t: int, p: int, d: int, **more: int) -> Parallelism:
    return Parallelism(**{"tensor": t, "pipeline": p, "data": d, "micro_batch": 1, "global_batch": d, **more})


@given(t=SIZES, p=SIZES, d=SIZES, data=st.data())
def test_any_sizes_become_grids_that_fill_the_domains(t: int, p: int, d: int, data: st.DataObject) -> None:
    n = t * p * d
    rails = data.draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    part = splits(parallel(t, p, d), rails)
    assert part["tensor"].hb * part["data"].hb * part["pipeline"].hb == rails
    assert [part[name].hb * part[name].network for name in DIMENSIONS] == [t, d, p]
    layout = hierarchical(parallel(t, p, d), n // rails, rails)
    assert sorted(layout.gpus.ravel()) == list(range(n))
    for groups, split in ((layout.tensor_groups, part["tensor"]), (layout.data_groups, part["data"])):
        boxed, rest = grids(groups, rails)
        assert not rest.size
        assert [grid.shape for grid in boxed] == [(len(groups), split.network, split.hb)]
    before, after = layout.pipelines[:, :-1], layout.pipelines[:, 1:]
    assert ((before // rails == after // rails) | (before % rails == after % rails)).all()


@given(t=SIZES, p=SIZES, e=SIZES, copies=SIZES, data=st.data())
def test_expert_groups_are_grids_inside_the_stages(t: int, p: int, e: int, copies: int, data: st.DataObject) -> None:
    n = t * p * e * copies
    rails = data.draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    # tensor-parallel groups are whole in a group of experts; without experts a GPU is alone
    size_of_group = 1 if e == 1 else e * t
    job = parallel(t, p, e * copies, expert=size_of_group)
    layout = hierarchical(job, n // rails, rails)
    assert sorted(layout.gpus.ravel()) == list(range(n))
    stages = [frozenset(stage) for stage in layout.gpus.reshape(p, -1).tolist()]
    split = expert_split(job, rails)
    tensor = layout.splits["tensor"]
    copies_of_group = n // (p * size_of_group)
    for groups, size in ((layout.expert_groups, size_of_group), (layout.expert_copies, copies_of_group)):
        assert groups.shape == (n // size, size)
        assert sorted(groups.ravel()) == list(range(n))
        assert all(any(group <= stage for stage in stages) for group in map(frozenset, groups.tolist()))
        boxed, rest = grids(groups, rails)
        assert not rest.size
        assert len(boxed) == 1
    if e > 1:
        shape = (split.network * tensor.network, split.hb * tensor.hb)
        assert grids(layout.expert_groups, rails)[0][0].shape[1:] == shape
    # an expert group and a group of copies share one GPU at most: each copy of an expert is in a group of its own
    copy_of = np.empty(n, dtype=int)
    for number, group in enumerate(layout.expert_copies):
        copy_of[group] = number
    assert all(len(set(row)) == size_of_group for row in copy_of[layout.expert_groups].tolist())


def test_64_experts_on_nvl72_take_8_gpus_of_8_domains() -> None:
    """72 = 8 x 9: nine groups share the domains, each on 8 rails of its own."""
    layout = hierarchical(parallel(1, 1, 576, expert=64), 8, 72)
    assert expert_split(layout.parallelism, 72) == Split(8, 8)
    assert (layout.expert_groups[0].reshape(8, 8) == np.arange(8) + 72 * np.arange(8)[:, None]).all()


def test_gh200_of_the_paper_has_data_parallelism_of_32_by_2() -> None:
    """Rail-only III-B, Fig. 4."""
    part = splits(parallel(8, 8, 64), 256)
    assert part == {"tensor": Split(8, 1), "data": Split(32, 2), "pipeline": Split(1, 8)}


def test_order_numbers_gpus_from_its_first_dimension() -> None:
    layout = layout_from_order(parallel(2, 3, 4), 3, 8, ("data", "pipeline", "tensor"))
    assert list(layout.gpus[0, :, 0]) == [0, 1, 2, 3]
    assert list(layout.gpus[:, 0, 0]) == [0, 4, 8]
    assert list(layout.gpus[0, 0, :]) == [0, 12]


def test_ranks_are_megatrons_tensor_first_then_data() -> None:
    layout = layout_from_ranks(parallel(2, 2, 2), 2, 4, [7, 6, 5, 4, 3, 2, 1, 0])
    assert layout.tensor_groups.tolist() == [[7, 6], [5, 4], [3, 2], [1, 0]]
    assert layout.data_groups.tolist() == [[7, 5], [6, 4], [3, 1], [2, 0]]
    assert layout.pipelines.tolist() == [[7, 3], [6, 2], [5, 1], [4, 0]]
    assert layout.rank_of.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("group", "shape"),
    [
        ([0, 1, 4, 5], (1, 2, 2)),
        ([5, 0, 4, 1], (1, 2, 2)),
        ([0, 4, 8], (1, 3, 1)),
        ([0, 1, 2], (1, 1, 3)),
        ([0, 1, 4, 6], None),
        ([0, 1, 2, 4], None),
        ([0, 1, 4], None),
    ],
)
def test_a_grid_is_on_the_same_rails_in_every_domain(group: list[int], shape: tuple[int, ...] | None) -> None:
    boxed, rest = grids(np.array([group], dtype=np.int32), 4)
    assert [grid.shape for grid in boxed] == ([shape] if shape else [])
    assert rest.tolist() == ([] if shape else [group])


def test_grids_of_several_shapes_are_kept_apart() -> None:
    groups = np.array([[0, 1], [2, 6], [3, 4], [5, 9]], dtype=np.int32)
    boxed, rest = grids(groups, 4)
    assert [grid.tolist() for grid in boxed] == [[[[0, 1]]], [[[2], [6]], [[5], [9]]]]
    assert rest.tolist() == [[3, 4]]


def test_messages_of_impossible_layouts(check_messages: CheckMessages) -> None:
    small = parallel(2, 1, 2)
    calls = {
        "rank twice": partial(layout_from_ranks, small, 2, 2, [0, 1, 2, 2]),
        "rank above the GPUs": partial(layout_from_ranks, small, 2, 2, [0, 1, 2, 4]),
        "missing rank": partial(layout_from_ranks, small, 2, 2, [0, 1, 2]),
        "dimension twice": partial(layout_from_order, small, 2, 2, ("tensor", "tensor", "data")),
        "fewer ranks than GPUs": partial(hierarchical, small, 2, 4),
    }
    check_messages(calls)


GOOD = {"tensor": 4, "pipeline": 2, "data": 2, "micro_batch": 2, "global_batch": 16}


@given(t_h=st.integers(1, 4), t_l=st.integers(1, 3), p=st.integers(1, 3), d_h=st.integers(1, 3), d_l=st.integers(1, 3))
def test_grids_of_a_job_are_on_the_same_rails_of_each_domain(t_h: int, t_l: int, p: int, d_h: int, d_l: int) -> None:
    if t_l > 1:
        d_h = 1
    rails = t_h * d_h
    placement = place(parallel(t_h * t_l, p, d_h * d_l), t_l * p * d_l, rails)
    shapes = {"tensor": (t_l, t_h), "data": (d_l, d_h)}
    groups = {
        "tensor": [placement.tensor_grid(stage, replica) for stage in range(p) for replica in range(d_h * d_l)],
        "data": [placement.data_grid(stage, rank) for stage in range(p) for rank in range(t_h * t_l)],
    }
    for dimension, grid_list in groups.items():
        gpus = np.array(grid_list)
        assert gpus.shape[1:] == shapes[dimension]
        assert sorted(gpus.ravel()) == list(range(placement.domains * rails))
        assert (gpus // rails == gpus[:, :, :1] // rails).all()
        assert (gpus % rails == gpus[:, :1, :] % rails).all()
    assert (placement.pipelines % rails == placement.pipelines[:, :1] % rails).all()


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
        {"expert": 3, "tensor": 1, "data": 8, "global_batch": 32},
        {"expert": 6},
        {"expert": 16},
    )
    calls: dict[str, Callable[[], object]] = {}
    for change in changes:
        calls[str(change)] = partial(place, Parallelism(**{**GOOD, **change}), 4, 4, "w.parallelism")
    wide = Parallelism(tensor=6, pipeline=2, data=1, micro_batch=1, global_batch=1)
    calls["tensor parallelism over parts of domains"] = partial(place, wide, 3, 4)
    check_messages(calls)


@st.composite
def jobs_on_fabrics(draw: st.DrawFn) -> tuple[Schedule, tuple[int, ...], int, int]:
    schedule = draw(schedules())
    job = (schedule.gpus // schedule.rails, schedule.rails)
    fabric = (job[0] + draw(st.integers(0, 2)), job[1] + draw(st.integers(0, 2)))
    return schedule, place_with_spares(job, fabric), fabric[0] * fabric[1], fabric[1]


@given(jobs_on_fabrics())
def test_pairs_keep_their_bytes_and_ranks_their_own_gpus(given: tuple[Schedule, tuple[int, ...], int, int]) -> None:
    schedule, places, gpus, rails = given
    there = relabelled(schedule, places, gpus, rails)
    there.check()
    assert (there.gpus, there.rails) == (gpus, rails)
    assert there.matrix == {(places[a], places[b]): size for (a, b), size in schedule.matrix.items()}
    assert len(set(places)) == schedule.gpus
    for n, gpu in enumerate(places):
        assert divmod(gpu, rails) == divmod(n, schedule.rails)


def test_job_larger_than_the_fabric_is_refused() -> None:
    with pytest.raises(ValueError, match="a job of 2 x 3 doesn't fit on 3 x 2"):
        place_with_spares((2, 3), (3, 2))
