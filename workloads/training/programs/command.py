"""A user's own program, unmodified: its progress is that of its traffic."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from railyard.core.config import ConfigModel
from railyard.core.errors import MissingRequirement
from railyard.workloads.training.program import TRAINING_PROGRAMS, Job, Launch, TrainingProgram
from railyard.workloads.training.programs.mpi import address_command, mpirun


def _words(command: object) -> object:
    return shlex.split(command) if isinstance(command, str) else command


class Arguments(ConfigModel):
    """`command`: the program with its arguments, in which `{folder}` is a folder of each training, for checkpoints.

    `launcher`: "torchrun" starts it at each GPU, with the variables that torchrun sets; "mpirun" is Open MPI's.
    """

    command: Annotated[tuple[str, ...], BeforeValidator(_words), Field(min_length=1, strict=False)]
    launcher: Literal["torchrun", "mpirun"] = "torchrun"


@TRAINING_PROGRAMS.register("command")
class Command(TrainingProgram):
    """A program of the user's; if a process of it fails, all of it is started again once the fault is repaired."""

    Arguments = Arguments
    reports_steps = False

    def missing_requirement(self) -> MissingRequirement | None:
        """Return nothing: what the program needs is not known."""
        return None

    def setup(self, address: str) -> Sequence[str]:
        """Give a GPU's address to its NIC, for mpirun."""
        return address_command(address)

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return the program at each GPU, or mpirun. Relative paths are those of who runs the experiment."""
        assert isinstance(job.arguments, Arguments)
        argv = [word.replace("{folder}", str(job.folder)) for word in job.arguments.command]
        argv[0] = sys.executable if argv[0] in ("python", "python3") else argv[0]
        here = os.getcwd()  # noqa: PTH109
        return [mpirun(job, argv, here)] if job.arguments.launcher == "mpirun" else job.ranks(argv, cwd=here)
