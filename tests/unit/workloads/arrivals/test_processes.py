"""Arrival processes: when jobs begin, and processes that never end."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.arrivals.definition import ArrivalProcess, checked_starts, parse_arrivals


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
    ("data", "field", "words"),
    [
        ({"kind": "poisson", "rate": 0}, "arrivals.rate", "0.001 or more"),
        ({"kind": "poisson", "rate": float("inf")}, "arrivals.rate", "a number"),
        ({"kind": "poisson", "rate": 0.001}, "arrivals.rate", "a larger rate"),
        ({"kind": "poisson"}, "arrivals.rate", "needed"),
        ({"kind": "trace", "times": [1.0]}, "arrivals.times", "1 times for 3 jobs"),
        ({"kind": "trace", "times": [0, 1, 700]}, "arrivals.factor", "after 700s, and 600s"),
        ({"kind": "uniform"}, "arrivals.kind", "poisson"),
    ],
)
def test_wrong_processes_are_refused_by_field(data: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        starts(data)
    assert refused.value.field == field
    assert words in str(refused.value)


def test_process_without_a_pace_names_its_kind() -> None:
    class Late(ArrivalProcess):
        kind: str = "late"

        def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
            return (1e3,)

    with pytest.raises(BadInput, match=r"^arrivals\.kind: 'late' .* after 1000s"):
        checked_starts(Late(), [0.0], 1)


@pytest.mark.parametrize("times_s", [(), (0.0, 1.0), (float("nan"),), (-1.0,)])
def test_times_of_a_plugin_that_are_none_are_refused(times_s: tuple[float, ...]) -> None:
    class Wrong(ArrivalProcess):
        kind: str = "wrong"

        def start_times(self, starts_s: Sequence[float], seed: int, field: str) -> tuple[float, ...]:
            return times_s

    with pytest.raises(BadInput, match=r"^arrivals\.kind: 'wrong' .* for 1 jobs"):
        checked_starts(Wrong(), [0.0], 1)
