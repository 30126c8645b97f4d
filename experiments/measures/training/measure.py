"""Trainings of real programs at the GPUs of a fabric, which faults interrupt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from railyard.core.errors import RailyardError
from railyard.core.host import Machine
from railyard.core.units import format_time
from railyard.experiments.measures.definition import MEASURES, Counts, Measure, RunContext
from railyard.experiments.measures.training.spec import Trainings, TrainingSpec, check_trainings
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.topologies.fabric_kinds import FabricPlan

if TYPE_CHECKING:
    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.measured import Check
    from railyard.results.views.report import Section


@MEASURES.register("training")
class Training(Measure[TrainingSpec]):
    """Real programs train at the GPUs of a fabric, and faults interrupt them."""

    order = 45
    key = "trainings"
    Spec = Trainings
    repeats_key = "training_repeats"
    short_keys = frozenset({"program", "steps", "deadline"})
    injects_faults = True
    needs_all_paths = True

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check GPUs, targets and programs."""
        check_trainings(self.items(spec), plans)

    def missing_requirements(self, spec: ExperimentSpec, machine: Machine) -> Iterator[RailyardError]:
        """Yield what programs need: PyTorch, Open MPI."""
        for training in self.items(spec):
            if error := training.definition.missing_requirement():
                yield error

    def steps(self, spec: ExperimentSpec) -> int:
        """Return the number of fabrics that are built, and of trainings with and without faults."""
        steps = 0
        for _, trainings in self.items_by_fabric(spec):
            # the fabric is built once
            steps += 1
            for training in trainings:
                # without a fault, then with each
                steps += 1 + len(training.faults) * self.repeats(spec)
        return steps * len(spec.reroute)

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return the number of faults."""
        faults = 0
        for _, trainings in self.items_by_fabric(spec):
            for training in trainings:
                faults += len(training.faults)
        return Counts(faults=faults * self.repeats(spec) * len(spec.reroute))

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print for each fabric with trainings the program, its ranks, and the faults."""
        for number, trainings in self.items_by_fabric(spec):
            label = spec.labels[number]
            plan = nominal_plan(spec.gpu_fabrics[number])
            titles = ("program", "ranks at", "steps", "fault", "after", "for", "times")
            table = plain_table(*titles, right=("steps", "times"))
            for training in trainings:
                gpus = ", ".join(training.gpus_on(plan))
                table.add_row(training.program, gpus, str(training.steps), "none", "", "", "1")
                for fault in training.faults:
                    times = (format_time(fault.at), format_time(fault.repair), str(self.repeats(spec)))
                    table.add_row("", "", "", fault.fault.name, *times)
            console.print(f"[bold]trainings[/] on {label}, reroute {' and '.join(spec.reroute)}", highlight=False)
            console.print(table, "")

    def run(self, context: RunContext) -> None:
        """Train without a fault, then with each."""
        from railyard.experiments.measures.training.run import run_trainings

        run_trainings(context, self)

    def checks(self, analysis: "Analysis") -> "Iterable[Check]":
        """Check that programs ended their training after each fault, with the weights of one without."""
        from railyard.experiments.measures.training.checks import checks

        return checks(analysis.run)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its section of the report."""
        from railyard.experiments.measures.training.section import TrainingSection

        return {"training": TrainingSection}
