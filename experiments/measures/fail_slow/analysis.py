"""Scores of detectors in a run, of each fabric, and their targets."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from railyard.experiments.measures.fail_slow.records import SLOW_CASES, SlowCase
from railyard.failure.diagnosis.cases import CaseResult, Score
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Sample, Target, outcomes_by_fabric
from railyard.results.runs.records import VERDICTS

SOURCE: Final = "our bar, over seeded cases"
NAMED: Final = Target(quantity="slow GPUs and links named alone", unit="share", source=SOURCE, least=0.95)
FALSE_ALARMS: Final = Target(quantity="false alarms of quiet jobs", unit="share", source=SOURCE, most=0.02)


def score_of(cases: Iterable[SlowCase]) -> Score:
    """Return the score of recorded cases."""
    return Score.of(CaseResult(case.slow_part != "none", case.is_right, bool(case.named)) for case in cases)


def cases_by_fabric(cases: Sequence[SlowCase]) -> dict[tuple[str, str], list[SlowCase]]:
    """Return the cases of each fabric and detector."""
    by_fabric = defaultdict[tuple[str, str], list[SlowCase]](list)
    for case in cases:
        by_fabric[case.fabric, case.detector].append(case)
    return dict(by_fabric)


def target_outcomes(analysis: Analysis) -> list[Outcome]:
    """Return the targets of each fabric: the share of slow cases that were named, and of quiet ones with a name.

    Cases in intervals that the machine disturbed are left out; of these alone, no target is judged.
    """
    judgement = analysis.judgement

    def rank(case: SlowCase) -> int:
        return VERDICTS.index(judgement.of_interval(case.interval))

    named: list[Sample] = []
    false_alarms: list[Sample] = []
    for (_, detector), cases in cases_by_fabric(analysis.run.rows(SLOW_CASES)).items():
        judged = [case for case in cases if case.interval not in judgement.disturbed] or cases
        total = score_of(judged)
        # the verdict of a target is that of its worst interval
        interval = max(judged, key=rank).interval
        if total.slow:
            named.append(Sample(total.recall, detector, interval))
        if total.quiet:
            false_alarms.append(Sample(total.false_alarms / total.quiet, detector, interval))
    return [*outcomes_by_fabric(NAMED, named, judgement), *outcomes_by_fabric(FALSE_ALARMS, false_alarms, judgement)]
