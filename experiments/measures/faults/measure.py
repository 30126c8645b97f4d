"""Faults that are injected alone, and failure scripts: how soon traffic recovers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.host import Machine
from railyard.core.units import format_time
from railyard.experiments.measures.definition import (
    MEASURES,
    Counts,
    Measure,
    SharedFabric,
    SpecSection,
    shared_reroutes,
)
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.spec import Faults, Scripts, ScriptSpec
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec, Reroute, nominal_plan
from railyard.experiments.spec.faults import FaultSpec, fault_dict, fault_keys
from railyard.topologies.fabric_kinds import FabricPlan

if TYPE_CHECKING:
    import pandas as pd

    from railyard.results.analysis.run_analysis import Analysis
    from railyard.results.analysis.targets import Outcome
    from railyard.results.measured import Check, ComparedValue, CrossedLinks, LinkTraffic, RecordKind
    from railyard.results.runs.records import Run
    from railyard.results.views.report import Section
    from railyard.results.views.table import Table
    from railyard.results.views.tracks import Track

SCRIPTS = "scripts"
"""The key of the section of failure scripts."""
AFTER_S = 1.2
"""Seconds of a fault's traffic after its repair: failure.analysis.evaluate.AFTER_S, a module that loads slowly."""
FAULT_S = 0.7
"""Seconds to start streams and probes, and to evaluate them."""
RANDOM_FAULT_S = 1.2
"""Seconds between two random faults if connectivity is checked in between."""


@MEASURES.register("faults")
class FaultsMeasure(Measure[FaultSpec | ScriptSpec]):
    """Faults that are injected alone, then failure scripts: how soon traffic recovers, and what is lost.

    Each fault runs `fault_repeats` times and each script `script_repeats` times, for each `reroute`. The random faults
    of repeat n are drawn from seed + n.
    """

    order = 20
    key = "faults"
    Spec = Faults
    repeats_key = "fault_repeats"
    excludes = frozenset({"routing"})
    spans_machines = True
    injects_faults = True
    has_recovery_targets = True
    records = (RECOVERIES, CONNECTIVITY_CHECKS, GOODPUT)
    shares_fabric = True
    fact_keys = ("faults",)

    @property
    def spec_sections(self) -> tuple[SpecSection, ...]:
        """Its sections `faults` and `scripts`."""
        of_faults = SpecSection(self.key, self.Spec, self.repeats_key)
        return of_faults, SpecSection(SCRIPTS, Scripts, "script_repeats")

    def short_keys_by_section(self) -> dict[str, frozenset[str]]:
        """Return the keys of both sections; a script's faults have the keys of faults, but `at=1s` means those."""
        of_scripts = frozenset(ScriptSpec.model_fields) - {"on", "repeats"}
        return {self.key: fault_keys(FaultSpec), SCRIPTS: of_scripts}

    def faults(self, spec: ExperimentSpec) -> tuple[FaultSpec, ...]:
        """Return the faults that are injected alone."""
        return tuple(item for item in self.items(spec) if isinstance(item, FaultSpec))

    def scripts(self, spec: ExperimentSpec) -> tuple[ScriptSpec, ...]:
        """Return the failure scripts."""
        return tuple(item for item in self.items(spec) if isinstance(item, ScriptSpec))

    def check(self, spec: ExperimentSpec, plans: Sequence[FabricPlan]) -> None:
        """Check targets, machines, and what runs beside scripts."""
        from railyard.experiments.measures.faults import validation

        validation.check(spec, self.faults(spec), self.scripts(spec), plans)

    def missing_requirements(self, spec: ExperimentSpec, machine: Machine) -> Iterator[RailyardError]:
        """Yield the lack of etcd, if a fault needs a registry of that kind."""
        from railyard.core.installation import INSTALL

        if any(item.registry == "etcd" for item in self.items(spec)) and not machine.programs.get("etcd"):
            yield MissingRequirement("this machine lacks etcd, for the registry", INSTALL)

    def reroutes(self, spec: ExperimentSpec, fabric: int) -> tuple[Reroute, ...]:
        """Return all modes, if the fabric has faults."""
        if not self.items_on(spec, fabric):
            return ()
        return spec.reroute

    def steps(self, spec: ExperimentSpec) -> int:
        """Return the number of runs of faults and scripts."""
        return len(list(self._runs(spec)))

    def seconds(self, spec: ExperimentSpec) -> float:
        """Return how long faults and scripts take, without building fabrics."""
        return sum(_item_s(item, spec) for item in self._runs(spec))

    def counts(self, spec: ExperimentSpec) -> Counts:
        """Return the number of injections."""
        return Counts(faults=_injections(self._runs(spec)))

    def _runs(self, spec: ExperimentSpec) -> Iterator[FaultSpec | ScriptSpec]:
        """Yield each fault and script as often as it runs: on each fabric, in each mode, in each repeat."""
        for number, items in self.items_by_fabric(spec):
            modes = len(shared_reroutes(spec, number))
            for item in items:
                for _ in range(modes * item.times(spec)):
                    yield item

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print faults and scripts of each fabric that has any, and the least time that all of them take."""
        for number, items in self.items_by_fabric(spec):
            self._print_items(spec, number, items, console)
        runs = list(self._runs(spec))
        if not runs:
            return
        total = f"{_counted(_injections(runs), 'injection')} in {_counted(len(runs), 'run')}"
        least = format_time(round(self.min_duration_s(spec)))
        console.print(f"{total}, reroute {' and '.join(spec.reroute)}: {least} or more", highlight=False)

    def _print_items(
        self, spec: ExperimentSpec, number: int, items: Sequence[FaultSpec | ScriptSpec], console: Console
    ) -> None:
        """Print a table of the faults and scripts of a fabric, by its number."""
        fabric = spec.gpu_fabrics[number]
        table = plain_table("script", "at", "fault", "target", "for", "", "times", right=("at", "for", "times"))
        for item in items:
            script = item.script(nominal_plan(fabric), spec.seed)
            title = script.name
            if item.during:
                title += f" during {item.during}"
            times = str(item.times(spec))
            if isinstance(item, ScriptSpec):
                table.add_section()
                if item.random_faults:
                    title += f" (seed {spec.seed})"
            for timed in script.faults:
                data = fault_dict(timed)
                at = data["at"]
                if timed.after:
                    at = f"{timed.after} + {at}"
                parameters = [f"{key} {data[key]}" for key in type(timed.fault.parameters).model_fields]
                table.add_row(title, at, data["kind"], data["target"], data["repair"], ", ".join(parameters), times)
                # only the first row of a script names it
                title = ""
                times = ""
        console.print(f"[bold]faults[/] on {spec.labels[number]}, {fabric.size_text}", highlight=False)
        console.print(table, "")

    def min_duration_s(self, spec: ExperimentSpec) -> float:
        """Return the seconds from the first traffic to the last of each run, added up; building comes on top.

        A fault that waits for a phase counts from that phase on.
        """
        total_s = 0.0
        for number, items in self.items_by_fabric(spec):
            plan = nominal_plan(spec.gpu_fabrics[number])
            for item in items:
                for repeat in range(item.times(spec)):
                    faults = item.script(plan, spec.seed + repeat).faults
                    total_s += max(timed.at_s + timed.repair_s for timed in faults) + AFTER_S
        return total_s * len(spec.reroute)

    def checks(self, analysis: "Analysis") -> "Iterable[Check]":
        """Check that traffic recovers and returns, that nothing is lost, and that the oracle is right."""
        from railyard.experiments.measures.faults.checks import checks

        return checks(analysis)

    def targets(self, analysis: "Analysis") -> "Iterable[Outcome]":
        """Return the targets of recovery, measured or not."""
        from railyard.experiments.measures.faults.targets import outcomes

        return outcomes(analysis)

    def outcome_text(self, measured: "Run") -> str:
        """Return when packets flowed again after the faults of a step."""
        from railyard.experiments.measures.faults.texts import first_packets_text

        recoveries = measured.rows(RECOVERIES)
        return first_packets_text(recoveries)

    def compared_values(self, run: "Run") -> "Iterator[ComparedValue]":
        """Yield the times of the steps of each recovery."""
        from railyard.experiments.measures.faults.analysis import compared_values

        return compared_values(run)

    def event_arrows(self, run: "Run") -> dict[tuple[str, int], list[int]]:
        """Return the arrows that go from faults through events of controllers."""
        from railyard.experiments.measures.faults.tracks import event_arrows

        return event_arrows(run)

    def add_tracks(self, root: "Track", run: "Run") -> None:
        """Add faults, connectivity checks, detours, and goodput around faults."""
        from railyard.experiments.measures.faults.tracks import add_tracks

        add_tracks(root, run)

    def page_messages(self, run: "Run", fabric_label: str) -> "Iterator[tuple[str, dict[str, Any]]]":
        """Yield an event for each fault of a fabric after which packets flowed again."""
        from railyard.experiments.run.observers import FIRST_PACKET, first_packet_event

        for row in run.rows(RECOVERIES):
            event = first_packet_event(row)
            if row.fabric == fabric_label and event:
                (ns, detail) = event
                yield "event", {"ns": ns, "what": FIRST_PACKET, "detail": detail}

    def link_traffic(
        self, run: "Run", label: str, plan: FabricPlan, crossed: "CrossedLinks"
    ) -> "Iterator[LinkTraffic]":
        """Yield the traffic around each fault, or script of faults, of a fabric."""
        from railyard.experiments.measures.faults.link_traffic import traffic_of

        return traffic_of(run, label, plan, crossed)

    def sweep_table(self, kind: "RecordKind[Any]", rows: "pd.DataFrame", axes: Sequence[str]) -> "Table":
        """Return the recovery from each fault, in all runs of a sweep."""
        from railyard.experiments.measures.faults.sweep_table import recoveries_table

        return recoveries_table(rows, axes)

    def sections(self) -> "Mapping[str, type[Section]]":
        """Return its sections of the report."""
        from railyard.experiments.measures.faults.script_section import ScriptsSection
        from railyard.experiments.measures.faults.section import FailuresSection

        return {"failures": FailuresSection, "scripts": ScriptsSection}

    def run_on(self, shared: SharedFabric) -> None:
        """Inject the faults of a fabric, then run its scripts."""
        from railyard.experiments.measures.faults.run import inject_faults

        inject_faults(shared, self.items_on(shared.context.spec, shared.number))


def _item_s(item: FaultSpec | ScriptSpec, spec: ExperimentSpec) -> float:
    """Return how long a fault or a script takes, from the first stream to the last record."""
    from railyard.experiments.spec.duration import stated_duration_s

    if isinstance(item, FaultSpec):
        return item.at + item.repair + AFTER_S + FAULT_S
    if item.random_faults:
        interval_s = item.random_faults.mean_interval or RANDOM_FAULT_S
        return item.random_faults.count * interval_s + AFTER_S + FAULT_S
    last_s = max(fault.at + fault.repair for fault in item.faults)
    if item.during:
        last_s += max(map(stated_duration_s, workloads_of(spec)), default=0.0)
    return last_s + AFTER_S + FAULT_S


def _counted(number: int, noun: str) -> str:
    """Return `1 run`, `1,200 runs`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def _injections(runs: Iterable[FaultSpec | ScriptSpec]) -> int:
    """Return the number of faults that are injected in all runs."""
    return sum(run.injections for run in runs)
