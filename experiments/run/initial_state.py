"""A steered workload before anything of it is sent: which scores there should be, and what each policy makes of them.

Pure. For `predict` and `dry-run`; a run does the same with scores that are measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from railyard.controller.agent.steering import Steering
from railyard.controller.health.oracle import Flow
from railyard.controller.health.policy import HEALTH_POLICIES, Scores
from railyard.experiments.predict import steered_times
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.routing import RoutingSpec
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import Workload, build


@dataclass(frozen=True)
class InitialState:
    """One workload on one fabric with one seed, beside a background."""

    plan: Plan
    routing: RoutingSpec
    workload: Workload
    background: tuple[BackgroundSpec, ...]
    seed: int

    @property
    def independent(self) -> bool:
        """True if no pair waits for another."""
        return self.workload.is_independent

    @cached_property
    def schedule(self) -> Schedule:
        """The workload's schedule."""
        plan = self.plan
        return build(self.workload, plan.spec, plan.rail_bps, plan.hb_bps, seed=self.seed)[0]

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """The flows that cross domains."""
        return steered_times.flows_in(self.schedule, self.plan.gpus)

    @cached_property
    def pattern(self) -> steered_times.Pattern:
        """The background over time."""
        return steered_times.Pattern(self.plan, self.background)

    @cached_property
    def scores(self) -> Scores:
        """Scores by the background alone, as it begins."""
        return steered_times.expected_scores(self.plan, self.pattern.flows(self.pattern.at(0.0)))

    def chosen(self, policy: str) -> dict[tuple[Gpu, Gpu], Shares]:
        """The paths of each pair once those scores have lasted."""
        steering = self._steering(policy)
        return {(f.src, f.dst): steered_times.settled_paths(steering, f.src, f.dst, self.scores) for f in self.flows}

    def completion_s(self, policy: str) -> float | None:
        """See `steered_times.completion_s`."""
        return steered_times.completion_s(self.pattern, self.flows, self._steering(policy))

    def _steering(self, policy: str) -> Steering:
        background = self.pattern.flows(self.pattern.at(0.0))
        assigned = (
            steered_times.oracle_paths(self.plan, self.flows, background) if HEALTH_POLICIES[policy].knows_load else {}
        )
        context = self.routing.context(self.plan.spec, self.seed, assigned)
        return self.routing.steering(policy, self.plan.spec, context)


def initial_states(spec: ExperimentSpec, seeds: int | None = None) -> Iterator[tuple[str, str, InitialState]]:
    """(fabric, workload, how it begins) for each of the first `seeds` (None: all) of each workload on each fabric.

    A scene of a grid makes a workload of its own. None if routes are not steered.
    """
    for label, fabric in zip(spec.labels, spec.fabrics, strict=True) if spec.routing else ():
        assert spec.routing is not None
        plan = nominal_plan(fabric)
        for workload_label, workload in zip(spec.workload_labels, spec.workloads, strict=True):
            for name, scene_background in _scenes(spec, workload_label, fabric):
                for repeat in range(spec.repeats if seeds is None else seeds):
                    yield label, name, InitialState(plan, spec.routing, workload, scene_background, spec.seed + repeat)


def _scenes(
    spec: ExperimentSpec, workload: str, fabric: FabricSpec
) -> Iterator[tuple[str, tuple[BackgroundSpec, ...]]]:
    """What the workload is called, and what is beside it."""
    if spec.grid is None:
        yield workload, spec.background
    for scene in spec.grid.scenes if spec.grid else ():
        yield scene.label(workload), scene.background(fabric)
