"""The benchmark of several jobs: both schedules have the same traffic, and its ratio is of repeats."""

import pytest

from benchmarks import several_jobs
from benchmarks.several_jobs import SEVERAL, SINGLE, Turn, ratios, rectangles, schedules
from railyard.core.errors import BadInput
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric


def test_both_schedules_send_the_same_bytes_between_gpus() -> None:
    plan = make_plan(parse_fabric({"kind": "rail-only", "domains": 4, "rails": 4}), several_jobs.RAIL_BPS)
    grids = rectangles(4, 4, 4)
    assert grids[1] == ((2, 3), (6, 7))
    both = schedules(plan, grids)
    assert both[SEVERAL].matrix
    assert sorted(both[SEVERAL].matrix.items()) == sorted(both[SINGLE].matrix.items())


@pytest.mark.parametrize(("domains", "rails", "field"), [(2, 4, "--domains"), (4, 5, "--rails")])
def test_jobs_that_do_not_fill_the_fabric_are_refused(domains: int, rails: int, field: str) -> None:
    with pytest.raises(BadInput, match=field):
        rectangles(domains, rails, 4)


def test_ratio_is_of_the_costs_of_each_repeat() -> None:
    turns = [Turn(SEVERAL, 2.2, 100), Turn(SINGLE, 2.0, 100), Turn(SINGLE, 1.0, 100), Turn(SEVERAL, 1.0, 200)]
    assert ratios(turns) == pytest.approx([1.1, 0.5])
