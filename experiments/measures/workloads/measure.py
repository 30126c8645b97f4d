"""Workloads of an experiment on fabrics of GPUs: traffic that is replayed, and set beside its prediction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from railyard.experiments.measures.definition import MEASURES, Counts, Measure, SharedFabric, SpecSection
from railyard.experiments.measures.workloads.records import WAITS
from railyard.experiments.measures.workloads.spec import WorkloadItems, short_keys, workloads_of
from railyard.experiments.measures.workloads.variants import variants_of
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.fabric_kinds import FabricPlan

if TYPE_CHECKING:
    from railyard.experiments.predict.output import Predicted
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.measured import Check
    from railyard.results.runs.records import Run
    from railyard.results.views.report import Section
    from railyard.results.views.tracks import Track


@MEASURES.register("workloads")
class Workloads(Measure[Any]):
    """Traffic of training jobs and collectives is replayed, measured and set beside its prediction."""

    key = "workloads"
    Spec = WorkloadItems
    order = 10
    spans_machines = True
    shares_fabric = True
    hidden_sources = frozenset({"workload"})
    fact_keys = ("workloads",)
    records = (WAITS,)

    @property
    def spec_sections(self) -> tuple[SpecSection, ...]:
        """Its section, whose items run on all fabrics: few of them have the key `on`."""
        return (SpecSection(self.key, self.Spec, has_items=False),)

    def short_keys_by_section(self) -> dict[str, frozenset[str]]:
        """Return the keys of workloads that `-o` may give without their section."""
        return {self.key: short_keys(self.fabric_spec)}

    def items(self, spec: ExperimentSpec) -> tuple[Any, ...]:
        """Return the workloads, if the fabrics are of GPUs."""
        return workloads_of(spec) if spec.gpu_fabrics else ()

    def repeats(self, spec: ExperimentSpec) -> int:
        """Return how often each workload runs."""
        return spec.repeats

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check that each workload makes a schedule on each fabric."""
        from railyard.experiments.measures.workloads.input_check import check_workloads

        check_workloads(spec)

    def steps(self, spec: ExperimentSpec) -> int:
        """Return the number of replays."""
        replays = 0
        for fabric in spec.gpu_fabrics:
            replays += len(workloads_of(spec)) * len(variants_of(spec).variants(spec, fabric)) * spec.repeats
        return replays

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return the number of replays."""
        return Counts(replays=self.steps(spec))

    def seconds(self, spec: ExperimentSpec) -> float | None:
        """Return how long all replays take; None if their times follow from bytes."""
        from railyard.experiments.measures.workloads.duration import seconds

        return seconds(spec)

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print the schedule of each workload on each fabric."""
        from railyard.experiments.measures.workloads.dry_run import print_schedules

        print_schedules(spec, console)

    def predict(self, spec: ExperimentSpec) -> "Predicted":
        """Compute the times of all workloads: by the papers' equations, unless they run in variants."""
        return variants_of(spec).predict_workloads(spec)

    def run_on(self, shared: SharedFabric) -> None:
        """Run all workloads on the first fabric, before anything is broken."""
        from railyard.experiments.measures.workloads.run import run_workloads

        if shared.is_first:
            context = shared.context
            run_workloads(shared.session, context.spec, context.run, context.steps)

    def checks(self, analysis: "Analysis") -> "Iterable[Check]":
        """Check that every byte was delivered, and that dense training stayed within its rails."""
        from railyard.experiments.measures.workloads.checks import checks

        return checks(analysis.run)

    def add_tracks(self, root: "Track", run: "Run") -> None:
        """Add each replay to the timeline."""
        from railyard.experiments.measures.workloads.tracks import add_tracks

        add_tracks(root, run)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its sections of the report."""
        from railyard.experiments.measures.workloads.report.section import WorkloadsSection
        from railyard.experiments.measures.workloads.report.uplinks_section import UplinksSection

        return {"workloads": WorkloadsSection, "uplinks": UplinksSection}
