"""Detectors of fail-slow: a GPU or a link that still works, and makes a whole job slower. And their registry.

A detector is one file of detectors/, or a plugin (docs/extending.md). It sees the iteration times of a job, how long
each of its transfers took, and may pause the job to play small schedules of its own on the same fabric.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from railyard.core.registry import Registry
from railyard.failure.diagnosis.change_points import CONFIRMED_AFTER, Change
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan
from railyard.workloads.schedule import Schedule

Spans = npt.NDArray[np.float64]
"""Start and end of each task, s, a row each. A transfer starts at its sender and ends at its receiver."""
Play = Callable[[Schedule], Spans]
"""Plays a schedule on the fabric as it is, while the job waits."""
Part = Literal["gpu", "rail", "hb"]
"""What is slow: the computing of a GPU, its rail link, or its link to the HB domain."""
TITLES: Final[Mapping[Part, str]] = {"gpu": "GPU ", "rail": "rail link of ", "hb": "HB link of "}
PROFILED: Final = 5
"""Iterations before a change, and after it, of which a detector sees all tasks."""


@dataclass(frozen=True, slots=True, order=True)
class Culprit:
    """A GPU or a link that makes a job slow.

    `name`: of the GPU, or of the link as faults have it. `ratio`: its time over that of a healthy one.
    """

    part: Part
    name: str
    ratio: float

    @property
    def title(self) -> str:
        """`rail link of d0g1`, or `GPU d0g1`."""
        return f"{TITLES[self.part]}{self.name}"

    def is_same(self, other: "Culprit") -> bool:
        """Return whether both name the same thing, however slow."""
        return (self.part, self.name) == (other.part, other.name)


def computing_factors(culprit: Culprit | None, plan: Plan) -> list[float]:
    """Return how many times as long as healthy each GPU computes, by number. `culprit`: None if nothing is slow."""
    factors = [1.0] * len(plan.gpus)
    if culprit is not None and culprit.part == "gpu":
        factors[plan.gpus.index(gpu_of_name(culprit.name))] = culprit.ratio
    return factors


@dataclass(frozen=True)
class SlowJob:
    """A job that got slower. `schedule`: of one iteration; `before` and `after`: its tasks in some iterations."""

    plan: Plan
    schedule: Schedule
    before: Sequence[Spans]
    after: Sequence[Spans]


class Detector:
    """Definition of a detector. To be given: `changes` and `culprits`."""

    def changes(self, seconds: Sequence[float]) -> Sequence[Change]:
        """Return the lasting changes of iteration times (s, in order)."""
        raise NotImplementedError

    def culprits(self, job: SlowJob, play: Play) -> Sequence[Culprit]:
        """Return what makes the job slow, the slowest first; nothing if that can't be found."""
        raise NotImplementedError


def _problems(name: str, definition: Detector) -> Iterator[str]:
    if not type(definition).__doc__:
        yield "the docstring is missing"


DETECTORS: Final = Registry[Detector](
    "fail-slow detector",
    "railyard.failure.diagnosis.detectors",
    Detector,
    ["changes(seconds)", "culprits(job, play)"],
    _problems,
)
detector = DETECTORS.register  # decorator that registers a subclass of Detector by its name


@dataclass(frozen=True)
class Diagnosis:
    """Result of a detector for one job. `change`: the slow-down that it reports; None if there was none."""

    change: Change | None
    culprits: tuple[Culprit, ...] = ()

    def is_right(self, culprit: Culprit | None) -> bool:
        """Return whether it names this culprit and nothing else; without a culprit, whether it names nothing."""
        if culprit is None:
            return not self.culprits
        return len(self.culprits) == 1 and self.culprits[0].is_same(culprit)


def diagnose(
    definition: Detector,
    plan: Plan,
    schedule: Schedule,
    seconds: Sequence[float],
    spans_of: Callable[[int], Spans],
    play: Play,
) -> Diagnosis:
    """Return what a detector says of a job, and let it play its validation if the job got slower.

    `schedule`: of one iteration. `seconds`: the time of each iteration. `spans_of`: returns the tasks of an iteration.
    `play`: for the validation.
    """
    slower = [change for change in definition.changes(seconds) if change.ratio > 1]
    if not slower:
        return Diagnosis(None)
    change = slower[-1]
    before = [spans_of(number) for number in range(max(0, change.iteration - PROFILED), change.iteration)]
    # not the first slow ones, but those after the notice: a change may be dated too early
    first = min(change.noticed + 1, len(seconds) - CONFIRMED_AFTER)
    after = [spans_of(number) for number in range(first, len(seconds))][:PROFILED]
    job = SlowJob(plan, schedule, before, after)
    return Diagnosis(change, tuple(definition.culprits(job, play)))
