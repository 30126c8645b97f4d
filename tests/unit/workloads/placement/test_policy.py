"""Placement policies: which GPUs jobs get, one after the other, and the largest job that still has a place."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.plugins import BadDefinition
from railyard.workloads.placement.policy import (
    PLACEMENT_POLICIES,
    FreeGpus,
    JobGrid,
    PlacementPolicy,
    largest_grid,
)

ALL = frozenset(range(16))


def place(policy: str, grid: JobGrid, numbers: frozenset[int] = ALL, seed: int = 0) -> tuple[int, ...] | None:
    return PLACEMENT_POLICIES[policy].place(grid, FreeGpus(4, 4, numbers), Random(seed))


@given(policy=st.sampled_from(PLACEMENT_POLICIES.names()), free=st.frozensets(st.integers(0, 15)), data=st.data())
def test_policies_give_each_rank_a_free_gpu(policy: str, free: frozenset[int], data: st.DataObject) -> None:
    grid = JobGrid(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    gpus = place(policy, grid, free)
    assert gpus == place(policy, grid, free)
    if gpus is None:
        assert policy == "rail-aligned" or len(free) < grid.gpus
    else:
        assert len(set(gpus)) == grid.gpus
        assert free.issuperset(gpus)


@pytest.mark.parametrize(
    ("policy", "gpus"),
    [
        ("rail-aligned", (5, 6, 9, 10)),
        ("packed", (1, 3, 5, 6)),
        ("spread", (1, 5, 8, 13)),
        ("topology", (8, 9, 10, 11)),
    ],
)
def test_policies_choose_different_gpus(policy: str, gpus: tuple[int, ...]) -> None:
    free = frozenset({1, 3, 5, 6, 8, 9, 10, 11, 13})
    assert place(policy, JobGrid(2, 2), free) == gpus


def test_topology_leaves_the_emptiest_domain_to_larger_jobs() -> None:
    assert place("topology", JobGrid(1, 2), ALL - {4, 5}) == (6, 7)
    assert place("topology", JobGrid(1, 6), ALL - {4, 5}) == (0, 1, 2, 3, 6, 7)


def test_random_gpus_differ_by_seed() -> None:
    assert len({place("random", JobGrid(2, 2), seed=seed) for seed in range(8)}) > 4


@given(policy=st.sampled_from(PLACEMENT_POLICIES.names()), free=st.frozensets(st.integers(0, 15)))
def test_largest_grid_has_a_place_and_no_larger_has(policy: str, free: frozenset[int]) -> None:
    wanted = JobGrid(4, 4)
    largest = largest_grid(PLACEMENT_POLICIES[policy], wanted, FreeGpus(4, 4, free), 0)
    if largest is not None:
        assert place(policy, largest, free) is not None
    for domains in range(1, 5):
        for rails in range(1, 5):
            is_larger = domains * rails > (largest.gpus if largest else 1)
            assert not is_larger or place(policy, JobGrid(domains, rails), free) is None


def test_policies_that_give_taken_gpus_are_refused() -> None:
    class Careless(PlacementPolicy):
        def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...]:
            return (0, 3)

    with pytest.raises(BadDefinition, match=r"gives \(0, 3\)"):
        PLACEMENT_POLICIES.register("careless")(Careless)
