"""What a run does once it is in its capsule: the inner half of `run` and `shell`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from railyard.core.sandbox import init
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.loading import AnyExperiment, from_resolved, hosts, resolved

if TYPE_CHECKING:
    from railyard.topologies.build.network import FabricNet
    from railyard.topologies.multirail.net import MultirailNet

SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that computes lets others in after so long, not after 5 ms: some wait for the controller's word, and act."""


def task_of_run(spec: AnyExperiment, folder: Path, quiet: bool) -> dict[str, Any]:
    """What to hand to `capsule.enter` for a run."""
    return {"do": "run", "spec": resolved(spec), "folder": str(folder), "quiet": quiet}


def task_of_shell(spec: AnyExperiment) -> dict[str, Any]:
    """The same for a shell on the first fabric."""
    return {"do": "shell", "spec": resolved(spec)}


def main() -> int:
    """Do the task, and return the exit status. A signal's status wins over that of what it interrupted."""
    task = init.prepare()
    try:
        init.install_signal_handlers(interactive=task["do"] == "shell")
        spec = from_resolved(task["spec"])
        init.add_hosts(hosts(spec))
        status = _TASKS[task["do"]](spec, task)
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    return init.signal_exit_status() or status


def _console() -> Console:
    """As wide as the terminal; where there is none, as wide as its tables need."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _run(spec: AnyExperiment, task: Mapping[str, Any]) -> int:
    folder, console = Path(task["folder"]), None if task["quiet"] else _console()
    if isinstance(spec, MultirailExperiment):
        from railyard.experiments.multirail.runner import run_multirail  # takes a second to load

        return run_multirail(spec, folder, console)
    from railyard.experiments.run.runner import run_experiment  # takes a second to load

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return run_experiment(spec, folder, console)


def _shell(spec: AnyExperiment, task: Mapping[str, Any]) -> int:
    from mininet.cli import CLI
    from mininet.log import setLogLevel

    setLogLevel("output")  # what commands say, and no more
    console = Console(stderr=True)
    net, size, hint = _multirail_net(spec) if isinstance(spec, MultirailExperiment) else _fabric_net(spec)
    with console.status(f"building {spec.labels[0]}, {size}"):
        net.start()
    console.print(f"Mininet's CLI. {hint}; pingall; help; exit", highlight=False)
    CLI.readlineInited = True  # or it would leave a history file in the home folder
    CLI(net)
    net.stop()
    return 0


def _fabric_net(spec: ExperimentSpec) -> "tuple[FabricNet, str, str]":
    """The first fabric, its size, and what to try on it."""
    from railyard.controller.processes.clients import ControllerProcess
    from railyard.core.host import datapath_choice, detect
    from railyard.topologies.build.network import FabricNet

    fabric = spec.fabrics[0]
    net = FabricNet(nominal_plan(fabric), datapath_choice(detect())[0], ControllerProcess())
    return net, f"{fabric.domains} domains x {fabric.rails} rails", "GPUs are d0g0 and on. Try: d0g0 ping -c 3 d1g1"


def _multirail_net(spec: MultirailExperiment) -> "tuple[MultirailNet, str, str]":
    """The same of the other kind."""
    from railyard.core.host import datapath_choice, detect
    from railyard.experiments.multirail.predictions import nominal_plan as multirail_plan
    from railyard.topologies.multirail.net import MultirailNet

    fabric = spec.fabrics[0]
    net = MultirailNet(multirail_plan(fabric), datapath_choice(detect())[0])
    return net, f"{len(fabric.rails)} rails a node", "Nodes are n0 and on. Try: n0 ping -c 3 n1"


_TASKS: Final[dict[str, Callable[[AnyExperiment, Mapping[str, Any]], int]]] = {"run": _run, "shell": _shell}
