"""What `run` and `shell` check before they enter a sandbox, and what they start there."""

import sys

from railyard.core.host import Machine, detect, require
from railyard.core.project import PROJECT
from railyard.experiments.spec.kind import BaseExperiment, kind_of


def check_machine(spec: BaseExperiment) -> Machine:
    """Return what the machine can do. MissingRequirement or BadInput if it can't run the experiment."""
    machine = detect()
    require(machine)
    kind_of(spec).check_machine(spec, machine)
    return machine


def own_command() -> list[str]:
    """Return this command line, which `ps` shows for the sandbox; its task is sent through a socket."""
    return [sys.executable, str(PROJECT / "run_experiment.py"), *sys.argv[1:]]
