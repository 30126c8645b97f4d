"""A job on a larger fabric: the same bytes between the same ranks, wherever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.placement.relabel import Places, beside_spares, placed
from railyard.workloads.schedule import Schedule
from tests.unit.schedules import schedules


@st.composite
def jobs_on_fabrics(draw: st.DrawFn) -> tuple[Schedule, Places]:
    schedule = draw(schedules())
    job = (schedule.gpus // schedule.rails, schedule.rails)
    fabric = (job[0] + draw(st.integers(0, 2)), job[1] + draw(st.integers(0, 2)))
    return schedule, beside_spares(job, fabric)


@given(jobs_on_fabrics())
def test_every_pair_keeps_its_bytes_and_no_two_ranks_share_a_place(given: tuple[Schedule, Places]) -> None:
    schedule, places = given
    there = placed(schedule, places)
    there.check()
    assert (there.gpus, there.rails) == (places.gpus, places.rails)
    assert there.matrix == {(places.at[a], places.at[b]): size for (a, b), size in schedule.matrix.items()}
    assert len(set(places.at)) == schedule.gpus


@given(jobs_on_fabrics())
def test_ranks_and_domains_are_the_jobs_own_while_nothing_has_failed(given: tuple[Schedule, Places]) -> None:
    schedule, places = given
    for n, place in enumerate(places.at):
        assert divmod(place, places.rails) == divmod(n, schedule.rails)


@given(jobs_on_fabrics(), st.data())
def test_a_move_takes_one_rank_along_and_the_way_back_undoes_it(
    given: tuple[Schedule, Places], data: st.DataObject
) -> None:
    _, places = given
    free = sorted(set(range(places.gpus)) - set(places.at))
    if not free:
        return
    old, new = data.draw(st.sampled_from(places.at)), data.draw(st.sampled_from(free))
    moved = places.moved({old: new})
    assert old not in moved.at
    assert [n for n, (a, b) in enumerate(zip(places.at, moved.at, strict=True)) if a != b] == [places.at.index(old)]
    assert moved.moved({new: old}) == places


def test_what_cannot_be_is_refused() -> None:
    places = beside_spares((2, 2), (3, 2))
    with pytest.raises(ValueError, match="two of the job's GPUs are at one place"):
        places.moved({0: 1})
    with pytest.raises(ValueError, match=r"none of the job is at \[5\]"):
        places.moved({5: 4})
    with pytest.raises(ValueError, match="places must be 0 to 5"):
        places.moved({0: 6})
    with pytest.raises(ValueError, match="a job of 2 x 3 doesn't fit on 3 x 2"):
        beside_spares((2, 3), (3, 2))
    with pytest.raises(ValueError, match="4 places for 6 GPUs"):
        placed(Schedule("six", 6, 2, (), ()), places)
