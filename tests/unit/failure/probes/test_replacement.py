"""Time at which a replacement is in place: the slowest pair's first answer to a probe since the decision."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import ProbeLog
from railyard.failure.probes.replacement import taken_over_ns

DECIDED = 1_000


def asked(*answers: int) -> ProbeLog:
    """A probe each 100 ns from 0 on; `answers`: when each was answered, -1 for never."""
    return ProbeLog(tuple(range(0, 100 * len(answers), 100)), answers)


def test_the_first_answer_counts_whatever_comes_after() -> None:
    late = asked(*[-1] * 12, 1_350, -1, 1_480)
    assert taken_over_ns([late], DECIDED) == 1_350


def test_answers_to_requests_before_the_decision_do_not_count() -> None:
    always = asked(*[100 * n + 30 for n in range(15)])
    assert taken_over_ns([always], DECIDED) == 1_030
    overtaken = asked(*[-1] * 9, 1_020, -1, 1_150)  # the one asked at 900 was answered after the decision
    assert taken_over_ns([overtaken], DECIDED) == 1_150


def test_one_pair_without_an_answer_is_enough() -> None:
    assert taken_over_ns([asked(*[100 * n + 30 for n in range(15)]), asked(*[-1] * 15)], DECIDED) is None
    assert taken_over_ns([], DECIDED) is None


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=40), st.integers(0, 4_500))
def test_replacement_time_is_the_first_counted_answer(lateness: list[int], decided: int) -> None:
    log = asked(*[-1 if late < 0 else 100 * n + late for n, late in enumerate(lateness)])
    counting = [back for n, back in enumerate(log.arrived_ns) if back >= 0 and 100 * n >= decided]
    assert taken_over_ns([log, log], decided) == (counting[0] if counting else None)
