"""Start `run` and `shell`: the checks before they enter a sandbox, the command that they start there, and their part
inside it.

The limits of a fabric's size and rates are generous: the best that was ever measured. The run itself measures what the
machine carries today.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from railyard.core import crash
from railyard.core.host import Machine, datapath_choice, detect, require
from railyard.core.installation import program_command
from railyard.core.safe_files import Folder
from railyard.core.sandbox import init
from railyard.core.sandbox.front import LauncherWatch
from railyard.core.sandbox.hidden import check_all_visible
from railyard.experiments.measures.definition import measures_of
from railyard.experiments.options import PrintableConsole, console
from railyard.experiments.run.folder import Spare, reporting_path_errors
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plans
from railyard.experiments.spec.parsing import restored
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.topology_kind import hosts_line, hosts_of


def main() -> int:
    """Do the task, and return the exit status. A signal's status wins over that of what it interrupted."""
    task = init.prepare()
    crash.context["specification"] = task["spec"]
    crash.parent_has_stdout = task["do"] == "run" and not (task["quiet"] or task["json"])
    try:
        init.install_signal_handlers(interactive=task["do"] == "shell")
        spec = restored(task["spec"])
        init.add_hosts(_addresses(spec))
        with _watched_launcher():
            status = {"run": _run, "shell": _shell}[task["do"]](spec, task)
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    return init.signal_exit_status() or status


def _addresses(spec: ExperimentSpec) -> dict[str, str]:
    """Return the addresses of the fabrics' hosts by name, also by their names in a Mininet topology."""
    addresses: dict[str, str] = {}
    for plan, fabric in zip(nominal_plans(spec), spec.fabrics, strict=True):
        addresses |= plan.addresses
        addresses |= {host: plan.addresses[gpu] for host, gpu in hosts_of(FABRIC_KINDS[fabric.kind]).items()}
    return addresses


@contextmanager
def _watched_launcher() -> Iterator[None]:
    """Tell on standard error and on the live page when the launcher is stopped, and at the end if it still is."""
    watched = LauncherWatch(init.launcher_state, _tell)
    try:
        yield
    finally:
        if line := watched.close():
            print(line, file=sys.stderr, flush=True)


def _tell(line: str) -> None:
    from railyard.experiments.run import observers

    print(line, file=sys.stderr, flush=True)
    observers.show("interrupted", {"text": line})


def _run(spec: ExperimentSpec, task: Mapping[str, Any]) -> int:
    # it takes a second to load, and the process outside doesn't need it
    from railyard.experiments.run.runner import run_experiment

    path = Path(task["folder"])
    (device, inode) = task["identity"]
    with reporting_path_errors("--out", path):
        opened = Folder(path, identity=(device, inode))
    output = None if task["quiet"] else console(stderr=task["json"])
    with opened as folder, Spare(task["spare"]) as spare, extended(task, spec, folder):
        return run_experiment(spec, folder, output, spare, task.get("command"), task.get("verbose", False))


@contextmanager
def extended(task: Mapping[str, Any], spec: ExperimentSpec, folder: Folder | None) -> Iterator[None]:
    """Let extensions take part in the run while entered, such as its live page.

    `task["extensions"]` has for each what it needs, by the name of its module, in which `taking_part` is called with
    that, the experiment, and the run's folder (None without one).
    """
    with ExitStack() as stack:
        for module, extension_task in task["extensions"].items():
            taking_part = importlib.import_module(module).taking_part
            stack.enter_context(taking_part(extension_task, spec, folder))
        yield


def _shell(spec: ExperimentSpec, task: Mapping[str, Any]) -> int:
    from mininet.log import setLogLevel

    from railyard.experiments.run import observers
    from railyard.experiments.run.mininet_cli import FabricCli

    # Mininet prints the output of its commands, and none of its own messages
    setLogLevel("output")
    stderr = PrintableConsole(stderr=True)
    plan = nominal_plans(spec)[0]
    datapath = datapath_choice(detect())[0]

    def show(ns: int, event: str, detail: dict[str, Any]) -> None:
        observers.show(event, detail, ns)

    net = spec.fabric_class.network(plan, datapath, show, spec.controller or "")
    with stderr.status(f"building {plan.title}"):
        net.start()
    hosts = hosts_of(FABRIC_KINDS[spec.fabrics[0].kind])
    names = tuple(hosts) or plan.hosts
    first = names[0]
    second = names[-1]
    examples = f"{first} ping -c 3 {second}; pingall; help; exit"
    stderr.print(f"Mininet's CLI. Hosts are {first} to {second}. Try: {examples}", highlight=False)
    if hosts:
        stderr.print(f"Names of the topology work too: {hosts_line(hosts)}", highlight=False)
    with extended(task, spec, None), observers.fabric(spec.labels[0], net, []):
        FabricCli(net, hosts)
    net.stop()
    return 0


def check_machine(spec: ExperimentSpec) -> Machine:
    """Return what the machine can do. MissingRequirement or BadInput if it can't run the experiment."""
    check_all_visible(spec.resolved())
    if spec.controller:
        from railyard.controller.openflow.user_app import app_class

        app_class(spec.controller)
    machine = detect()
    require(machine)
    spec.fabric_class.check_budget(spec.fabrics, machine)
    for measure in measures_of(spec):
        for error in measure.missing_requirements(spec, machine):
            raise error
    return machine


def own_command() -> list[str]:
    """Return this command line, which `ps` shows for the sandbox; its task is sent through a socket."""
    return program_command(*sys.argv[1:])
