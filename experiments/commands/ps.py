"""`ps`, and how commands find and enter a live run: a run whose outer process listens, so that no list can go stale.

core/sandbox/entry.py decides which runs may be entered, and how. Names of runs are their owners' text: characters that
could control a terminal are replaced by escapes.
"""

import os
import pwd
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import psutil
from rich.console import Console
from rich.text import Text

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.core.sandbox import entry
from railyard.core.sandbox.entry import Entry, Refused
from railyard.core.sandbox.run_socket import Announcement, announcements
from railyard.core.units import format_time
from railyard.experiments.commands.options import console, plain_table
from railyard.topologies.build.ovs import OVS_DIR

NO_FABRIC: Final = "has no fabric up at the moment: it is building, or about to end"
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class LiveRun:
    """`name`: the last part of its folder `where`, or `shell-NAME`. `pid`: process 1 of its sandbox, seen from here.

    `entry` is missing, and `refused` says why, if it may not be entered; `pid` is then the process that announces it.
    """

    experiment: str
    name: str
    where: str
    pid: int
    user: str
    started_s: float
    own: bool = True
    refused: str = ""
    entry: Entry | None = field(default=None, repr=False, compare=False)

    @property
    def nodes(self) -> list[str]:
        """GPUs, bridges and switches of the fabric that is up at the moment."""
        return entry.nodes(self.entry) if self.entry else []


def find() -> list[LiveRun]:
    """The runs that are yours (for root, those of all users), oldest first, and those that are refused."""
    runs = []
    for found in announcements():
        try:
            if run := _run_of(found):
                runs.append(run)
        except (psutil.Error, OSError):
            continue  # it has just ended
        finally:
            os.close(found.pidfd)
    return sorted(runs, key=lambda run: run.started_s)


def _run_of(found: Announcement) -> LiveRun | None:
    experiment, _, where = map(printable, found.text.partition(" "))
    name = Path(where).name[:_LONGEST_NAME]
    user, own = _user_name(found.uid), found.uid == os.geteuid()
    try:
        opened = entry.entry_of(found)
    except Refused as why:
        return LiveRun(experiment, name, where, found.pid, user, 0.0, own, refused=str(why))
    if opened is None:
        return None
    return LiveRun(experiment, name, where, opened.pid, user, psutil.Process(opened.pid).create_time(), own, "", opened)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def printable(text: str) -> str:
    """The text with every character escaped that isn't simply seen, such as those that begin a terminal's commands."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def choose(wanted: str, runs: Sequence[LiveRun]) -> LiveRun:
    """The run of this name, folder or pid, or the only one of this experiment. BadInput else.

    Your own go first: no other user's run can be in place of yours, whatever it is called.
    """
    may = [run for run in runs if not run.refused]
    found = next(
        (found for group in (True, False) if (found := _matching(wanted, [run for run in may if run.own is group]))), []
    )
    if not found and (refused := _matching(wanted, [run for run in runs if run.refused])):
        raise BadInput("RUN", wanted, f"{refused[0].refused} (process {refused[0].pid} of {refused[0].user})")
    if not may:
        raise BadInput("RUN", wanted, "is not alive: no run of yours is")
    if not found:
        problem = unknown_name_hint(wanted, [run.name for run in may]).replace("known", "a run that is alive", 1)
        raise BadInput("RUN", wanted, problem)
    if len(found) > 1:
        raise BadInput("RUN", wanted, f"may be several: {', '.join(f'{run.name} (pid {run.pid})' for run in found)}")
    return found[0]


def _matching(wanted: str, runs: Sequence[LiveRun]) -> list[LiveRun]:
    folder = printable(str(Path(wanted).resolve()))
    exact = [run for run in runs if wanted in (run.name, str(run.pid)) or run.where == folder]
    return exact or [run for run in runs if wanted == run.experiment]


def nodes_up(run: LiveRun) -> list[str]:
    """Its nodes. BadInput while it has none."""
    nodes = run.nodes
    if not nodes:
        raise BadInput("RUN", run.name, NO_FABRIC)
    return nodes


def execute(wanted: str, node: str, command: Sequence[str]) -> NoReturn:
    """Run a command in a GPU (or switch) of a live run: its network, its files in /run, its processes. Then exit."""
    run = choose(wanted, find())
    nodes = nodes_up(run)
    if node not in nodes:
        raise BadInput("GPU", node, unknown_name_hint(node, nodes).replace("known", f"in {run.name}", 1))
    at = str(OVS_DIR / node)
    exec_in_run(run, command, {"OVS_RUNDIR": at, "OVS_DBDIR": at}, node)  # so that ovs-vsctl finds this switch


def exec_in_run(
    run: LiveRun, command: Sequence[str], variables: Mapping[str, str], node: str | None = None
) -> NoReturn:
    """Run a command in a live run's sandbox, in the network of a node, or (None) of its process 1; then exit as it did.

    In another user's run it has that user's credentials.
    """
    if run.entry is None:
        raise BadInput("RUN", run.name, run.refused)
    sys.exit(entry.run(run.entry, run.name, command, node, variables))


def print_table(runs: Sequence[LiveRun], console: Console) -> None:
    """A line a run; and on standard error, a line for each that is refused."""
    for run in runs:
        if run.refused:
            print(f"{run.name} {run.refused} (process {run.pid} of {run.user})", file=sys.stderr)
    runs = [run for run in runs if not run.refused]
    if not runs:
        console.print("no run is alive")
        return
    table = plain_table("RUN", "EXPERIMENT", "PID", "USER", "FOR", "FABRIC", "FOLDER")
    for run in runs:
        gpus = sum(node.startswith("d") for node in run.nodes)
        lasted = format_time(max(1.0, time.time() - run.started_s), 3)
        fabric = f"{gpus} GPUs" if gpus else "none up"
        row = (run.name, run.experiment, str(run.pid), run.user, lasted, fabric, run.where)
        table.add_row(*map(Text, row))  # no markup: a name may look like some
    console.print(table)


def command() -> None:
    """List the runs that are alive now."""
    print_table(find(), console())
