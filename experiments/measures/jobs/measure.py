"""Several jobs on one fabric: each alone on its GPUs, then all together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from railyard.core.units import format_size
from railyard.experiments.measures.definition import MEASURES, Counts, Measure, RunContext, SpecSection
from railyard.experiments.measures.jobs.records import (
    JOB_BURSTS,
    JOB_ITERATIONS,
    JOB_LINKS,
    JOB_PORTS,
    JOB_RUNS,
    JOB_SHIFTS,
    JOB_SLOWDOWN,
    LINK_SHARING,
)
from railyard.experiments.measures.jobs.spec import (
    Arrivals,
    JobFaults,
    Jobs,
    JobSpec,
    faults_on,
    is_interleaved,
    starts_of,
)
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results import format as fmt
from railyard.topologies.fabric_kinds import FabricPlan

if TYPE_CHECKING:
    import pandas as pd

    from railyard.experiments.predict.output import Predicted
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.analysis.targets import Outcome
    from railyard.results.measured import Check, RecordKind
    from railyard.results.runs.records import Run
    from railyard.results.views.report import Section
    from railyard.results.views.table import Table

FABRIC_S = 4.0
"""Seconds to build a fabric, and to check its links."""


@MEASURES.register("jobs")
class JobsMeasure(Measure[JobSpec]):
    """Several jobs share a fabric: their placement, and how much they slow each other down."""

    order = 35
    key = "jobs"
    Spec = Jobs
    repeats_key = "job_repeats"
    # faults beside jobs are rerouted by Railyard's own controller
    excludes = frozenset({"controller"})
    needs_all_paths = True
    short_keys = frozenset({"placement", "iterations"})
    dependent_keys: ClassVar[Mapping[str, str]] = {
        "arrivals": "has no effect without jobs",
        "job_faults": "has no effect without jobs",
        "interleaving": "has no effect without jobs",
    }
    sentences: ClassVar[Mapping[str, Sequence[str]]] = {
        "jobs-started": ["{workload} started"],
        "jobs-finished": ["{workload} finished"],
    }
    records = (JOB_RUNS, JOB_ITERATIONS, JOB_LINKS, JOB_PORTS, LINK_SHARING, JOB_SHIFTS, JOB_BURSTS)
    hidden_sources = frozenset({"jobs"})
    fact_keys = ("jobs",)

    @property
    def spec_sections(self) -> tuple[SpecSection, ...]:
        """Its jobs, when they begin, faults meanwhile, and whether they are interleaved."""
        arrivals = SpecSection("arrivals", Arrivals, has_items=False, default=None)
        faults = SpecSection("job_faults", JobFaults, has_items=False)
        interleaving = SpecSection("interleaving", bool | None, has_items=False, default=None)
        return (SpecSection(self.key, self.Spec, self.repeats_key), arrivals, faults, interleaving)

    def items(self, spec: ExperimentSpec) -> tuple[JobSpec, ...]:
        """Return the jobs."""
        jobs: tuple[JobSpec, ...] = getattr(spec, self.key, ())
        return jobs

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check that each job has a place on its fabrics."""
        from railyard.experiments.measures.jobs.planning import check_jobs

        check_jobs(spec)

    def steps(self, spec: ExperimentSpec) -> int:
        """Return the number of fabrics that are built, and of replays."""
        steps = 0
        for number, jobs in self.items_by_fabric(spec):
            steps += 1 + self._replays(spec, number, len(jobs))
        return steps

    def _replays(self, spec: ExperimentSpec, fabric: int, job_count: int) -> int:
        """Return how many replays a fabric with so many jobs has: each job alone, and those of all together."""
        return (job_count + self._replays_of_all(spec, fabric)) * self.repeats(spec)

    def _replays_of_all(self, spec: ExperimentSpec, fabric: int) -> int:
        """Return how many replays of all jobs a repeat has: together, with each fault, and interleaved."""
        return 1 + len(faults_on(spec, fabric)) + is_interleaved(spec)

    def seconds(self, spec: ExperimentSpec) -> float:
        """Return about how long all replays take."""
        from railyard.experiments.spec.duration import INTERVAL_S, slowest_factor, stated_duration_s

        total_s = 0.0
        for number, jobs in self.items_by_fabric(spec):
            alone_s = 0.0
            together_s = 0.0
            for job, start_s in zip(jobs, starts_of(spec, jobs), strict=True):
                compute_s = (job.compute or 0.0) * slowest_factor(job.workload)
                job_s = job.iterations * (compute_s + stated_duration_s(job.workload))
                alone_s += job_s
                together_s = max(together_s, start_s + job_s)
            all_s = together_s * self._replays_of_all(spec, number)
            total_s += FABRIC_S + self.repeats(spec) * (alone_s + all_s)
            total_s += self._replays(spec, number, len(jobs)) * INTERVAL_S
        return total_s

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return the number of replays."""
        replays = 0
        faults = 0
        for number, jobs in self.items_by_fabric(spec):
            replays += self._replays(spec, number, len(jobs))
            faults += len(faults_on(spec, number)) * self.repeats(spec)
        return Counts(replays=replays, faults=faults)

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print for each fabric the start of each job, what an iteration of it sends, and its GPUs."""
        from railyard.experiments.measures.jobs.planning import planned_jobs

        for number, _ in self.items_by_fabric(spec):
            plan = nominal_plan(spec.gpu_fabrics[number])
            titles = ("job", "workload", "placement", "start", "iterations", "bytes each")
            table = plain_table(*titles, right=titles[3:])
            # a large job has more GPUs than a row beside the rest of it has room for
            gpus_table = plain_table("job", "GPUs")
            planned = planned_jobs(spec, number, plan)
            for item, job in zip(planned.items, planned.combined.jobs, strict=True):
                sent = format_size(sum(job.schedule.matrix.values()))
                times = (fmt.seconds(round(job.start_s, 3)), str(job.iterations), sent)
                table.add_row(job.name, item.workload.result_name, item.placement_text, *times)
                gpus_table.add_row(job.name, " ".join(plan.gpus[gpu].name for gpu in job.gpus))
            console.print(f"[bold]jobs[/] on {spec.labels[number]}, times {self.repeats(spec)}", highlight=False)
            console.print(table, "", gpus_table, "")

    def predict(self, spec: ExperimentSpec) -> "Predicted":
        """Compute iteration times and slow-downs by max-min fair shares."""
        from railyard.experiments.measures.jobs.predict import predict

        return predict(spec)

    def run(self, context: RunContext) -> None:
        """Run each job alone, then all together."""
        from railyard.experiments.measures.jobs.run import run_jobs

        run_jobs(context, self)

    def outcome_text(self, measured: "Run") -> str:
        """Return the slow-downs of the jobs of a step."""
        texts: list[str] = []
        for row in measured.measurements:
            if row.metric == JOB_SLOWDOWN:
                texts.append(f"{row.phase} slow-down {row.value:.3f}")
        return ", ".join(texts)

    def checks(self, analysis: "Analysis") -> "Iterable[Check]":
        """Check that every byte of every job was delivered, and that ports counted what routes say."""
        from railyard.experiments.measures.jobs.checks import checks

        return checks(analysis.run)

    def targets(self, analysis: "Analysis") -> "Iterable[Outcome]":
        """Return the target of how far slow-downs may be off their predictions."""
        from railyard.experiments.measures.jobs.analysis import target_outcomes

        return target_outcomes(analysis)

    def page_messages(self, run: "Run", fabric_label: str) -> "Iterator[tuple[str, dict[str, Any]]]":
        """Yield which jobs ran on a fabric from when on."""
        from railyard.experiments.measures.jobs.live_page import page_messages

        return page_messages(run, fabric_label)

    def sweep_table(self, kind: "RecordKind[Any]", rows: "pd.DataFrame", axes: Sequence[str]) -> "Table | None":
        """Return the order of placements, measured and predicted, in all runs of a sweep."""
        from railyard.experiments.measures.jobs.sweep_table import placements_table

        return placements_table(rows, axes)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its sections of the report."""
        from railyard.experiments.measures.jobs.interleaving_section import InterleavingSection
        from railyard.experiments.measures.jobs.section import JobsSection

        return {"jobs": JobsSection, "interleaving": InterleavingSection}
