"""The command of a training script, as typed: `python train.py`, `python -m module`, `torchrun ... train.py`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.installation import python_extra

FIELD: Final = "COMMAND"
PROBE_S: Final = 60.0
TORCHRUN_FLAGS: Final = frozenset({"standalone", "no_python", "run_path", "module"})
"""Options of torchrun that have no value."""
PYTHON_OPTIONS_WITH_VALUE: Final = ("-W", "-X")


@dataclass(frozen=True)
class TrainingCommand:
    """Interpreter, script and arguments of each rank. `ranks`, `ranks_per_node`: as torchrun's options say, or None."""

    python: str
    script: str
    is_module: bool
    arguments: tuple[str, ...]
    ranks: int | None = None
    ranks_per_node: int | None = None

    @property
    def name(self) -> str:
        """The script's name in messages."""
        return self.script if self.is_module else Path(self.script).name


def parse_command(words: Sequence[str]) -> TrainingCommand:
    """Return the parts of a command. BadInput for one that isn't Python's or torchrun's, or has no such script."""
    if not words:
        raise BadInput(FIELD, "", "is missing: write it after --, as in: record --ranks 8 -- python train.py")
    program = Path(words[0]).name
    if program.startswith("python"):
        is_torchrun = list(words[1:3]) in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"])
        if is_torchrun:
            return _torchrun(words[0], words[3:])
        is_module, script, arguments = _python_script(words[1:])
        return _checked(TrainingCommand(words[0], script, is_module, tuple(arguments)))
    if program == "torchrun":
        python = str(Path(words[0]).with_name("python")) if "/" in words[0] else "python"
        return _torchrun(python, words[1:])
    if program.endswith(".py"):
        return _checked(TrainingCommand("python", words[0], False, tuple(words[1:])))
    raise BadInput(FIELD, words[0], "is no such command: allowed are python SCRIPT, python -m MODULE and torchrun")


def _python_script(words: Sequence[str]) -> tuple[bool, str, Sequence[str]]:
    """Return whether a module is run, its name or the script's path, and the arguments after it."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "-m" and position + 1 < len(words):
            return True, words[position + 1], words[position + 2 :]
        if not word.startswith("-"):
            return False, word, words[position + 1 :]
        if word in ("-c", "-"):
            raise BadInput(FIELD, word, "can't be recorded: give a file or a module")
        position += 2 if word in PYTHON_OPTIONS_WITH_VALUE else 1
    raise BadInput(FIELD, " ".join(words), "names no script")


def _torchrun(python: str, words: Sequence[str]) -> TrainingCommand:
    """Parse torchrun's options up to the script: those that say how many ranks there are count."""
    counts = {"nnodes": 1, "nproc_per_node": 1}
    is_module = False
    position = 0
    while position < len(words) and words[position].startswith("-"):
        name, has_value, value = words[position].lstrip("-").partition("=")
        name = name.replace("-", "_")
        position += 1
        if name in ("m", "module"):
            is_module = True
        if name in TORCHRUN_FLAGS or name == "m":
            continue
        if not has_value and position < len(words):
            value = words[position]
            position += 1
        if name in counts:
            counts[name] = _count(name, value)
    if position >= len(words):
        raise BadInput(FIELD, "torchrun", "names no script")
    per_node = counts["nproc_per_node"]
    ranks = counts["nnodes"] * per_node
    arguments = tuple(words[position + 1 :])
    return _checked(TrainingCommand(python, words[position], is_module, arguments, ranks, per_node))


def _count(name: str, value: str) -> int:
    """Return a number of nodes or ranks; of a range `1:4`, the larger."""
    last = value.rpartition(":")[2]
    if not last.isascii() or not last.isdigit() or int(last) < 1:
        raise BadInput(f"--{name}", value, "must be a number: a recording has no GPUs to count")
    return int(last)


def _checked(command: TrainingCommand) -> TrainingCommand:
    if not command.is_module and not Path(command.script).is_file():
        raise BadInput(FIELD, command.script, "is no file")
    return command


def interpreter(python: str) -> str:
    """Return the Python that runs the script: the user's if it has PyTorch, else Railyard's own.

    MissingRequirement if neither has it; BadInput if there is no such program.
    """
    path = shutil.which(python)
    if "/" in python and path is None:
        raise BadInput(FIELD, python, "is no program")
    for candidate in dict.fromkeys((path, sys.executable)):
        if candidate is not None and _has_torch(candidate):
            return candidate
    raise MissingRequirement("PyTorch is missing, which runs the script", python_extra("record"))


def _has_torch(python: str) -> bool:
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run([python, "-c", program], env=environment, timeout=PROBE_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
