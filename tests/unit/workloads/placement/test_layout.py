"""Placement of ranks when dimensions span HB domains, and the groups that are grids."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.placement.layout import (
    DIMENSIONS,
    Parallelism,
    Split,
    grids,
    hierarchical,
    layout_from_order,
    layout_from_ranks,
    splits,
)
from tests.unit.workloads.messages import CheckMessages

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
