"""Family of multi-rail fabrics: allreduces over several rails, which faults interrupt; there are no HB domains."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.units import format_rate
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import FAMILIES, ExperimentSpec, FabricFamily, nominal_plans
from railyard.experiments.spec.faults import RailFaultSpec, check_faults
from railyard.results import format as fmt
from railyard.topologies.capacity import Capacity
from railyard.topologies.fabric_kinds import BaseFabricSpec, FabricPlan
from railyard.topologies.multirail.plan import MultirailPlan, frames_needed, nominal_plan
from railyard.topologies.multirail.spec import MultirailSpec
from railyard.workloads.allreduce.engine_kind import check_policy, definition_of, rails_of
from railyard.workloads.allreduce.workload import RailWorkload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from railyard.experiments.predict.output import Predicted
    from railyard.experiments.predict.unsteered import Prediction
    from railyard.topologies.build.network import EmulatedNet

LIGHT_FRAMES: Final = 3_000
"""Full frames a second, at all switches, that any machine carries: 5% of what a core does with the slowest datapath."""


@FAMILIES.register("multi-rail")
class MultiRail(FabricFamily):
    """Workloads measure themselves on a built fabric, which is built anew for each dilation."""

    Fabric = MultirailSpec
    Fault = RailFaultSpec
    without = (
        "routing", "background", "grid", "scripts", "heartbeats", "reroute", "hosts", "underlay",
        "controller",
    )  # fmt: skip

    def check(self, spec: ExperimentSpec) -> None:
        """Check faults and workloads, and that no two workloads record the same interval."""
        check_faults(spec.faults, nominal_plans(spec))
        for i, fault in enumerate(spec.faults):
            for number in filter(fault.is_on, range(len(spec.fabrics))):
                fabric = spec.rail_fabrics[number]
                if len(fabric.rails) < 2:
                    allowed = f"breaks the only rail of fabrics.{number}: nothing can take over"
                    raise BadInput(f"faults.{i}.target", fault.target, allowed)
                assert isinstance(fault, RailFaultSpec)
                check_policy(fault.policy, f"faults.{i}.policy", [fabric], own_only=True)
        seen = set[tuple[int, str, str]]()
        for i, workload in enumerate(spec.workloads):
            assert isinstance(workload, RailWorkload)
            workload.check(spec.rail_fabrics, f"workloads.{i}")
            for number in filter(workload.is_on, range(len(spec.fabrics))):
                for name, policy in workload.intervals(number, spec.rail_fabrics[number]):
                    if (number, name, policy) in seen:
                        what = f"is given twice for fabrics.{number}: {name}{policy and ', '}{policy}"
                        raise BadInput(f"workloads.{i}", workload.result_name, what)
                    seen.add((number, name, policy))

    def nominal_plan(self, fabric: BaseFabricSpec) -> FabricPlan:
        """Return the plan at the nominal scale."""
        assert isinstance(fabric, MultirailSpec)
        return nominal_plan(fabric)

    def network(self, plan: FabricPlan, datapath: Datapath, user_app: str = "") -> "EmulatedNet":
        """Return a network whose switches have static flows."""
        from railyard.topologies.multirail.net import MultirailNet

        assert isinstance(plan, MultirailPlan)
        return MultirailNet(plan, datapath)

    def step_count(self, spec: ExperimentSpec) -> int:
        """Return the number of builds, of what workloads count, and of faults."""
        builds = sum(len(spec.dilations_on(number)) for number in range(len(spec.fabrics)))
        on_fabrics = ((n, fabric, w) for n, fabric in enumerate(spec.rail_fabrics) for w in spec.rail_workloads_on(n))
        return builds + sum(w.step_count(n, fabric, spec.repeats) for n, fabric, w in on_fabrics) + spec.fault_runs

    def needs_capacity(self, spec: ExperimentSpec) -> bool:
        """Return False if all rates are given, and so low that any machine carries them."""
        for fabric in spec.rail_fabrics:
            given = tuple(rail.rate for rail in fabric.rails if isinstance(rail.rate, int))
            if len(given) < len(fabric.rails) or frames_needed(fabric, given) > LIGHT_FRAMES:
                return True
        return False

    def capacity(self, spec: ExperimentSpec, datapath: Datapath) -> Capacity:
        """Measure the frames that come many at once."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.measure.capacity import measure_batched

        return measure_batched(datapath, ControllerProcess())

    def measure(self, spec: ExperimentSpec, *context: Any) -> None:
        """Measure all workloads, then all faults."""
        from railyard.experiments.run import rail_fabrics

        rail_fabrics.measure(spec, *context)

    def predict(self, spec: ExperimentSpec) -> "Predicted":
        """Compute the times of workloads; a fault has no formula."""
        from railyard.experiments.predict.output import Predicted
        from railyard.experiments.predict.unsteered import Prediction
        from railyard.results.plots import style
        from railyard.results.plots.allreduce import predicted

        rows: list[Prediction] = []
        panels: dict[str, dict[str, list[tuple[int, float]]]] = {}  # by fabric and policy: (size, s)
        for number, (label, fabric) in enumerate(zip(spec.labels, spec.rail_fabrics, strict=True)):
            for workload in spec.rail_workloads_on(number):
                for p in workload.predictions(number, nominal_plan(fabric)):
                    equation = definition_of(p.policy).equation
                    where = (label, p.policy, p.workload, "", p.metric)
                    rows.append(Prediction(*where, p.seconds, "s", equation))
                    if p.size:
                        panels.setdefault(label, {}).setdefault(p.policy, []).append((p.size, p.seconds))
        drawn = [(label, list(lines.items())) for label, lines in panels.items()]

        def draw() -> "Figure":
            return predicted(drawn) if drawn else style.new_figure(style.WIDTH, 1.0)

        title = f"{spec.name}: predicted times"
        show = partial(_print_predictions, spec.labels, rows)
        return Predicted(spec.name, title, Prediction._fields, rows, draw, show)

    def dry_run(self, spec: ExperimentSpec, console: Console) -> None:
        """Print what would be sent, and over which rails."""
        for number, (label, fabric) in enumerate(zip(spec.labels, spec.rail_fabrics, strict=True)):
            plan = nominal_plan(fabric)
            rates = ", ".join(f"{rail.name} {format_rate(rail.rate * 8, 3)}" for rail in rails_of(plan))
            scale = f"{plan.scale:g} times slower than the paper's"
            console.print(f"[bold]{label}[/]: {scale}; {rates} a NIC", highlight=False)
            for workload in spec.rail_workloads_on(number):
                for item in workload.dry_run(number, plan, spec.repeats):
                    if isinstance(item, str):
                        console.print(item, highlight=False)
                        continue
                    table = plain_table(*item[0], right=item[0])
                    for row in item[1:]:
                        table.add_row(*row)
                    console.print(table, highlight=False)
            for fault in spec.rail_faults_on(number):
                what = f"{spec.times(fault)} x {fault.kind} {fault.target} for {fmt.seconds(fault.repair)}"
                console.print(what, highlight=False)


def _print_predictions(labels: Sequence[str], rows: "Sequence[Prediction]", console: Console) -> None:
    for label in labels:
        found: dict[str, dict[str, float | None]] = {}
        for row in rows:
            if row.fabric == label:
                found.setdefault(row.workload, {})[row.policy] = row.predicted
        policies = list(dict.fromkeys(policy for by in found.values() for policy in by))
        table = plain_table("workload", *policies, right=policies, title=f"{label}: predicted times")
        for name, by in found.items():
            table.add_row(name, *(fmt.seconds(by.get(policy)) for policy in policies))
        console.print(table)
