"""Experiments on fabrics of GPUs: HB domains, rail switches and spines, with workloads, faults and health routing."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from railyard.core.errors import MissingRequirement
from railyard.core.host import BOOTSTRAP, Datapath, Machine
from railyard.experiments.run.sandboxed import check_budget
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan, parse, sections
from railyard.experiments.spec.kind import DEFAULT_KIND, EXPERIMENT_KINDS, ExperimentKind, Sections

if TYPE_CHECKING:
    from mininet.net import Mininet

    from railyard.experiments.run.progress import Steps
    from railyard.results.runs.records import Run


class GpuFabrics(ExperimentKind[ExperimentSpec]):
    """Experiments on fabrics of GPUs."""

    spec = ExperimentSpec

    def sections(self) -> Sections:
        """Return the sections of its specification."""
        return sections()

    def accepts(self, data: Mapping[str, Any]) -> bool:
        """Return whether data is of this kind."""
        return False  # the default: its parser names the field that is wrong

    def parse(self, data: object) -> ExperimentSpec:
        """Return the specification."""
        return parse(data)

    def shown(self, spec: ExperimentSpec) -> dict[str, Any]:
        """Return all keys, without those that have no effect."""
        idle = set() if spec.faults else {"fault_repeats"}
        idle |= set() if spec.scripts else {"script_repeats"}
        idle |= set() if spec.faults or spec.scripts else {"reroute", "heartbeats"}
        shown = {key: value for key, value in super().shown(spec).items() if key not in idle}
        if spec.background:
            shown["background"] = [item.model_dump(mode="json", exclude_defaults=True) for item in spec.background]
        return shown

    def check_machine(self, spec: ExperimentSpec, machine: Machine) -> None:
        """Check memory, rates and etcd."""
        check_budget(spec, machine)
        if spec.needs_etcd and not machine.programs.get("etcd"):
            raise MissingRequirement("this machine lacks etcd, for the registry", BOOTSTRAP)

    def hosts(self, spec: ExperimentSpec) -> dict[str, str]:
        """Return the address of every GPU."""
        return {gpu.name: gpu.ip for fabric in spec.fabrics for gpu in nominal_plan(fabric).gpus}

    def first_net(self, spec: ExperimentSpec, datapath: Datapath) -> "tuple[Mininet, str, str]":
        """Return the first fabric, its size and a hint."""
        from railyard.controller.processes.clients import ControllerProcess
        from railyard.topologies.build.network import FabricNet

        fabric = spec.fabrics[0]
        net = FabricNet(nominal_plan(fabric), datapath, ControllerProcess())
        return net, f"{fabric.domains} domains x {fabric.rails} rails", "GPUs are d0g0 and on. Try: d0g0 ping -c 3 d1g1"

    def step_count(self, spec: ExperimentSpec) -> int:
        """Return the steps of `measure`."""
        from railyard.experiments.run.gpu_fabrics import step_count

        return step_count(spec)

    def measure(
        self, spec: ExperimentSpec, datapath: Datapath, frames_per_s: float, run: "Run", steps: "Steps"
    ) -> None:
        """Measure all fabrics."""
        from railyard.experiments.run.gpu_fabrics import measure

        measure(spec, datapath, frames_per_s, run, steps)

    def predict(self, spec: ExperimentSpec, out: Path, console: Console) -> int:
        """Predict by formulas."""
        from railyard.experiments.predict import steered, unsteered

        return (steered.show if spec.routing else unsteered.show)(spec, out, console)

    def dry_run(self, spec: ExperimentSpec, console: Console) -> int:
        """Print what would be sent."""
        from railyard.experiments.commands.dry_run import show

        return show(spec, console)

    def lint(self, spec: ExperimentSpec, console: Console) -> int:
        """Check the experiment."""
        from railyard.experiments.commands.lint import print_workloads

        return print_workloads(spec, console)


EXPERIMENT_KINDS.add(DEFAULT_KIND, GpuFabrics())
