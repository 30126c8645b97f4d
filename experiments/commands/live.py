"""Runs that are alive now, found by looking at processes: nothing is registered anywhere, so nothing goes stale."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import psutil
from rich.console import Console
from rich.table import Table

from railyard.core.errors import BadInput, MissingRequirement, unknown_name_hint
from railyard.core.host import BOOTSTRAP, SEARCH_PATH
from railyard.core.sandbox.launcher import RUN_NAME_VARIABLE, SANDBOX_VARIABLE
from railyard.core.units import format_time
from railyard.topologies.build.namespaces import NETNS_DIR
from railyard.topologies.build.ovs import OVS_DIR

NO_FABRIC: Final = "has no fabric up at the moment: it is building, or about to end"


@dataclass(frozen=True, slots=True)
class LiveRun:
    """`name`: the last part of its folder `where`, or `shell-NAME`. `pid`: process 1 of its capsule, seen from here."""

    experiment: str
    name: str
    where: str
    pid: int
    user: str
    started_s: float

    @property
    def nodes(self) -> list[str]:
        """GPUs, bridges and switches of the fabric that is up at the moment."""
        folder = Path(f"/proc/{self.pid}/root{NETNS_DIR}")
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def find() -> list[LiveRun]:
    """The runs that are yours (root's are everybody's), oldest first."""
    runs = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if (
                environment.get(SANDBOX_VARIABLE) == "1"
                and environment.get(RUN_NAME_VARIABLE)
                and _is_first(process.pid)
            ):
                experiment, _, where = environment[RUN_NAME_VARIABLE].partition(" ")
                process_info = (process.pid, process.username(), process.create_time())
                runs.append(LiveRun(experiment, Path(where).name, where, *process_info))
        except (psutil.Error, OSError):
            continue  # somebody else's, or gone
    return sorted(runs, key=lambda run: run.started_s)


def _is_first(pid: int) -> bool:
    """Whether it is process 1 of a PID namespace below ours: others of a run have its environment too."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False


def choose(selector: str, runs: Sequence[LiveRun]) -> LiveRun:
    """The run of this name, folder or pid, or the only one of this experiment. BadInput else."""
    if not runs:
        raise BadInput("RUN", selector, "is not alive: no run of yours is")
    folder = str(Path(selector).resolve())
    exact = [run for run in runs if selector in (run.name, str(run.pid)) or run.where == folder]
    found = exact or [run for run in runs if selector == run.experiment]
    if not found:
        problem = unknown_name_hint(selector, [run.name for run in runs]).replace("known", "a run that is alive", 1)
        raise BadInput("RUN", selector, problem)
    if len(found) > 1:
        raise BadInput(
            "RUN",
            selector,
            f"may be several: {', '.join(f'{run.name} (pid {run.pid})' for run in found)}",
        )
    return found[0]


def nodes_up(run: LiveRun) -> list[str]:
    """Its nodes. BadInput while it has none."""
    nodes = run.nodes
    if not nodes:
        raise BadInput("RUN", run.name, NO_FABRIC)
    return nodes


def execute(selector: str, node: str, command: Sequence[str]) -> NoReturn:
    """Become the command in a GPU (or switch) of a live run: its network, its files in /run, its processes."""
    run = choose(selector, find())
    nodes = nodes_up(run)
    if node not in nodes:
        raise BadInput("GPU", node, unknown_name_hint(node, nodes).replace("known", f"in {run.name}", 1))
    os.environ["OVS_RUNDIR"] = os.environ["OVS_DBDIR"] = str(OVS_DIR / node)  # so that ovs-vsctl finds this switch
    exec_in_run(run, command, node)


def exec_in_run(run: LiveRun, command: Sequence[str], node: str | None = None) -> NoReturn:
    """Become a command in a live run's capsule, in the network of a node, or (None) where its own process 1 is."""
    program = shutil.which("nsenter", path=SEARCH_PATH)
    if program is None:
        raise MissingRequirement("this machine lacks nsenter", BOOTSTRAP)
    # root needs no part in the user namespace of somebody's capsule, and would lose its own in it
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    network = f"--net=/proc/{run.pid}/root{NETNS_DIR}/{node}" if node else "--net"
    os.environ["PATH"] = SEARCH_PATH
    os.execv(program, [program, f"--target={run.pid}", *user, "--mount", "--pid", network, "--", *command])


def print_table(runs: Sequence[LiveRun], console: Console) -> None:
    """A line a run."""
    if not runs:
        console.print("no run is alive")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("RUN", "EXPERIMENT", "PID", "USER", "FOR", "FABRIC", "FOLDER"):
        table.add_column(column, overflow="fold")
    for run in runs:
        gpus = sum(node.startswith("d") for node in run.nodes)
        lasted = format_time(max(1.0, time.time() - run.started_s), 3)
        table.add_row(
            run.name, run.experiment, str(run.pid), run.user, lasted, f"{gpus} GPUs" if gpus else "none up", run.where
        )
    console.print(table)
