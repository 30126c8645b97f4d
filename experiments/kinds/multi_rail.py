"""Experiments on multi-rail fabrics: nodes with a NIC on each of several networks, and allreduces over all of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from railyard.core.host import Datapath
from railyard.experiments.spec.kind import EXPERIMENT_KINDS, ExperimentKind, Sections
from railyard.experiments.spec.multi_rail import KIND, SECTIONS, MultirailExperiment, is_multirail, parse
from railyard.topologies.multirail.spec import Nic

if TYPE_CHECKING:
    from mininet.net import Mininet

    from railyard.experiments.run.progress import Steps
    from railyard.results.runs.records import Run


class MultiRail(ExperimentKind[MultirailExperiment]):
    """Experiments on multi-rail fabrics."""

    spec = MultirailExperiment

    def sections(self) -> Sections:
        """Return the sections of its specification."""
        return SECTIONS

    def accepts(self, data: Mapping[str, Any]) -> bool:
        """Return whether data is of this kind."""
        return is_multirail(data)

    def parse(self, data: object) -> MultirailExperiment:
        """Return the specification."""
        return parse(data)

    def hosts(self, spec: MultirailExperiment) -> dict[str, str]:
        """Return the address of every node on its first rail."""
        nics = (Nic(0, node) for fabric in spec.fabrics for node in range(fabric.nodes))
        return {nic.namespace: nic.ip for nic in nics}

    def first_net(self, spec: MultirailExperiment, datapath: Datapath) -> "tuple[Mininet, str, str]":
        """Return the first fabric, its size and a hint."""
        from railyard.experiments.predict.multi_rail import nominal_plan
        from railyard.topologies.multirail.net import MultirailNet

        fabric = spec.fabrics[0]
        net = MultirailNet(nominal_plan(fabric), datapath)
        return net, f"{len(fabric.rails)} rails a node", "Nodes are n0 and on. Try: n0 ping -c 3 n1"

    def step_count(self, spec: MultirailExperiment) -> int:
        """Return the steps of `measure`."""
        from railyard.experiments.multirail.runner import step_count

        return step_count(spec)

    def measure(
        self, spec: MultirailExperiment, datapath: Datapath, frames_per_s: float, run: "Run", steps: "Steps"
    ) -> None:
        """Measure all fabrics."""
        from railyard.experiments.multirail.runner import measure

        measure(spec, datapath, frames_per_s, run, steps)

    def predict(self, spec: MultirailExperiment, out: Path, console: Console) -> int:
        """Predict by formulas."""
        from railyard.experiments.predict.multi_rail import predict

        return predict(spec, out, console)

    def dry_run(self, spec: MultirailExperiment, console: Console) -> int:
        """Print what would be sent."""
        from railyard.experiments.predict.multi_rail import dry_run

        return dry_run(spec, console)


EXPERIMENT_KINDS.add(KIND, MultiRail())
