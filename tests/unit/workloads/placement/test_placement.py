"""A job on a larger fabric: the same bytes between the same ranks, wherever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.placement.layout import place_with_spares, relabelled
from railyard.workloads.schedule import Schedule
from tests.unit.workloads.schedules import schedules


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
    for n, place in enumerate(places):
        assert divmod(place, rails) == divmod(n, schedule.rails)


def test_job_larger_than_the_fabric_is_refused() -> None:
    with pytest.raises(ValueError, match="a job of 2 x 3 doesn't fit on 3 x 2"):
        place_with_spares((2, 3), (3, 2))
