"""What a run does once it is in its capsule: the inner half of `run` and `shell`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from experiments.spec import ExperimentSpec, nominal_plan, resolved
from topologies import inner

PROMPT_S: Final = 0.0005
"""A thread that computes lets others in after so long, not after 5 ms: some wait for the controller's word, and act."""


def task_of_run(spec: ExperimentSpec, folder: Path, quiet: bool) -> dict[str, Any]:
    """What to hand to `capsule.enter` for a run."""
    return {"do": "run", "spec": resolved(spec), "folder": str(folder), "quiet": quiet}


def task_of_shell(spec: ExperimentSpec) -> dict[str, Any]:
    """The same for a shell on the first fabric."""
    return {"do": "shell", "spec": resolved(spec)}


def main() -> int:
    """Do the task, and return the exit status. A signal's status wins over that of what it interrupted."""
    task = inner.prepare()
    try:
        inner.take_signals(interactive=task["do"] == "shell")
        spec = ExperimentSpec.model_validate(task["spec"])
        inner.add_hosts({gpu.name: gpu.ip for fabric in spec.fabrics for gpu in nominal_plan(fabric).gpus})
        status = _TASKS[task["do"]](spec, task)
    except inner.Stopped as stopped:
        return stopped.exit_status
    return inner.stopped_by() or status


def _console() -> Console:
    """As wide as the terminal; where there is none, as wide as its tables need."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _run(spec: ExperimentSpec, task: Mapping[str, Any]) -> int:
    from experiments.runner import run_experiment  # takes a second to load

    sys.setswitchinterval(PROMPT_S)
    return run_experiment(spec, Path(task["folder"]), None if task["quiet"] else _console())


def _shell(spec: ExperimentSpec, task: Mapping[str, Any]) -> int:
    from mininet.cli import CLI
    from mininet.log import setLogLevel

    from controller.handle import ControllerProcess
    from topologies.machine import datapath_choice, detect
    from topologies.net import FabricNet

    setLogLevel("output")  # what commands say, and no more
    console = Console(stderr=True)
    fabric = spec.fabrics[0]
    datapath, _ = datapath_choice(detect())
    net = FabricNet(nominal_plan(fabric), datapath, ControllerProcess())
    with console.status(f"building {spec.labels[0]}, {fabric.domains} domains x {fabric.rails} rails"):
        net.start()
    console.print("Mininet's CLI. GPUs are d0g0 and on. Try: d0g0 ping -c 3 d1g1; pingall; help; exit", highlight=False)
    CLI.readlineInited = True  # or it would leave a history file in the home folder
    CLI(net)
    net.stop()
    return 0


_TASKS: Final[dict[str, Callable[[ExperimentSpec, Mapping[str, Any]], int]]] = {"run": _run, "shell": _shell}
