"""Detector greyhound: change points of iteration times, then tests of the links and GPUs of slow groups."""

from collections.abc import Mapping, Sequence
from typing import Final

from railyard.failure.diagnosis.change_points import Change, changes
from railyard.failure.diagnosis.definition import Culprit, Detector, Play, SlowJob, detector
from railyard.failure.diagnosis.groups import GpuLink, links_of_groups, slower_groups
from railyard.failure.diagnosis.validation import (
    computing_ratios,
    link_ratios,
    pair_ratios,
    pair_schedule,
    passes,
    second_tests,
)
from railyard.topologies.fabric_kinds import Layer
from railyard.topologies.plan import Plan

LEAST_CHANGE: Final = 0.1
"""Part of the iteration time by which it must change, as in the paper."""
SUSPECT: Final = 0.05
"""Part of its time by which a group must be slower, for its links to be tested."""
SECOND_TESTS: Final = 2
"""Rounds of tests with other partners: the first may have to find healthy ones."""
SLOW: Final = 1.07
"""Ratio to a healthy time from which a link or a GPU is slow: half of what `LEAST_CHANGE` needs, and above noise."""


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
        groups = slower_groups(job.schedule, job.before, job.after, SUSPECT)
        suspects = links_of_groups(job.schedule, groups, plan)
        computing = sorted({gpu for pair in job.schedule.matrix for gpu in pair})
        slow: list[Culprit] = []
        ratios: dict[GpuLink, float] = {}
        for number, pairs in enumerate(passes(suspects, plan) or [[]]):
            # GPUs compute in the first pass alone
            schedule = pair_schedule(pairs, plan, [] if number else computing)
            spans = play(schedule)
            _take_least(ratios, link_ratios(pair_ratios(pairs, spans)))
            if number == 0:
                for gpu, ratio in computing_ratios(schedule, spans).items():
                    if ratio >= SLOW:
                        slow.append(Culprit("gpu", plan.gpus[gpu].name, ratio))
        for _ in range(SECOND_TESTS):
            for pairs in second_tests(ratios, SLOW, plan.spec.rails):
                again = pair_ratios(pairs, play(pair_schedule(pairs, plan)))
                _take_least(ratios, link_ratios(again))
        for link, ratio in sorted(ratios.items()):
            if ratio >= SLOW:
                slow.append(Culprit(link.part, _link_name(link, plan), ratio))
        return sorted(slow, key=lambda culprit: -culprit.ratio)


def _take_least(ratios: dict[GpuLink, float], more: Mapping[GpuLink, float]) -> None:
    """Lower the ratio of each link to that of a faster pair."""
    for link, ratio in more.items():
        ratios[link] = min(ratio, ratios.get(link, ratio))


def _link_name(link: GpuLink, plan: Plan) -> str:
    """Return the name of a link as faults have it: that of its GPU, or of its NIC."""
    layer: Layer = "rail" if link.part == "rail" else "hb"
    return plan.link_name_of(plan.gpus[link.gpu], layer)
