"""A job on a larger fabric: the same bytes between the same ranks, wherever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.placement.parallelism import GpuPlacement, place_with_spares, relabelled
from railyard.workloads.schedule import Schedule
from tests.unit.schedules import schedules


@st.composite
def jobs_on_fabrics(draw: st.DrawFn) -> tuple[Schedule, GpuPlacement]:
    schedule = draw(schedules())
    job = (schedule.gpus // schedule.rails, schedule.rails)
    fabric = (job[0] + draw(st.integers(0, 2)), job[1] + draw(st.integers(0, 2)))
    return schedule, place_with_spares(job, fabric)


@given(jobs_on_fabrics())
def test_pairs_keep_their_bytes_and_ranks_their_own_gpus(given: tuple[Schedule, GpuPlacement]) -> None:
    schedule, gpu_placement = given
    there = relabelled(schedule, gpu_placement)
    there.check()
    assert (there.gpus, there.rails) == (gpu_placement.gpus, gpu_placement.rails)
    assert there.matrix == {
        (gpu_placement.at[a], gpu_placement.at[b]): size for (a, b), size in schedule.matrix.items()
    }
    assert len(set(gpu_placement.at)) == schedule.gpus


@given(jobs_on_fabrics())
def test_ranks_and_domains_are_the_jobs_own_without_faults(given: tuple[Schedule, GpuPlacement]) -> None:
    schedule, gpu_placement = given
    for n, place in enumerate(gpu_placement.at):
        assert divmod(place, gpu_placement.rails) == divmod(n, schedule.rails)


@given(jobs_on_fabrics(), st.data())
def test_a_move_takes_one_rank_along_and_the_way_back_undoes_it(
    given: tuple[Schedule, GpuPlacement], data: st.DataObject
) -> None:
    _, gpu_placement = given
    free = sorted(set(range(gpu_placement.gpus)) - set(gpu_placement.at))
    if not free:
        return
    old, new = data.draw(st.sampled_from(gpu_placement.at)), data.draw(st.sampled_from(free))
    with_moves = gpu_placement.with_moves({old: new})
    assert old not in with_moves.at
    assert [n for n, (a, b) in enumerate(zip(gpu_placement.at, with_moves.at, strict=True)) if a != b] == [
        gpu_placement.at.index(old)
    ]
    assert with_moves.with_moves({new: old}) == gpu_placement


def test_what_cannot_be_is_refused() -> None:
    gpu_placement = place_with_spares((2, 2), (3, 2))
    with pytest.raises(ValueError, match="two of the job's GPUs are at one place"):
        gpu_placement.with_moves({0: 1})
    with pytest.raises(ValueError, match=r"none of the job is at \[5\]"):
        gpu_placement.with_moves({5: 4})
    with pytest.raises(ValueError, match="places must be 0 to 5"):
        gpu_placement.with_moves({0: 6})
    with pytest.raises(ValueError, match="a job of 2 x 3 doesn't fit on 3 x 2"):
        place_with_spares((2, 3), (3, 2))
    with pytest.raises(ValueError, match="4 places for 6 GPUs"):
        relabelled(Schedule("six", 6, 2, (), ()), gpu_placement)
