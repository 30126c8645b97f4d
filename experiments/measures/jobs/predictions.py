"""Predictions of the jobs of a fabric, in each mode in which they run: simulations, and means with intervals."""

from dataclasses import dataclass
from typing import Final

from railyard.experiments.measures.jobs.interleaving import busiest_shared_port
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.planning import PlannedJobs
from railyard.experiments.measures.jobs.records import ALONE, INTERLEAVED, TOGETHER
from railyard.results.theory.fluid.jobs import JobsPrediction, predict_jobs
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.shift import Interleaving, best_interleaving
from railyard.results.theory.fluid.spread import PredictedJob, Spread, predicted_spreads
from railyard.topologies.plan import Plan

ALL_JOBS: Final = "all jobs"
"""The workload of intervals in which all jobs run together."""
ALL_INTERLEAVED: Final = "all jobs interleaved"


@dataclass(frozen=True)
class ModePrediction:
    """Prediction of a mode in which all jobs run. `workload`: of its intervals. `jobs`: in their order.

    `simulated`: with even shares of hashed links and without noise.
    """

    workload: str
    simulated: JobsPrediction
    jobs: tuple[PredictedJob, ...]


@dataclass(frozen=True)
class Predictions:
    """Predictions of the jobs of a fabric: together, and interleaved if they run so."""

    together: ModePrediction
    interleaved: ModePrediction | None = None
    interleaving: Interleaving | None = None

    @property
    def by_mode(self) -> dict[str, ModePrediction]:
        """The prediction of each mode in which all jobs run."""
        modes = {TOGETHER: self.together}
        if self.interleaved is not None:
            modes[INTERLEAVED] = self.interleaved
        return modes

    @property
    def shared_port(self) -> Port | None:
        """The port over which interleaved jobs send most together."""
        return busiest_shared_port(self.interleaving) if self.interleaving is not None else None

    def iteration_s(self, mode: str, job: str) -> Spread | None:
        """Return the predicted mean iteration of a job in a mode, s; None for a mode of its own, such as a fault."""
        prediction = self.by_mode.get(mode, self.together)
        predicted = next(predicted for predicted in prediction.jobs if predicted.name == job)
        if mode == ALONE:
            return predicted.alone_s
        return predicted.together_s if mode in self.by_mode else None


def predicted_jobs(planned: PlannedJobs, plan: Plan, is_interleaved: bool) -> Predictions:
    """Simulate the jobs of a fabric, and find their interleaving if they have one."""
    rates = rates_of(plan)
    if not is_interleaved:
        return Predictions(_mode(ALL_JOBS, predict_jobs(planned.combined, rates, plan.spec), plan))
    interleaving = best_interleaving(planned.combined, rates, plan.spec)
    together = _mode(ALL_JOBS, interleaving.before, plan)
    return Predictions(together, _mode(ALL_INTERLEAVED, interleaving.after, plan), interleaving)


def _mode(workload: str, simulated: JobsPrediction, plan: Plan) -> ModePrediction:
    return ModePrediction(workload, simulated, predicted_spreads(simulated, rates_of(plan), plan.spec))


def alone_name(job: str) -> str:
    """Return the workload of intervals in which a job runs without the others."""
    return f"{job} {ALONE}"
