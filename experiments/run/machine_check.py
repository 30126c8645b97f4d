"""What `run` and `shell` check before they enter a sandbox, and what they start there."""

import sys

from railyard.core.host import Machine, detect, require
from railyard.core.project import PROJECT
from railyard.experiments.run.budget import check_budget
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.loading import AnyExperiment


def check_machine(spec: AnyExperiment) -> Machine:
    """Return what the machine can do. MissingRequirement or BadInput if it can't run the experiment."""
    machine = detect()
    require(machine)
    if isinstance(spec, ExperimentSpec):
        check_budget(spec, machine)
    return machine


def own_command() -> list[str]:
    """Return this command line, which `ps` shows for the sandbox; its task is sent through a socket."""
    return [sys.executable, str(PROJECT / "run_experiment.py"), *sys.argv[1:]]
