"""Records of fail-slow: what got slow, what the detector said, and the time of each iteration."""

from dataclasses import dataclass
from typing import Final

from railyard.core.records import Record
from railyard.results.measured import RecordKind


@dataclass(frozen=True, slots=True)
class SlowCase(Record):
    """A row of fail_slow.csv: a job, what got slow in it, and what a detector said.

    `slow_part`, `target`, `ratio`, `iteration`: what got slow, by how much, and from which iteration on; `none` if
    nothing did. `slowdown`, `predicted`: time of a slow iteration over that of a healthy one, measured and by the fluid
    simulation. `reported`: the first slow iteration by the detector, and `noticed` the one after which it said so; -1
    if it saw no change. `named`: what it named, with ratios. `is_right`: whether that is what got slow, and nothing
    else. `passes`: replays of its validation.
    """

    slow_part: str
    target: str
    ratio: float
    iteration: int
    slowdown: float
    predicted: float
    reported: int
    noticed: int
    named: str
    is_right: bool
    passes: int
    detector: str


@dataclass(frozen=True, slots=True)
class IterationTime(Record):
    """A row of fail_slow_iterations.csv: the time of an iteration, s. `is_slow`: whether something was slow in it."""

    iteration: int
    seconds: float
    is_slow: bool


SLOW_CASES: Final = RecordKind("slow_cases", SlowCase, "fail_slow.csv", before="measurements")
ITERATION_TIMES: Final = RecordKind("slow_iterations", IterationTime, "fail_slow_iterations.csv", before="measurements")
