"""PyTorch's DistributedDataParallel over Gloo. Requires PyTorch: `script/bootstrap gloo`."""

from collections.abc import Sequence

from railyard.core.errors import MissingRequirement
from railyard.workloads.allreduce.engines.gloo import GlooRanks
from railyard.workloads.training.program import TRAINING_PROGRAMS, Job, Launch, TrainingProgram, script


@TRAINING_PROGRAMS.register("ddp")
class Ddp(TrainingProgram):
    """DistributedDataParallel over Gloo; a failure ends the job, which continues from its checkpoint."""

    name = "ddp"

    def missing_requirement(self) -> MissingRequirement | None:
        """Return the requirement of PyTorch."""
        return GlooRanks.missing_requirement()

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return a process for each GPU."""
        return job.ranks([*script(self.name), *job.options("checkpoint.pt")])
