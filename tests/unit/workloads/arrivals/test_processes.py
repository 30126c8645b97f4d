"""Arrival processes: when jobs begin, and processes that never end."""

from itertools import pairwise
from statistics import fmean

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.arrivals.definition import checked_starts, parse_arrivals


def starts(data: dict[str, object], count: int = 3, seed: int = 1, start_s: float = 0.0) -> tuple[float, ...]:
    return checked_starts(parse_arrivals(data), [start_s] * count, seed)


def test_fixed_starts_are_stated_by_the_jobs() -> None:
    assert checked_starts(parse_arrivals({"kind": "fixed"}), [0.0, 1.5], 1) == (0.0, 1.5)


def test_poisson_arrivals_have_their_rate_and_seed() -> None:
    times = starts({"kind": "poisson", "rate": 4}, 2000)
    gaps = [late - early for early, late in pairwise(times)]
    assert times[0] == 0
    assert fmean(gaps) == pytest.approx(0.25, rel=0.1)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
    assert times == starts({"kind": "poisson", "rate": 4}, 2000)
    assert times[1] != starts({"kind": "poisson", "rate": 4}, 2000, seed=2)[1]


def test_traces_begin_with_their_first_time() -> None:
    assert starts({"kind": "trace", "times": [100, 130, 110], "factor": 0.1}, start_s=1.0) == (1.0, 4.0, 2.0)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "poisson", "rate": 0}, "arrivals.rate"),
        ({"kind": "poisson", "rate": float("inf")}, "arrivals.rate"),
        ({"kind": "poisson", "rate": 1e-6}, "arrivals"),
        ({"kind": "poisson"}, "arrivals.rate"),
        ({"kind": "trace", "times": [1.0]}, "arrivals.times"),
        ({"kind": "uniform"}, "arrivals.kind"),
    ],
)
def test_wrong_processes_are_refused_by_field(data: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        starts(data)
    assert refused.value.field == field
