"""Progress of a training program under a fault: when it was detected, how long it stalled, and what was lost.

Pure functions of what the ranks reported, or of the traffic of a program that reports nothing. Times are monotonic ns;
results are s.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple

TRAINING: Final = "training"  # source of the events
DETECTED = "fault_detection_time"
STALLED = "stall_time"
LOST = "steps_lost"
STEP_TIME = "step_time"
WEIGHTS = "weights_equal"
RANKS = "ranks_equal"
COMPLETED = "training_completed"
BEFORE = "before"
DURING = "during"
AFTER = "after"
OPEN_END_NS: Final = 1 << 62
UNIT_S: Final = 0.1  # of traffic, in which progress is counted
START_SHARE: Final = 0.05
MIN_TRAFFIC_S: Final = 0.5


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


class Sent(NamedTuple):
    """TCP segments with new data that all GPUs of a training have sent until then."""

    at_ns: int
    segments: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Usual traffic of a training. `unit`: segments in 0.1 s, on average; `longest_s`: the longest time for as many.

    `begin`: segments that it has sent when its start is over, which the first `START_SHARE` of all are part of: peers
    connect, and wait for the last of them.
    """

    unit: float
    begin: float
    longest_s: float


def pace(sent: Sequence[Sent]) -> Pace | None:
    """Return the pace of a whole training; None if it sent next to nothing."""
    total = sent[-1].segments if sent else 0
    training = [sample for sample in sent if START_SHARE * total <= sample.segments < total]
    lasted_s = (training[-1].at_ns - training[0].at_ns) / 1e9 if training else 0.0
    if lasted_s < MIN_TRAFFIC_S:
        return None
    unit = (total - training[0].segments) * UNIT_S / lasted_s
    return Pace(unit, training[0].segments, max(gap for _, gap in _gaps(_progress(training, unit))))


def stalled_s(sent: Sequence[Sent], usual: Pace, t_fault: int) -> float:
    """Return the longest time for a unit of traffic that ended after a fault, beyond the usual one."""
    gaps = _gaps(_progress([sample for sample in sent if sample.segments >= usual.begin], usual.unit))
    return max(0.0, max((gap for at, gap in gaps if at > t_fault), default=0.0) - usual.longest_s)


def _progress(sent: Sequence[Sent], unit: float) -> list[int]:
    """Return the times at which another unit was sent."""
    found = list[int]()
    due = 0.0
    for sample in sent:
        if sample.segments >= due:
            found.append(sample.at_ns)
            due = sample.segments + unit
    return found


def _gaps(times: Sequence[int]) -> list[tuple[int, float]]:
    """Return the end (ns) and the length (s) of each pause between two times."""
    return [(later, (later - earlier) / 1e9) for earlier, later in pairwise(times)]


def detected_s(
    reports: Iterable[Report], t_fault: int, killed: frozenset[int] = frozenset(), until: int = OPEN_END_NS
) -> float | None:
    """Return after which time a rank first noticed a fault: it reports a dropped step, or fails. None: none did.

    The end of a process that the fault itself ended (`killed`) is no detection, nor is anything after `until`.
    """
    noticed = [
        report.at_ns
        for report in reports
        if t_fault <= report.at_ns <= until
        and (report.what == "discarded" or (report.what == "ended" and report.step != 0 and report.rank not in killed))
    ]
    return (min(noticed) - t_fault) / 1e9 if noticed else None


def outcome(
    reports: Sequence[Report],
    reference: Mapping[int, frozenset[str]],
    ranks: int,
    steps: int,
    t_fault: int,
    t_repair: int,
    killed: frozenset[int] = frozenset(),
    until: int = OPEN_END_NS,
) -> TrainingOutcome:
    """Return the outcome of a training of `steps` steps. `killed`, `until`: as of `detected_s`."""
    gaps = _gaps(new_steps(reports))
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
        detected_s=detected_s(reports, t_fault, killed, until),
        stalled_s=max(0.0, longest - step_s.get(BEFORE, 0.0)),
        steps_lost=max((computed[rank] - len(done[rank]) for rank in computed), default=0),
        weights_equal=bool(weights) and not other,
        ranks_equal=not unlike,
        completed=sum(steps in reached for reached in done.values()) == ranks,
        first_difference=min(unlike + other, default=None),
        step_s=step_s,
    )
