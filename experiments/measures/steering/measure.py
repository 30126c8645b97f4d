"""Policies that steer routes by health scores: workloads run under each policy and in each scene."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.host import Machine
from railyard.experiments.measures.definition import MEASURES, Counts, Measure, RunContext, SpecSection
from railyard.experiments.measures.steering.records import CHOICES, HEALTH
from railyard.experiments.measures.steering.spec import Background, RoutingSpec, background_of, grid_of, routing_of
from railyard.experiments.measures.workloads.turn import Turn, Variant
from railyard.experiments.measures.workloads.variants import Measurer, WorkloadVariants
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BackgroundSpec, GridSpec

if TYPE_CHECKING:
    from railyard.experiments.predict.output import Predicted
    from railyard.experiments.run.session import FabricSession
    from railyard.results.analysis.findings import Finding
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.measured import Check
    from railyard.results.runs.records import Run
    from railyard.results.views.report import Section
    from railyard.results.views.tracks import Track


NEEDS_ROUTING: Final = "is for experiments with routing: add {policies: [dr]}"


@dataclass(frozen=True)
class SteeredVariant(Variant):
    """A policy, and the background of a scene."""

    background: tuple[BackgroundSpec, ...] = ()


@MEASURES.register("steering")
class Steering(WorkloadVariants, Measure[Any]):
    """Policies steer routes by health scores while workloads run, beside a background load.

    Workloads run for each policy of `routing`, beside the `background` or in each scene of `grid`. Repeat n has
    seed + n.
    """

    key = "routing"
    Spec = RoutingSpec | None
    dependent_keys = MappingProxyType(dict.fromkeys(("background", "grid"), NEEDS_ROUTING))
    order = 15
    records = (HEALTH, CHOICES)
    hidden_sources = frozenset({"steering"})
    sampled_events = frozenset({"health", "choice"})

    @property
    def spec_sections(self) -> tuple[SpecSection, ...]:
        """Its sections: the policies, and the background that they steer around, or scenes with one each."""
        return (
            SpecSection(self.key, self.Spec, has_items=False, default=None),
            SpecSection("background", Background, has_items=False, hides_defaults=True),
            SpecSection("grid", GridSpec | None, has_items=False, default=None),
        )

    def items(self, spec: ExperimentSpec) -> tuple[Any, ...]:
        """Return the section, if there is one."""
        routing = routing_of(spec)
        return (routing,) if routing else ()

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check that it has workloads to steer and no faults, and that the background fits the fabrics."""
        from railyard.experiments.measures.steering.input_check import check_routing

        check_routing(spec)

    def missing_requirements(self, spec: ExperimentSpec, machine: Machine) -> Iterator[RailyardError]:
        """Yield the lack of etcd, if health scores are kept in a registry of that kind."""
        from railyard.core.installation import INSTALL

        if self._routing(spec).health.registry == "etcd" and not machine.programs.get("etcd"):
            yield MissingRequirement("this machine lacks etcd, for the registry", INSTALL)

    def steps(self, spec: ExperimentSpec) -> int:
        """Return 0: the steps are those of workloads."""
        return 0

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return nothing: the replays are those of workloads."""
        return Counts()

    def seconds(self, spec: ExperimentSpec) -> float:
        """Return 0: the time is that of workloads."""
        return 0.0

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print for each workload on each fabric its background, its scores and each policy's first paths."""
        from railyard.experiments.measures.steering.dry_run import print_first_routes

        print_first_routes(spec, console)

    def run(self, context: RunContext) -> None:
        """Do nothing: the measure of workloads runs them in these variants."""

    def variants(self, spec: ExperimentSpec, fabric: FabricSpec) -> list[Variant]:
        """Return each policy in each scene, all policies of a scene in turn."""
        routing = self._routing(spec)
        scenes = {"": background_of(spec)}
        grid = grid_of(spec)
        if grid:
            scenes = {scene.name: scene.background(fabric) for scene in grid.on(fabric).scenes}
        variants: list[Variant] = []
        for scene, background in scenes.items():
            variants += [SteeredVariant(scene, policy, background) for policy in routing.policies]
        return variants

    def seed(self, spec: ExperimentSpec, repeat: int) -> int:
        """Return a seed for each repeat: traffic that is drawn at random differs."""
        # all policies of a repeat have the same traffic, and repeats show how much it matters which
        return spec.seed + repeat

    @contextmanager
    def measuring(self, session: "FabricSession", spec: ExperimentSpec) -> Iterator[Measurer]:
        """Compute health scores and run the agents of all GPUs, and yield what replays a workload under a policy."""
        from railyard.experiments.measures.steering.run import RouteAgents, SteeredTurn, route_agents

        routing = self._routing(spec)

        def measure(agents: RouteAgents, turn: Turn) -> None:
            assert isinstance(turn.variant, SteeredVariant)
            SteeredTurn(turn, turn.variant.background, routing).measure(agents)

        with route_agents(session, routing) as agents:
            yield partial(measure, agents)

    def predict_workloads(self, spec: ExperimentSpec) -> "Predicted":
        """Compute the time of each workload under each policy, by max-min fair shares."""
        from railyard.experiments.measures.steering.predict import predict

        return predict(spec)

    def seconds_of_repeat(self, spec: ExperimentSpec, stated_s: float) -> float:
        """Return how long all policies and scenes take, which about half of the policies prolong by the background."""
        from railyard.experiments.measures.steering.duration import seconds_of_repeat

        return seconds_of_repeat(spec, self._routing(spec), stated_s)

    def _routing(self, spec: ExperimentSpec) -> RoutingSpec:
        """Return the section of an experiment that has one."""
        routing = routing_of(spec)
        assert routing is not None
        return routing

    def policies_in_turn(self, run: "Run") -> tuple[str, ...]:
        """Return the policies of a run that was steered."""
        from railyard.experiments.measures.steering.recorded import recorded_policies

        return recorded_policies(run)

    def findings(self, run: "Run") -> "Iterator[Finding]":
        """Yield how much of the background of each interval was not sent."""
        from railyard.experiments.measures.steering.findings import findings

        return findings(run)

    def checks(self, analysis: "Analysis") -> "Iterable[Check]":
        """Check that no pair changed its paths more often than its dwell time allows."""
        from railyard.experiments.measures.steering.checks import checks

        return checks(analysis)

    def add_tracks(self, root: "Track", run: "Run") -> None:
        """Add the paths of pairs, h-scores and loads to the timeline."""
        from railyard.experiments.measures.steering.tracks import add_tracks

        add_tracks(root, run)

    def page_messages(self, run: "Run", fabric_label: str) -> "Iterator[tuple[str, dict[str, Any]]]":
        """Yield the health scores of a fabric."""
        from railyard.experiments.measures.steering.tracks import page_messages

        return page_messages(run, fabric_label)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its sections of the report."""
        from railyard.experiments.measures.steering.comparison_section import ComparisonSection
        from railyard.experiments.measures.steering.policies_section import PoliciesSection

        return {"comparison": ComparisonSection, "policies": PoliciesSection}
