"""Training programs: what is started at the GPUs of a fabric, and what of it is started again after a failure.

A program knows its peers by environment variables alone, as under torchrun or mpirun. If it `reports_steps`, it prints
`step N HASH` on stdout after each step, with a hash of its weights after that step, and may print `discarded N REASON`
for a step whose result it drops. All else is kept as its log. The progress of other programs is that of their traffic.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.core.errors import MissingRequirement
from railyard.core.installation import PROJECT, module_command
from railyard.core.registry import Registry
from railyard.core.units import Time

PORT: Final = 29500
_LINE: Final = re.compile(r"(?:\[\d+,(\d+)\]<stdout>:)?(step|discarded) (\d+) (.*)")  # mpirun's tag, with the rank


class Arguments(ConfigModel):
    """Arguments that all shipped programs take.

    `width`: of the network.
    `timeout`: of a collective, s.

    `compute`: time in each step that a GPU would compute, s, for which the programs sleep.
    """

    width: Annotated[int, Field(ge=8, le=65_536)] = 1024
    timeout: Time = 5.0
    compute: Time = 0.05
    checkpoint_every: Annotated[int, Field(ge=1, le=10_000)] = 10

    def options(self) -> list[str]:
        """Return them as a command line has them; those that aren't given are left out."""
        options = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is not None:
                options.append(f"--{name.replace('_', '-')}={value:g}")
        return options


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start.

    `rank`: the rank that its output is of; -1: none, or several that name themselves.
    """

    node: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    rank: int = -1
    cwd: str = str(PROJECT)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job: `addresses` of its GPUs by name, in the order of their ranks.

    `folder`: for checkpoints.
    """

    addresses: Mapping[str, str]
    steps: int
    seed: int
    folder: Path
    arguments: ConfigModel

    def options(self, checkpoint: str) -> list[str]:
        """Return the options of a shipped script. `checkpoint`: the name of its file."""
        assert isinstance(self.arguments, Arguments)
        common = [f"--steps={self.steps}", f"--seed={self.seed}", f"--checkpoint={self.folder / checkpoint}"]
        return common + self.arguments.options()

    def ranks(self, argv: Sequence[str], port: int = PORT, cwd: str = str(PROJECT), **environment: str) -> list[Launch]:
        """Return a command for each GPU, with the variables that torchrun sets."""
        shared = {"WORLD_SIZE": str(len(self.addresses)), "LOCAL_RANK": "0", "MASTER_PORT": str(port), **environment}
        shared["MASTER_ADDR"] = next(iter(self.addresses.values()))
        return [Launch(gpu, tuple(argv), {**shared, "RANK": str(n)}, n, cwd) for n, gpu in enumerate(self.addresses)]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a program that says how far a rank is.

    `detail`: the hash of a step, or why it was discarded.
    """

    rank: int
    what: Literal["step", "discarded"]
    step: int
    detail: str

    @classmethod
    def parse(cls, text: str, rank: int) -> "Line | None":
        """Return what a line says; None for any other line. `rank`: of the process, unless the line names it."""
        match = _LINE.fullmatch(text.strip())
        if match is None:
            return None
        named_rank, event, step, detail = match.groups()
        return cls(int(named_rank or rank), event, int(step), detail)  # type: ignore[arg-type]


class TrainingProgram:
    """Definition of a program. `restarts`: what a launcher starts again after a failure.

    "process": the process that ended, because the others wait for it or go on without it. "job": all processes, which
    continue from a checkpoint.
    """

    Arguments: ClassVar[type[ConfigModel]] = Arguments
    reports_steps: ClassVar[bool] = True
    restarts: ClassVar[Literal["process", "job"]] = "job"

    def missing_requirement(self) -> MissingRequirement | None:
        """Return what the machine lacks for it; None if it can run."""
        raise NotImplementedError

    def setup(self, address: str) -> Sequence[str]:
        """Return a command to run at each GPU before the job starts; none by default. `address`: the GPU's."""
        return ()

    def services(self, job: Job) -> Sequence[Launch]:
        """Return what runs beside the ranks from the first to the last of them."""
        return ()

    def launches(self, job: Job) -> Sequence[Launch]:
        """Return what to start."""
        raise NotImplementedError


def script(name: str) -> tuple[str, ...]:
    """Return the command that runs one of the shipped scripts, by its module's name."""
    return tuple(module_command(f"railyard.workloads.training.scripts.{name}"))


def is_whole(arguments: Any, ranks: int) -> bool:
    """Return whether every step needs all ranks, so that its weights are those of a run without faults."""
    return (getattr(arguments, "min_groups", None) or ranks) == ranks


TRAINING_PROGRAMS: Final = Registry[TrainingProgram](
    "training program",
    "railyard.workloads.training.programs",
    TrainingProgram,
    ["missing_requirement", "launches(job)"],
)
"""Every training program by its name: `program` in YAML."""
