"""Predictions of the jobs of a fabric, in each mode in which they run: simulations, and means with intervals.

Jobs run alone, together, interleaved, and together while a fault is injected and repaired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from railyard.experiments.measures.jobs.interleaving import busiest_shared_port
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.planning import PlannedJobs
from railyard.experiments.measures.jobs.records import ALONE, INTERLEAVED, TOGETHER
from railyard.experiments.measures.jobs.spec import faults_on
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import FaultSpec
from railyard.failure.faults import Impact
from railyard.failure.faults.link_gray import LinkGray
from railyard.failure.faults.link_slow import LinkSlow
from railyard.results.theory.fluid.faulted_jobs import Degradation, FaultedJob, jobs_apart_from, predict_faulted
from railyard.results.theory.fluid.jobs import JobsPrediction, predict_jobs
from railyard.results.theory.fluid.outage import DeadParts, dead_parts
from railyard.results.theory.fluid.routes import Port
from railyard.results.theory.fluid.shift import Interleaving, best_interleaving
from railyard.results.theory.fluid.simulation import Conditions, FluidRun
from railyard.results.theory.fluid.spread import PredictedJob, Spread, predicted_spreads
from railyard.topologies.addresses import link_of_name
from railyard.topologies.fabric_kinds import Layer
from railyard.topologies.plan import Plan
from railyard.workloads.replay.job import windows_for_links

ALL_JOBS: Final = "all jobs"
"""The workload of intervals in which all jobs run together."""
ALL_INTERLEAVED: Final = "all jobs interleaved"
NO_ROUTE: Final = "no route"
"""Why a job has no prediction: the policy leaves it no path while the fault lasts."""


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
    conditions = Conditions(windows=windows_for_links(plan.hb_bps, plan.rail_bps, plan.spec.mtu))
    if not is_interleaved:
        simulated = predict_jobs(planned.combined, rates, plan.spec, conditions)
        return Predictions(_mode(ALL_JOBS, simulated, plan))
    interleaving = best_interleaving(planned.combined, rates, plan.spec, conditions)
    together = _mode(ALL_JOBS, interleaving.before, plan)
    return Predictions(together, _mode(ALL_INTERLEAVED, interleaving.after, plan), interleaving)


def _mode(workload: str, simulated: JobsPrediction, plan: Plan) -> ModePrediction:
    return ModePrediction(workload, simulated, predicted_spreads(simulated, rates_of(plan), plan.spec))


def alone_name(job: str) -> str:
    """Return the workload of intervals in which a job runs without the others."""
    return f"{job} {ALONE}"


@dataclass(frozen=True)
class FaultPrediction:
    """Prediction of jobs and a fault. `jobs`: those that have one, by name. `reason`: why the others have none.

    `run`: a simulation of all jobs with the fault at its times; None without one prediction for all hashes.
    `is_rerouted`: packets take detours meanwhile, which are there later than predicted.
    """

    reason: str = ""
    jobs: Mapping[str, FaultedJob] = field(default_factory=dict)
    run: FluidRun | None = None
    is_rerouted: bool = False

    def reason_of(self, job: str) -> str:
        """Return why a job has no prediction; "" if it has one."""
        if job not in self.jobs:
            return self.reason
        return "" if self.jobs[job].has_path else NO_ROUTE


def predicted_with_fault(
    prediction: JobsPrediction, fault: FaultSpec, plan: Plan, has_heartbeats: bool
) -> FaultPrediction:
    """Predict by how much a fault slows jobs, by max-min fair shares of the links on their routes meanwhile.

    `has_heartbeats`: GPUs send heartbeats, by which the controller detects faults that keep their carrier.
    """
    impact = fault.fault.impact(plan)
    rates = rates_of(plan)
    definition = fault.fault.definition
    reason = _unpredicted_reason(fault, impact, has_heartbeats)
    if reason and isinstance(definition, LinkGray):
        lossy_ports = _link_ports(fault.target, definition.layer, plan)
        jobs_apart = jobs_apart_from(lossy_ports, prediction, rates, plan.spec)
        return FaultPrediction(reason, {job.name: job for job in jobs_apart})
    if reason:
        return FaultPrediction(reason)
    dead = dead_parts(impact, plan)
    slow_ports: dict[Port, float] = {}
    if isinstance(definition, LinkSlow) and isinstance(fault.parameters, LinkSlow.Parameters):
        slow_ports = dict.fromkeys(_link_ports(fault.target, definition.layer, plan), fault.parameters.rate)
    degradation = Degradation(dead, slow_ports)
    end_s = fault.at + fault.repair
    faulted = predict_faulted(prediction, degradation, fault.at, end_s, rates, plan.spec)
    jobs = {job.name: job for job in faulted.jobs}
    return FaultPrediction(jobs=jobs, run=faulted.run, is_rerouted=dead is not None)


def _unpredicted_reason(fault: FaultSpec, impact: Impact, has_heartbeats: bool) -> str:
    """Return why the jobs beside a fault can't be predicted; "" if they can."""
    definition = fault.fault.definition
    # TCP on a lossy link has no fair share: its rate follows from when it detects each loss
    if impact.lossy or definition.loses_packets_throughout:
        return "packets are lost"
    if definition.is_intermittent:
        return "comes and goes"
    if impact.slowed and not isinstance(definition, LinkSlow):
        return "no model"
    if definition.keeps_forwarding("system") != definition.keeps_forwarding("netdev"):
        return "depends on the datapath"
    if (impact.nodes or impact.cables) and not has_heartbeats:
        return "no heartbeats"
    return ""


def outages_of(spec: ExperimentSpec, fabric: int, plan: Plan) -> list[DeadParts]:
    """Return the dead parts of each fault of a fabric that leaves any. `fabric`: its number."""
    outages: list[DeadParts] = []
    for fault in faults_on(spec, fabric):
        dead = dead_parts(fault.fault.impact(plan), plan)
        if dead is not None:
            outages.append(dead)
    return outages


def _link_ports(target: str, layer: Layer, plan: Plan) -> list[Port]:
    """Return both directions of a link of a GPU or a NIC, by its name."""
    node = target
    plane = 0
    if target not in plan.nics:
        gpu, plane = link_of_name(target)
        node = gpu.name
    return [Port(node, layer, is_out, plane=plane) for is_out in (True, False)]
