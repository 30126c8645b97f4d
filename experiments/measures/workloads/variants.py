"""Variants of workloads: how often, and under which conditions, each repeat of a workload runs on a fabric."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from railyard.experiments.measures.definition import measures_of
from railyard.experiments.measures.workloads.turn import Turn, Variant
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.spec import FabricSpec

if TYPE_CHECKING:
    from railyard.experiments.predict.output import Predicted
    from railyard.experiments.run.session import FabricSession


Measurer = Callable[[Turn], None]
"""Replays a workload and adds everything to the run."""


class WorkloadVariants:
    """Base of measures that run the workloads of an experiment in several variants.

    By itself: each workload once, on the fabric's own routes, and with the same seed in each repeat.
    """

    def variants(self, spec: ExperimentSpec, fabric: FabricSpec) -> Sequence[Variant]:
        """Return the variants in which each workload runs on a fabric, in their order."""
        return (Variant(),)

    def seed(self, spec: ExperimentSpec, repeat: int) -> int:
        """Return the seed of a repeat."""
        return spec.seed

    @contextmanager
    def measuring(self, session: "FabricSession", spec: ExperimentSpec) -> Iterator[Measurer]:
        """Prepare a built fabric, and yield the function that replays a workload on it once."""
        from railyard.experiments.measures.workloads.replay import run_workload

        yield run_workload

    def predict_workloads(self, spec: ExperimentSpec) -> "Predicted":
        """Compute the times of all workloads: by itself, by the papers' equations."""
        from railyard.experiments.measures.workloads.predict import predict

        return predict(spec)

    def seconds_of_repeat(self, spec: ExperimentSpec, stated_s: float) -> float:
        """Return about how long all variants of a repeat take, s. `stated_s`: the time that the workload states."""
        from railyard.experiments.spec.duration import INTERVAL_S

        return stated_s + INTERVAL_S


def variants_of(spec: ExperimentSpec) -> WorkloadVariants:
    """Return the measure that says in which variants the experiment's workloads run."""
    for measure in measures_of(spec):
        if isinstance(measure, WorkloadVariants):
            return measure
    return WorkloadVariants()
