"""Progress of a training program under a fault: when it was detected, how long it stalled, and what was lost.

Pure functions of what the ranks reported. Times are monotonic ns; results are s.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple

TRAINING: Final = "training"  # source of the events
DETECTED, STALLED, LOST, STEP_TIME = "fault_detection_time", "stall_time", "steps_lost", "step_time"
WEIGHTS, RANKS, COMPLETED = "weights_equal", "ranks_equal", "training_completed"
BEFORE, DURING, AFTER = "before", "during", "after"


class Report(NamedTuple):
    """A line of a rank, or the end of its process: then `step` is its exit status. `detail`: a hash or a reason."""

    at_ns: int
    rank: int
    what: Literal["step", "discarded", "ended"]
    step: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Outcome of a training. `detected_s`: None if no rank noticed anything.

    `stalled_s`: the longest time without a new step, beyond the usual time of one. `steps_lost`: the most by one rank,
    of steps that were computed and then dropped, or computed again. `weights_equal`: to those of the training without a
    fault, bit for bit, after every step. `ranks_equal`: all ranks had the same weights after the same step.
    `first_difference`: the first step for which either is false. `step_s`: median time of a step before, during and
    after the fault.
    """

    detected_s: float | None
    stalled_s: float
    steps_lost: int
    weights_equal: bool
    ranks_equal: bool
    completed: bool
    first_difference: int | None
    step_s: Mapping[str, float]


def weights_by_step(reports: Iterable[Report]) -> dict[int, frozenset[str]]:
    """Return the hashes that any rank reported for each step."""
    found = defaultdict[int, set[str]](set)
    for report in reports:
        if report.what == "step":
            found[report.step].add(report.detail)
    return {step: frozenset(hashes) for step, hashes in sorted(found.items())}


def new_steps(reports: Iterable[Report]) -> list[int]:
    """Return when each step was first reported by any rank, in order; steps that are repeated don't count again."""
    found: list[int] = []
    newest = 0
    for report in sorted(reports):
        if report.what == "step" and report.step > newest:
            newest = report.step
            found.append(report.at_ns)
    return found


def outcome(
    reports: Sequence[Report],
    reference: Mapping[int, frozenset[str]],
    ranks: int,
    steps: int,
    t_fault: int,
    t_repair: int,
    killed: frozenset[int] = frozenset(),
) -> TrainingOutcome:
    """Return the outcome of a training of `steps` steps. `killed`: the ranks whose processes the fault itself ends.

    The end of such a process is no detection; a rank that reports a dropped step or fails because of it is one.
    """
    noticed = [
        report.at_ns
        for report in reports
        if report.at_ns >= t_fault
        and (report.what == "discarded" or (report.what == "ended" and report.step != 0 and report.rank not in killed))
    ]
    times = new_steps(reports)
    gaps = [(later, (later - earlier) / 1e9) for earlier, later in pairwise(times)]
    by_part = {
        BEFORE: [gap for at, gap in gaps if at <= t_fault],
        DURING: [gap for at, gap in gaps if t_fault < at <= t_repair],
        AFTER: [gap for at, gap in gaps if at > t_repair],
    }
    step_s = {part: median(found) for part, found in by_part.items() if found}
    longest = max(by_part[DURING] + by_part[AFTER], default=0.0)
    weights = weights_by_step(reports)
    unlike = [step for step, hashes in weights.items() if len(hashes) > 1]
    other = [step for step, hashes in weights.items() if hashes != reference.get(step)]
    done = defaultdict[int, set[int]](set)
    computed = defaultdict[int, int](int)
    for report in reports:
        if report.what != "ended":
            computed[report.rank] += 1
            done[report.rank] |= {report.step} if report.what == "step" else set()
    return TrainingOutcome(
        detected_s=(min(noticed) - t_fault) / 1e9 if noticed else None,
        stalled_s=max(0.0, longest - step_s.get(BEFORE, 0.0)),
        steps_lost=max((computed[rank] - len(done[rank]) for rank in computed), default=0),
        weights_equal=bool(weights) and not other,
        ranks_equal=not unlike,
        completed=sum(steps in reached for reached in done.values()) == ranks,
        first_difference=min(unlike + other, default=None),
        step_s=step_s,
    )
