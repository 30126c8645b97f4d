"""torchft with its own DistributedDataParallel, which doesn't survive a failed allreduce in torchft 0.2.0."""

from collections.abc import Sequence

from railyard.workloads.training.program import TRAINING_PROGRAMS, Job, Launch
from railyard.workloads.training.programs.torchft import Torchft


@TRAINING_PROGRAMS.register("torchft-ddp")
class TorchftDdp(Torchft):
    """torchft's DistributedDataParallel over replica groups; see docs/training.md for its defect."""

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return a process for each replica group."""
        return self.groups(job, "--ddp")
