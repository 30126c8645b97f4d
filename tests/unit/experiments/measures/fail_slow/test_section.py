"""Fail-slow in the report: scores of the cases, their targets, and the figure."""

from dataclasses import replace

from railyard.core.records import IntervalId
from railyard.experiments.measures.fail_slow.analysis import score_of, target_outcomes
from railyard.experiments.measures.fail_slow.records import ITERATION_TIMES, SLOW_CASES, IterationTime, SlowCase
from railyard.experiments.measures.fail_slow.section import FailSlowSection
from railyard.failure.diagnosis.cases import Score
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Load, Run


def case(part: str, named: str, is_right: bool, repeat: int = 0) -> SlowCase:
    interval = IntervalId("rail-only", f"fail-slow {part}", repeat=repeat)
    target = "" if part == "none" else "d0g1"
    return SlowCase(interval, part, target, 2.0, 10, 1.5, 1.4, 10, 12, named, is_right, 3, "greyhound")


def run_of(*cases: SlowCase) -> Run:
    run = Run("test", {}, {}, "")
    run.rows(SLOW_CASES).extend(cases)
    for row in cases:
        run.rows(ITERATION_TIMES).extend(IterationTime(row.interval, n, 1.0 + n / 100, n >= 10) for n in range(20))
    return run


CASES = (
    case("gpu", "GPU d0g1 (2.00)", True),
    case("rail", "", False),
    case("hb", "GPU d0g0 (2.00)", False),
    case("none", "", True),
    case("none", "GPU d0g0 (2.00)", False, repeat=1),
)


def test_score_counts_names_and_false_alarms() -> None:
    total = score_of(CASES)
    assert total == Score(slow=3, right=1, wrong=1, quiet=2, false_alarms=1)
    assert total.recall == 1 / 3
    assert total.precision == 1 / 3


def test_targets_are_shares_of_cases() -> None:
    named, alarms = target_outcomes(Analysis(run_of(*CASES)))
    assert named.values == (1 / 3,)
    assert named.met is False
    assert alarms.values == (0.5,)
    (perfect,) = target_outcomes(Analysis(run_of(case("gpu", "GPU d0g1 (2.00)", True))))
    assert perfect.met


def test_disturbed_cases_are_left_out_of_targets() -> None:
    run = run_of(*CASES[:3])
    run.loads = [Load(row.interval, 0.5, 0.0, 1.0, 0, 100, 0) for row in CASES[:3]]
    for number in (1, 2):
        run.loads[number] = replace(run.loads[number], cpu_foreign=0.9)
    (named,) = target_outcomes(Analysis(run))
    assert (named.values, named.met) == ((1.0,), True)
    run.loads[0] = replace(run.loads[0], cpu_foreign=0.9)
    (named,) = target_outcomes(Analysis(run))
    assert (named.values, named.not_judged) == ((), 1)


def test_section_has_all_cases_and_a_figure() -> None:
    analysis = Analysis(run_of(*CASES))
    section = FailSlowSection()
    assert section.applies(analysis)
    assert not section.applies(Analysis(Run("test", {}, {}, "")))
    scores, cases = section.tables(analysis)
    assert scores.to_dicts()[0]["right"] == 1
    assert [row["slow"] for row in cases.to_dicts()] == [
        "GPU d0g1",
        "rail link d0g1",
        "HB link d0g1",
        "nothing",
        "nothing",
    ]
    (plot,) = section.parts(analysis)["plots"]
    assert "right in 2 of them" in plot.alt
