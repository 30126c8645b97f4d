"""Allreduces over several rails of multi-rail fabrics, which faults of rails interrupt; there are no HB domains."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from railyard.experiments.measures.allreduce.records import RAILS
from railyard.experiments.measures.allreduce.spec import (
    RailFaultSpec,
    check_items,
    dilations_on,
    faults_of,
    faults_on,
    rail_fabrics,
    workloads_on,
)
from railyard.experiments.measures.definition import MEASURES, Counts, Measure, RunContext
from railyard.experiments.measures.workloads.spec import short_keys, workloads_of
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import fault_keys
from railyard.topologies.fabric_kinds import FabricPlan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.workload import RailWorkload

if TYPE_CHECKING:
    from railyard.core.records import IntervalId
    from railyard.experiments.predict.output import Predicted
    from railyard.results.analysis.findings import Finding
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.analysis.targets import Outcome
    from railyard.results.measured import Check
    from railyard.results.runs.records import Run
    from railyard.results.views.report import Section


@MEASURES.register("allreduce")
class AllreduceMeasure(Measure[Any]):
    """Allreduces over several rails, in sizes and in trainings, and faults of rails meanwhile."""

    order = 25
    shared_items = MappingProxyType({"workloads": None, "faults": RailFaultSpec})
    fabric_spec = MultirailSpec
    records = (RAILS,)
    shows_targets = True

    def short_keys_by_section(self) -> dict[str, frozenset[str]]:
        """Return the keys that `-o` may give without their section: those that both have are of workloads."""
        of_workloads = short_keys(self.fabric_spec)
        return {"workloads": of_workloads, "faults": fault_keys(RailFaultSpec) - of_workloads}

    def items(self, spec: ExperimentSpec) -> tuple[RailWorkload | RailFaultSpec, ...]:
        """Return all workloads and faults, if the fabrics are multi-rail."""
        workloads = [workload for workload in workloads_of(spec) if isinstance(workload, RailWorkload)]
        return *workloads, *faults_of(spec)

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check faults and workloads, and that no two workloads record the same interval."""
        check_items(spec)

    def steps(self, spec: ExperimentSpec) -> int:
        """Return the number of builds, of the steps that workloads count, and of faults."""
        steps = 0
        for number, fabric in enumerate(rail_fabrics(spec)):
            steps += len(dilations_on(spec, number))
            for workload in workloads_on(spec, number):
                steps += workload.step_count(number, fabric, spec.repeats)
        return steps + self._fault_runs(spec)

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return the number of workloads and faults on all fabrics, with repeats."""
        workloads = 0
        for number in range(len(rail_fabrics(spec))):
            workloads += len(workloads_on(spec, number))
        return Counts(replays=workloads * spec.repeats, faults=self._fault_runs(spec))

    def _fault_runs(self, spec: ExperimentSpec) -> int:
        """Return how often a fault is injected."""
        runs = 0
        for number in range(len(rail_fabrics(spec))):
            for fault in faults_on(spec, number):
                runs += fault.times(spec)
        return runs

    def predict(self, spec: ExperimentSpec) -> "Predicted":
        """Compute the times of workloads by Nezha's equations."""
        from railyard.experiments.measures.allreduce.predict import predict

        return predict(spec)

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print what would be sent, and over which rails."""
        from railyard.experiments.measures.allreduce.dry_run import print_items

        print_items(spec, console)

    def run(self, context: RunContext) -> None:
        """Measure all workloads, then all faults, on fabrics that are built for each dilation."""
        from railyard.experiments.measures.allreduce.run import run_allreduces

        run_allreduces(context)

    def fabric_labels(self, run: "Run") -> "Iterable[str]":
        """Return the labels of the multi-rail fabrics of a run."""
        return [rails.label for rails in run.rows(RAILS)]

    def findings(self, run: "Run") -> "Iterator[Finding]":
        """Yield rails that were lost though no fault was injected."""
        from railyard.experiments.measures.allreduce.checks import lost_rails_findings

        return lost_rails_findings(run)

    def watched_interval(self, interval: "IntervalId") -> "IntervalId":
        """Return the interval that has the record of the machine's load: of Gloo's training, that of the DDP run."""
        from railyard.experiments.measures.allreduce.records import watched_interval

        return watched_interval(interval)

    def checks(self, analysis: "Analysis") -> "Iterable[Check]":
        """Check that no policy broke down."""
        from railyard.experiments.measures.allreduce.checks import checks

        return checks(analysis)

    def targets(self, analysis: "Analysis") -> "Iterable[Outcome]":
        """Return the performance targets, measured or not; none for a run without allreduces."""
        from railyard.experiments.measures.allreduce.targets import performance

        return analysis.derived(performance)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its section of the report."""
        from railyard.experiments.measures.allreduce.section import AllreduceSection

        return {"multirail": AllreduceSection}
