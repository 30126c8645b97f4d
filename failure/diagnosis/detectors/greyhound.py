"""Detector greyhound: change points of iteration times, then tests of the links and GPUs of slow groups."""

from collections.abc import Sequence
from typing import Final

from railyard.failure.diagnosis.change_points import Change, changes
from railyard.failure.diagnosis.definition import Culprit, Detector, Play, SlowJob, detector
from railyard.failure.diagnosis.groups import GpuLink, GroupRuns, links_of_pairs
from railyard.failure.diagnosis.validation import (
    LinkPair,
    computing_ratios,
    link_ratios,
    pair_ratios,
    pair_schedule,
    passes,
    second_tests,
)
from railyard.topologies.plan import Plan

LEAST_CHANGE: Final = 0.1
"""Part of the iteration time by which it must change, as in the paper."""
SUSPECT: Final = 0.05
"""Part of its time by which a group must be slower, for its links to be tested."""
SECOND_TESTS: Final = 2
"""Rounds of tests with other partners: the first may have to find healthy ones."""
SLOW: Final = 1.1
"""Ratio to a healthy time from which a link or a GPU is slow: less can't slow an iteration by `LEAST_CHANGE`."""


@detector("greyhound")
class Greyhound(Detector):
    """Bayesian change points of iteration times, then tests of all GPUs and of the links of groups that got slower.

    Source: Wu et al., GREYHOUND: Hunting Fail-Slows in Hybrid-Parallel Training at Scale, ATC 2025.
    """

    def changes(self, seconds: Sequence[float]) -> Sequence[Change]:
        """Return the confirmed change points."""
        return changes(seconds, LEAST_CHANGE)

    def culprits(self, job: SlowJob, play: Play) -> Sequence[Culprit]:
        """Return slow GPUs and links, after a few passes of validation."""
        plan = job.plan
        runs = GroupRuns.of(job.schedule)
        groups = runs.slower(job.before, job.after, SUSPECT)
        suspects = links_of_pairs(runs.pairs(job.schedule, groups), plan)
        computing = sorted({gpu for pair in job.schedule.matrix for gpu in pair})
        slow: list[Culprit] = []
        pair_times: dict[LinkPair, float] = {}
        for pairs in passes(suspects, plan) or [[]]:
            # GPUs compute in the first pass alone
            schedule = pair_schedule(pairs, plan, computing)
            spans = play(schedule)
            pair_times |= pair_ratios(pairs, spans)
            if computing:
                for gpu, ratio in computing_ratios(schedule, spans).items():
                    if ratio >= SLOW:
                        slow.append(Culprit("gpu", plan.gpus[gpu].name, ratio))
                computing = []
        for _ in range(SECOND_TESTS):
            for pairs in second_tests(link_ratios(pair_times), SLOW, plan.spec.rails):
                pair_times |= pair_ratios(pairs, play(pair_schedule(pairs, plan)))
        for link, ratio in sorted(link_ratios(pair_times).items()):
            if ratio >= SLOW:
                slow.append(Culprit(link.part, _link_name(link, plan), ratio))
        return sorted(slow, key=lambda culprit: -culprit.ratio)


def _link_name(link: GpuLink, plan: Plan) -> str:
    """Return the name of a link as faults have it: that of its GPU, or of its NIC."""
    if link.part == "rail":
        return plan.link_name_of(plan.gpus[link.gpu], "rail")
    return plan.gpus[link.gpu].name
