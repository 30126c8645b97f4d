"""torchft: replica groups that fail and join again under a lighthouse. Requires it: `script/bootstrap torchft`.

The lighthouse runs at the first GPU. Each GPU is a replica group of its own.
"""

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from railyard.core.errors import MissingRequirement
from railyard.core.installation import python_extra
from railyard.workloads.training import program
from railyard.workloads.training.program import TRAINING_PROGRAMS, Job, Launch, TrainingProgram, script

LIGHTHOUSE_PORT: Final = 29510


class Arguments(program.Arguments):
    """`min_groups`: replica groups that a step needs, by default all: the others wait for one that is missing."""

    min_groups: Annotated[int, Field(ge=1)] | None = None


@TRAINING_PROGRAMS.register("torchft")
class Torchft(TrainingProgram):
    """torchft with one replica group for each GPU; a group that fails is started again, and fetches the weights."""

    Arguments = Arguments
    restarts = "process"

    def missing_requirement(self) -> MissingRequirement | None:
        """Return the requirement of torchft."""
        if importlib.util.find_spec("torchft") and importlib.util.find_spec("torch"):
            return None
        return MissingRequirement("this machine lacks torchft or PyTorch", python_extra("torchft"))

    def services(self, job: Job) -> Sequence[Launch]:
        """Return the lighthouse."""
        assert isinstance(job.arguments, Arguments)
        least = job.arguments.min_groups or len(job.addresses)
        options = (f"--min-groups={least}", f"--port={LIGHTHOUSE_PORT}")
        return [Launch(next(iter(job.addresses)), (*script("lighthouse"), *options), {})]

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return a process for each replica group."""
        return self.groups(job)

    def groups(self, job: Job, *options: str) -> Sequence[Launch]:
        """Return a process for each replica group, with more options."""
        lighthouse = f"http://{next(iter(job.addresses.values()))}:{LIGHTHOUSE_PORT}"
        argv = [*script("torchft_groups"), *job.options("unused.pt"), *options]
        return job.ranks(argv, TORCHFT_LIGHTHOUSE=lighthouse)
