"""Part of `run` and `shell` inside the sandbox."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from railyard.core.host import datapath_choice, detect
from railyard.core.safe_files import Folder
from railyard.core.sandbox import init
from railyard.experiments.run.folder import reporting_path_errors
from railyard.experiments.spec.kind import BaseExperiment, kind_of
from railyard.experiments.spec.loading import from_resolved


def task_of_run(spec: BaseExperiment, folder: Folder, quiet: bool) -> dict[str, Any]:
    """Return the task of a run for `launcher.enter`."""
    where = {"folder": str(folder.real_path), "identity": folder.identity}
    return {"do": "run", "spec": spec.resolved(), **where, "quiet": quiet}


def task_of_shell(spec: BaseExperiment) -> dict[str, Any]:
    """Return the task of a shell on the first fabric."""
    return {"do": "shell", "spec": spec.resolved()}


def main() -> int:
    """Do the task, and return the exit status. A signal's status wins over that of what it interrupted."""
    task = init.prepare()
    try:
        init.install_signal_handlers(interactive=task["do"] == "shell")
        spec = from_resolved(task["spec"])
        init.add_hosts(kind_of(spec).hosts(spec))
        status = _TASKS[task["do"]](spec, task)
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    return init.signal_exit_status() or status


def _console() -> Console:
    """As wide as the terminal; where there is none, as wide as its tables need."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _run(spec: BaseExperiment, task: Mapping[str, Any]) -> int:
    from railyard.experiments.run.runner import run_experiment  # takes a second to load

    path, (device, inode) = Path(task["folder"]), task["identity"]
    with reporting_path_errors("--out", path):
        opened = Folder(path, identity=(device, inode))
    with opened as folder:
        return run_experiment(spec, folder, None if task["quiet"] else _console())


def _shell(spec: BaseExperiment, task: Mapping[str, Any]) -> int:
    from mininet.cli import CLI
    from mininet.log import setLogLevel

    setLogLevel("output")  # what commands say, and no more
    console = Console(stderr=True)
    net, size, hint = kind_of(spec).first_net(spec, datapath_choice(detect())[0])
    with console.status(f"building {spec.labels[0]}, {size}"):
        net.start()
    console.print(f"Mininet's CLI. {hint}; pingall; help; exit", highlight=False)
    CLI.readlineInited = True  # or it would leave a history file in the home folder
    CLI(net)
    net.stop()
    return 0


_TASKS: Final[dict[str, Callable[[BaseExperiment, Mapping[str, Any]], int]]] = {"run": _run, "shell": _shell}
