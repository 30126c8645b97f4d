"""Progress of a training program under a fault: when it was detected, how long it stalled, and what was lost.

Pure functions of what the ranks reported, or of the traffic of a program that reports nothing. Times are monotonic ns;
results are s.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple

# The source of the events.
TRAINING: Final = "training"
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
# Traffic of so many seconds is a unit of progress.
UNIT_S: Final = 0.1
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
    hashes_by_step = defaultdict[int, set[str]](set)
    for report in reports:
        if report.what == "step":
            hashes_by_step[report.step].add(report.detail)
    return {step: frozenset(hashes) for step, hashes in sorted(hashes_by_step.items())}


def new_steps(reports: Iterable[Report]) -> list[int]:
    """Return when each step was first reported by any rank, in order; steps that are repeated don't count again."""
    times: list[int] = []
    newest = 0
    for report in sorted(reports):
        if report.what == "step" and report.step > newest:
            newest = report.step
            times.append(report.at_ns)
    return times


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
    if not sent:
        return None
    total = sent[-1].segments
    # without the start, in which peers connect, and without the time after the last segment
    training = [sample for sample in sent if START_SHARE * total <= sample.segments < total]
    if not training:
        return None
    lasted_s = (training[-1].at_ns - training[0].at_ns) / 1e9
    if lasted_s < MIN_TRAFFIC_S:
        return None
    unit = (total - training[0].segments) * UNIT_S / lasted_s
    longest_s = max(gap_s for _, gap_s in _gaps(_progress(training, unit)))
    return Pace(unit, training[0].segments, longest_s)


def stalled_s(sent: Sequence[Sent], usual: Pace, t_fault: int) -> float:
    """Return the longest time for a unit of traffic that ended after a fault, beyond the usual one."""
    training = [sample for sample in sent if sample.segments >= usual.begin]
    longest_s = 0.0
    for end_ns, gap_s in _gaps(_progress(training, usual.unit)):
        if end_ns > t_fault:
            longest_s = max(longest_s, gap_s)
    return max(0.0, longest_s - usual.longest_s)


def _progress(sent: Sequence[Sent], unit: float) -> list[int]:
    """Return the times at which another unit was sent."""
    times: list[int] = []
    due = 0.0
    for sample in sent:
        if sample.segments >= due:
            times.append(sample.at_ns)
            due = sample.segments + unit
    return times


def _gaps(times: Sequence[int]) -> list[tuple[int, float]]:
    """Return the end (ns) and the length (s) of each pause between two times."""
    return [(later, (later - earlier) / 1e9) for earlier, later in pairwise(times)]


def detected_s(
    reports: Iterable[Report], t_fault: int, killed: frozenset[int] = frozenset(), until: int = OPEN_END_NS
) -> float | None:
    """Return after which time a rank first noticed a fault: it reports a dropped step, or fails. None: none did.

    The end of a process that the fault itself ended (`killed`) is no detection, nor is anything after `until`.
    """
    times: list[int] = []
    for report in reports:
        has_failed = report.what == "ended" and report.step != 0 and report.rank not in killed
        if t_fault <= report.at_ns <= until and (report.what == "discarded" or has_failed):
            times.append(report.at_ns)
    if not times:
        return None
    return (min(times) - t_fault) / 1e9


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
    gaps_by_part: dict[str, list[float]] = {BEFORE: [], DURING: [], AFTER: []}
    for end_ns, gap_s in _gaps(new_steps(reports)):
        gaps_by_part[_part(end_ns, t_fault, t_repair)].append(gap_s)
    step_s = {part: median(gaps) for part, gaps in gaps_by_part.items() if gaps}
    longest_s = max(gaps_by_part[DURING] + gaps_by_part[AFTER], default=0.0)
    weights = weights_by_step(reports)
    unequal_steps = [step for step, hashes in weights.items() if len(hashes) > 1]
    changed_steps = [step for step, hashes in weights.items() if hashes != reference.get(step)]
    done = defaultdict[int, set[int]](set)
    computed: Counter[int] = Counter()
    for report in reports:
        if report.what == "step":
            done[report.rank].add(report.step)
        if report.what != "ended":
            computed[report.rank] += 1
    lost = [count - len(done[rank]) for rank, count in computed.items()]
    completed_ranks = sum(steps in done_steps for done_steps in done.values())
    return TrainingOutcome(
        detected_s=detected_s(reports, t_fault, killed, until),
        stalled_s=max(0.0, longest_s - step_s.get(BEFORE, 0.0)),
        steps_lost=max(lost, default=0),
        weights_equal=bool(weights) and not changed_steps,
        ranks_equal=not unequal_steps,
        completed=completed_ranks == ranks,
        first_difference=min(unequal_steps + changed_steps, default=None),
        step_s=step_s,
    )


def _part(at_ns: int, t_fault: int, t_repair: int) -> str:
    """Return the part of a training, by the fault, that a time belongs to."""
    if at_ns <= t_fault:
        return BEFORE
    if at_ns <= t_repair:
        return DURING
    return AFTER
