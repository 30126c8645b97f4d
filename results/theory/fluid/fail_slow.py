"""Fail-slow in the fluid simulation: a job of which a GPU or a link gets slow, with the noise of measured times.

An iteration is simulated healthy and slow; each time then varies as measured ones do around their median.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from railyard.failure.diagnosis.cases import Case, draw
from railyard.failure.diagnosis.definition import Culprit, Detector, Diagnosis, Part, Spans, computing_factors, diagnose
from railyard.results.theory.fluid.routes import Amounts, Port
from railyard.results.theory.fluid.simulation import Conditions, RateChange, simulate
from railyard.topologies.plan import Plan
from railyard.workloads.jobs.gpt import GptSpec
from railyard.workloads.schedule import Rates, Schedule, payload_rates
from railyard.workloads.stragglers import with_stragglers

LEAST_SLOWDOWN: Final = 1.15
"""Of a whole iteration, for a slow GPU or link to be a case: detectors that see iteration times need 1.1."""
ATTEMPTS: Final = 50
"""Cases that are drawn to find one that slows an iteration by so much."""
DEFAULT_JOB: Final = GptSpec.model_validate(
    {"kind": "gpt", "duration": "400ms", "compute": 0.1, "layers_per_stage": 1, "micro_batch": 8}
)
"""About half of an iteration computes: so a slow GPU and a slow link both slow the whole."""


@dataclass(frozen=True)
class SlowFabric:
    """A fabric on which one GPU or link may be slow. `culprit`: which; None if all are healthy.

    `noise`: what measured times were over their median, less 1; each simulated time gets one of them. `rng`: draws it.
    """

    plan: Plan
    culprit: Culprit | None
    noise: Amounts
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def exact(self, schedule: Schedule) -> Spans:
        """Return start and end of each task, without noise."""
        # computing changes in the schedule, rates in the conditions
        changed = with_stragglers(schedule, computing_factors(self.culprit, self.plan), 0.0, 0)
        run = simulate(changed, self._rates, self.plan.spec, Conditions(changes=self._changes))
        return np.column_stack((run.start_s, run.end_s))

    def play(self, schedule: Schedule) -> Spans:
        """Return start and end of each task, with noise."""
        return self.noisy(self.exact(schedule))

    def noisy(self, spans: Spans) -> Spans:
        """Return tasks each of which takes longer or shorter by a part that is drawn."""
        start_s, end_s = spans.T
        return np.column_stack((start_s, start_s + (end_s - start_s) * self.drawn(len(spans))))

    def drawn(self, count: int) -> Amounts:
        """Return so many factors of noise."""
        return 1 + self.rng.choice(self.noise, count)

    @property
    def _rates(self) -> Rates:
        return payload_rates(self.plan.hb_bps, self.plan.rail_bps, self.plan.spec.mtu)

    @property
    def _changes(self) -> tuple[RateChange, ...]:
        """The rates of the slow link, both ways."""
        culprit = self.culprit
        if culprit is None or culprit.part == "gpu":
            return ()
        ports = [Port(culprit.name, culprit.part, is_out) for is_out in (True, False)]
        return tuple(RateChange(0.0, port, 1 / culprit.ratio) for port in ports)


@dataclass(frozen=True)
class SimulatedJob:
    """A job alone on a fabric. `schedule`: of one iteration."""

    plan: Plan
    schedule: Schedule

    @cached_property
    def healthy(self) -> Spans:
        """The tasks of an iteration in which nothing is slow."""
        return self.spans(None)

    def spans(self, culprit: Culprit | None) -> Spans:
        """Return the tasks of an iteration in which something is slow."""
        return SlowFabric(self.plan, culprit, np.zeros(1)).exact(self.schedule)

    def slowdown(self, culprit: Culprit | None) -> float:
        """Return the time of an iteration in which something is slow over that of a healthy one."""
        if culprit is None:
            return 1.0
        return float(self.spans(culprit).max() / self.healthy.max())

    def felt_case(self, part: Part | None, iterations: int, seeds: Sequence[int]) -> Case:
        """Return the first case of these seeds that slows an iteration by `LEAST_SLOWDOWN`.

        `part`: what gets slow; None: nothing. ValueError if none of `ATTEMPTS` does.
        """
        for attempt in range(ATTEMPTS):
            case = draw(part, self.plan, iterations, (*seeds, attempt))
            if case.culprit is None or self.slowdown(case.culprit) >= LEAST_SLOWDOWN:
                return case
        raise ValueError(f"no slow {part} of {ATTEMPTS} slows the job to {LEAST_SLOWDOWN} times its time")

    def diagnosis(self, case: Case, detector: Detector, iterations: int, noise: Amounts, seed: int) -> Diagnosis:
        """Return what a detector says of a case in so many iterations.

        `noise`: what measured times were over their median, less 1. `seed`: of the times that are drawn.
        """
        fabric = SlowFabric(self.plan, case.culprit, noise, np.random.default_rng(seed))
        slow = self.healthy
        if case.culprit is not None:
            slow = self.spans(case.culprit)
        is_slow = np.arange(iterations) >= case.iteration
        seconds = np.where(is_slow, slow.max(), self.healthy.max()) * fabric.drawn(iterations)

        def spans_of(iteration: int) -> Spans:
            if is_slow[iteration]:
                return fabric.noisy(slow)
            return fabric.noisy(self.healthy)

        return diagnose(detector, self.plan, self.schedule, seconds.tolist(), spans_of, fabric.play)
