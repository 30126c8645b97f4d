"""GPUs and HB domains that fail for good under a running job, and their replacement by spares."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from railyard.core.units import format_size, format_time
from railyard.experiments.measures.definition import MEASURES, Counts, Measure, RunContext
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.experiments.measures.replacement.spec import Replacements, ReplacementSpec, with_spares
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.topologies.fabric_kinds import FabricPlan

if TYPE_CHECKING:
    from railyard.core.records import IntervalId
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.analysis.targets import Outcome
    from railyard.results.views.report import Section
    from railyard.topologies.capacity import Capacity
    from railyard.topologies.plan import Plan

REPLACEMENT_S = 8.0
"""Seconds to build a fabric with spares, to replace what fails, and to restore the state."""


@MEASURES.register("replacement")
class ReplacementMeasure(Measure[ReplacementSpec]):
    """GPUs and HB domains fail for good under a running job, and spares replace them."""

    order = 40
    key = "replacements"
    Spec = Replacements
    repeats_key = "replacement_repeats"
    # spares take over by routes and cross-connects of Railyard's own controller
    excludes = frozenset({"controller"})
    needs_all_paths = True
    records = (REPLACEMENTS,)
    has_recovery_targets = True
    short_keys = frozenset(ReplacementSpec.model_fields) - {"on"}

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check that every replacement can be on its fabrics."""
        from railyard.experiments.measures.replacement.job import check_replacements

        check_replacements(self.items(spec), spec.gpu_fabrics)

    def plans(self, spec: ExperimentSpec, capacity: "Capacity | None") -> "list[tuple[int, Plan]]":
        """Return the fabric with spares of every replacement."""
        from railyard.experiments.measures.replacement.planning import planned_replacements

        planned = planned_replacements(spec, self.items(spec), capacity)
        return [(replacement.fabric, replacement.plan) for replacement in planned]

    def steps(self, spec: ExperimentSpec) -> int:
        """Return the number of replacements, each of which builds a fabric."""
        return self.item_runs(spec)

    def seconds(self, spec: ExperimentSpec) -> float:
        """Return how long all replacements take, with their iterations before, during and after."""
        from railyard.experiments.spec.duration import stated_duration_s

        total_s = 0.0
        for _, replacements in self.items_by_fabric(spec):
            for replacement in replacements:
                iterations = 2 * replacement.iterations + 1
                total_s += REPLACEMENT_S + iterations * stated_duration_s(replacement.workload)
        return total_s * self.repeats(spec)

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return the number of replacements: each has a fault."""
        return Counts(faults=self.item_runs(spec))

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print for each fabric with replacements which GPUs take over, and the state that is sent to them."""
        from railyard.experiments.measures.replacement.job import replacement_job

        replacements = self.items(spec)
        for number, on_fabric in self.items_by_fabric(spec):
            fabric = spec.gpu_fabrics[number]
            titles = ("case", "way", "fails", "is replaced by", "on", "state of each", "from", "times")
            table = plain_table(*titles, right=("state of each", "times"))
            for replacement in on_fabric:
                field = f"{self.key}.{replacements.index(replacement)}"
                plan = nominal_plan(with_spares(replacement, fabric))
                job = replacement_job(replacement, fabric, plan, spec.seed, field)
                built = f"{plan.spec.domains} x {plan.spec.rails}"
                optical = plan.spec.optical
                if optical:
                    built += (
                        f", switching takes {format_time(optical.switching_time)} in {' and '.join(optical.layers)}"
                    )
                senders = ", ".join(plan.gpus[source].name for source, _ in sorted(job.state.matrix))
                state = (format_size(max(job.state.matrix.values())), senders, str(self.repeats(spec)))
                table.add_row(replacement.case, job.way, replacement.failed, job.replaced_by, built, *state)
            size = f"{fabric.domains} domains x {fabric.rails} rails"
            console.print(f"[bold]replacements[/] on {spec.labels[number]}, a job on {size}", highlight=False)
            console.print(table, "")

    def run(self, context: RunContext) -> None:
        """Replace what fails, each time on a fabric that is built for it."""
        from railyard.experiments.measures.replacement.run import run_replacements

        run_replacements(context, self)

    def has_fabric_of_its_own(self, interval: "IntervalId") -> bool:
        """Return whether an interval is a step of a replacement: its fabric has spares."""
        return bool(interval.script and interval.part)

    def targets(self, analysis: "Analysis") -> "Iterable[Outcome]":
        """Return the target of optical replacements by idle GPUs."""
        from railyard.experiments.measures.replacement.analysis import target_outcomes

        return target_outcomes(analysis)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its section of the report."""
        from railyard.experiments.measures.replacement.section import ReplacementSection

        return {"replacements": ReplacementSection}
