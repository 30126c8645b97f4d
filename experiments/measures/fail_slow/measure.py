"""GPUs and links that get slow under a running job, and whether a detector names them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from railyard.experiments.measures.definition import MEASURES, Measure, RunContext
from railyard.experiments.measures.fail_slow.records import ITERATION_TIMES, SLOW_CASES
from railyard.experiments.measures.fail_slow.spec import FailSlowItems, FailSlowSpec, place_of
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.fabric_kinds import FabricPlan

if TYPE_CHECKING:
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.analysis.targets import Outcome
    from railyard.results.views.report import Section

VALIDATION_S = 8.0
"""Seconds of a validation: a few short replays."""


@MEASURES.register("fail-slow")
class FailSlow(Measure[FailSlowSpec]):
    """A GPU or a link gets slow under a running job, and a detector names it."""

    order = 30
    key = "fail_slow"
    Spec = FailSlowItems
    repeats_key = "fail_slow_repeats"
    needs_all_paths = True
    records = (SLOW_CASES, ITERATION_TIMES)
    short_keys = frozenset({"part", "ratio", "detector"})
    sentences: ClassVar[Mapping[str, Sequence[str]]] = {
        "fail-slow-diagnosed": ["the detector named {named}; slow: {slow}"]
    }

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check targets, and that each job makes a schedule on its fabrics."""
        from railyard.experiments.measures.fail_slow.input_check import check_items

        check_items(spec, self.items(spec), plans)

    def seconds(self, spec: ExperimentSpec) -> float:
        """Return how long all jobs and validations take."""
        from railyard.experiments.spec.duration import slowed_s, stated_duration_s

        total_s = 0.0
        for _, items in self.items_by_fabric(spec):
            for item in items:
                iteration_s = stated_duration_s(item.workload)
                slow_s = slowed_s(iteration_s, item.mean_ratio)
                healthy = item.mean_healthy_iterations
                total_s += VALIDATION_S + healthy * iteration_s + (item.iterations - healthy) * slow_s
        return total_s * self.repeats(spec)

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print for each fabric what gets slow in which job."""
        for number, items in self.items_by_fabric(spec):
            table = plain_table("slow", "target", "times", "iterations", "workload", "detector", right=("iterations",))
            for item in items:
                times = "drawn"
                if item.ratio is not None:
                    times = f"{item.ratio:g}"
                names = (item.workload.result_name, item.detector)
                table.add_row(item.part, item.target or "drawn", times, str(item.iterations), *names)
            console.print(f"[bold]{self.key}[/] on {spec.labels[number]}, {self.repeats(spec)} times", highlight=False)
            console.print(table, "")

    def item_label(self, item: FailSlowSpec) -> str:
        """Return what gets slow."""
        return " ".join(filter(None, (item.part, item.target)))

    def run(self, context: RunContext) -> None:
        """Run each job, with something slow from an iteration on."""
        from railyard.experiments.measures.fail_slow.run import measure_case
        from railyard.experiments.run.items import run_items

        def measure(session: Any, item: FailSlowSpec, interval: Any, run: Any) -> None:
            place = place_of(item, self.items(context.spec))
            measure_case(item, place, session, interval, run, context.spec.seed)

        run_items(context, self, measure)

    def targets(self, analysis: "Analysis") -> "Iterable[Outcome]":
        """Return the targets of what is named, and of false alarms."""
        from railyard.experiments.measures.fail_slow.analysis import target_outcomes

        return target_outcomes(analysis)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its section of the report."""
        from railyard.experiments.measures.fail_slow.section import FailSlowSection

        return {"fail-slow": FailSlowSection}
