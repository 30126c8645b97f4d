"""torch.distributed with Gloo, without DistributedDataParallel. Requires PyTorch: `script/bootstrap gloo`."""

from railyard.workloads.training.program import TRAINING_PROGRAMS
from railyard.workloads.training.programs.ddp import Ddp


@TRAINING_PROGRAMS.register("gloo")
class Gloo(Ddp):
    """torch.distributed's allreduces over Gloo; a failure ends the job, which continues from its checkpoint."""

    name = "gloo"
