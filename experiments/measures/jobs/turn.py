"""A turn of jobs: which of them a built fabric replays, in which mode, and what is predicted for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.planning import PlannedJobs
from railyard.experiments.measures.jobs.ports import PortCounters
from railyard.experiments.measures.jobs.predictions import (
    ALL_JOBS,
    FaultPrediction,
    Predictions,
    alone_name,
    predicted_with_fault,
)
from railyard.experiments.measures.jobs.records import ALONE, TOGETHER
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.faults import FaultSpec
from railyard.results.theory.fluid.simulation import FluidRun
from railyard.results.theory.fluid.spread import Spread
from railyard.workloads.combined import CombinedSchedule
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.replay.run import time_limit_s


@dataclass(frozen=True)
class JobsFabric:
    """A built fabric, the jobs on it and their predictions. `counters`: of its ports. `seed`: of the bytes sent."""

    session: FabricSession
    planned: PlannedJobs
    predictions: Predictions
    counters: PortCounters
    seed: int


@dataclass(frozen=True)
class JobsTurn:
    """Jobs that a built fabric replays once. `mode`: as in JobRun. `predicted`: a simulation of the same, or None.

    `fault`: the prediction of the fault that is injected meanwhile, if there is one.
    """

    fabric: JobsFabric
    jobs: CombinedSchedule
    mode: str
    interval: IntervalId
    predicted: FluidRun | None
    fault: FaultPrediction | None = None

    @property
    def limit_s(self) -> float:
        """The time limit of its replay, s."""
        plan = self.fabric.session.plan
        predicted_s = self.predicted.seconds if self.predicted else np.inf
        # a transfer without a path never ends, in the simulation and on packets
        if not np.isfinite(predicted_s):
            predicted_s = line_rate_duration_s(self.jobs.schedule, rates_of(plan), plan.spec)
        return time_limit_s(predicted_s)

    def iteration_s(self, job: str) -> Spread | None:
        """Return the predicted mean iteration of a job, s; None without a prediction."""
        predictions = self.fabric.predictions
        if self.fault is None:
            return predictions.iteration_s(self.mode, job)
        together = predictions.iteration_s(TOGETHER, job)
        if together is None or self.fault.reason_of(job):
            return None
        return self.fault.jobs[job].at_its_times.times(together.mean)

    def predicted_iterations_s(self) -> list[Sequence[float]]:
        """Return the predicted seconds of each iteration of each job; nothing for a job without a prediction."""
        if self.predicted is None:
            return [()] * len(self.jobs.jobs)
        predicted: list[Sequence[float]] = list(self.jobs.iteration_seconds(self.predicted.end_s))
        for number, job in enumerate(self.jobs.jobs):
            if self.fault is not None and self.fault.reason_of(job.name):
                predicted[number] = ()
        return predicted


def turns(fabric: JobsFabric, repeat: int) -> Iterator[JobsTurn]:
    """Yield the turns of a repeat without faults: each job alone, then all together, then all interleaved."""
    session = fabric.session
    jobs = fabric.planned.combined
    simulated = fabric.predictions.together.simulated
    for number, job in enumerate(jobs.jobs):
        interval = session.interval(alone_name(job.name), repeat)
        yield JobsTurn(fabric, jobs.alone(number), ALONE, interval, simulated.alone[number])
    for mode, prediction in fabric.predictions.by_mode.items():
        interval = session.interval(prediction.workload, repeat)
        simulated = prediction.simulated
        yield JobsTurn(fabric, simulated.combined, mode, interval, simulated.together)


def faulted_turn(fabric: JobsFabric, fault: FaultSpec, repeat: int, has_heartbeats: bool) -> JobsTurn:
    """Return the turn in which a fault is injected and repaired while all jobs run.

    `has_heartbeats`: GPUs send heartbeats, by which the controller detects faults that keep their carrier.
    """
    session = fabric.session
    # a fault is a script of its own, so that its rows differ from those of the jobs without it
    interval = replace(session.interval(ALL_JOBS, repeat), script="job faults", part=fault.label)
    simulated = fabric.predictions.together.simulated
    prediction = predicted_with_fault(simulated, fault, session.plan, has_heartbeats)
    return JobsTurn(fabric, fabric.planned.combined, fault.label, interval, prediction.run, prediction)
