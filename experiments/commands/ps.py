"""`ps`, and how commands find and enter a live run: a run whose outer process listens, so that no list can go stale.

core/sandbox/entry.py decides which runs may be entered, and how. Names of runs are their owners' text: characters that
could control a terminal are replaced by escapes.
"""

import json
import os
import pwd
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import psutil
import typer
from rich.console import Console
from rich.text import Text

from railyard.core.errors import BadInput, RailyardError, printable, unknown_name_hint
from railyard.core.safe_files import real_path
from railyard.core.sandbox import entry
from railyard.core.sandbox.entry import Entry, Refused
from railyard.core.sandbox.front import how_to_continue
from railyard.core.sandbox.run_socket import announcements
from railyard.core.units import format_time
from railyard.experiments.options import console, plain_table

PURPOSE = "Look into a live run"
NO_FABRIC: Final = "has no fabric up at the moment: it is building, or about to end"
_MAX_NAME: Final = 255
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+-]*")
_HOSTS: Final = {"d": "GPUs", "n": "nodes"}


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
    is_own: bool = True
    refused: str = ""
    entry: Entry | None = field(default=None, repr=False, compare=False)

    @property
    def is_stopped(self) -> bool:
        """Return whether its front process is stopped: then only its number and user can be seen."""
        return bool(self.refused) and not self.where

    @property
    def nodes(self) -> list[str]:
        """GPUs, bridges and switches of the fabric that is up at the moment."""
        return entry.nodes(self.entry) if self.entry else []


def find() -> list[LiveRun]:
    """Return the runs that are yours (for root, those of all users), oldest first, and those that are refused."""
    runs = []
    for announcement in announcements():
        experiment, _, where = map(printable, announcement.text.partition(" "))
        name = Path(where).name[:_MAX_NAME] or f"run-{announcement.pid}"
        is_own = announcement.uid == os.geteuid()
        run = LiveRun(experiment, name, where, announcement.pid, str(announcement.uid), 0.0, is_own=is_own)
        try:
            with suppress(KeyError):
                run = replace(run, user=pwd.getpwuid(announcement.uid).pw_name)
            if not announcement.text:
                raise Refused(f"is stopped; {how_to_continue(announcement.pid)}")
            if opened := entry.entry_of(announcement):
                started_s = psutil.Process(opened.pid).create_time()
                runs.append(replace(run, pid=opened.pid, started_s=started_s, entry=opened))
        except Refused as why:
            runs.append(replace(run, refused=str(why)))
        except (psutil.Error, OSError):
            # the run has just ended
            continue
        finally:
            os.close(announcement.pidfd)
    return sorted(runs, key=lambda run: run.started_s)


def choose(wanted: str, runs: Sequence[LiveRun]) -> LiveRun:
    """Return the run of this name, folder or pid, or the only one of this experiment; BadInput else.

    Your own come first, so that no other user's run can take the place of yours by its name.
    """
    answering = [run for run in runs if not run.refused]
    own_runs = [run for run in answering if run.is_own]
    not_own = [run for run in answering if not run.is_own]
    matches = _matching(wanted, own_runs) or _matching(wanted, not_own)
    if not matches:
        raise _no_match(wanted, runs, answering)
    if len(matches) > 1:
        names = ", ".join(f"{run.name} (pid {run.pid})" for run in matches)
        raise BadInput("RUN", wanted, f"may be several: {names}")
    return matches[0]


def _matching(wanted: str, runs: Sequence[LiveRun]) -> list[LiveRun]:
    """Return the runs of this name, pid or folder, else those of this experiment."""
    folder = printable(str(real_path(wanted)))
    exact = [run for run in runs if wanted in (run.name, str(run.pid)) or run.where == folder]
    return exact or [run for run in runs if wanted == run.experiment]


def _no_match(wanted: str, runs: Sequence[LiveRun], answering: Sequence[LiveRun]) -> BadInput:
    """Return the error that says why no run was chosen. `answering`: those of `runs` that were not refused."""
    refused = _matching(wanted, [run for run in runs if run.refused])
    if refused:
        return BadInput("RUN", wanted, f"{refused[0].refused} (process {refused[0].pid} of {refused[0].user})")
    if answering:
        names = [run.name for run in answering]
        return BadInput("RUN", wanted, unknown_name_hint(wanted, names).replace("known", "a run that is alive", 1))
    stopped = [run for run in runs if run.is_stopped]
    if stopped:
        return BadInput("RUN", wanted, f"does not answer: process {stopped[0].pid} {stopped[0].refused}")
    return BadInput("RUN", wanted, "is not alive: no run of yours is")


def choose_up(wanted: str) -> tuple[LiveRun, list[str]]:
    """Return the live run of this name and the nodes of its fabric. BadInput for no such run, or no fabric."""
    run = choose(wanted, find())
    if not (nodes := run.nodes):
        raise BadInput("RUN", run.name, NO_FABRIC)
    return run, nodes


def run_inside(
    run: LiveRun, command: Sequence[str], variables: Mapping[str, str], node: str | None = None, most: int | None = None
) -> int:
    """Run a command in a live run's sandbox, in the network of a node, or (None) of its process 1; return its status.

    In another user's run it has that user's credentials. `most`: bytes of a file that it writes.
    """
    assert run.entry is not None, "`choose` returns no run that is refused"
    return entry.run(run.entry, run.name, command, node, variables, most)


def print_table(runs: Sequence[LiveRun], console: Console) -> None:
    """Print a row for each run, and to standard error a line for each that is refused."""
    table = plain_table("RUN", "EXPERIMENT", "PID", "USER", "FOR", "FABRIC", "FOLDER")
    for run in runs:
        if run.refused:
            print(f"{run.name} {run.refused} (process {run.pid} of {run.user})", file=sys.stderr)
            continue
        # GPUs are d0g0, nodes of many rails n0
        hosts = Counter(node[0] for node in run.nodes if node[1:2].isdigit())
        fabric = ", ".join(f"{hosts[first]} {noun}" for first, noun in _HOSTS.items() if hosts[first]) or "none up"
        lasted = format_time(max(1.0, time.time() - run.started_s), 3)
        row = (run.name, run.experiment, str(run.pid), run.user, lasted, fabric, run.where)
        # Text, since a name may look like markup
        table.add_row(*map(Text, row))
    nothing = "no other run is alive" if runs else "no run is alive"
    console.print(table if table.row_count else nothing)


def live_run_names() -> list[str]:
    """Return the names of the runs that are alive, for the shell to complete.

    Without those that a shell would take for more than a word: a user could have another's command line run something.
    """
    return [run.name for run in find() if _WORD.fullmatch(run.name)]


def node_names(wanted: str) -> list[str]:
    """Return the GPUs and switches of a live run, for the shell to complete; none if there is no such run."""
    try:
        return choose(wanted, find()).nodes
    except RailyardError:
        return []


def as_plain(run: LiveRun) -> dict[str, object]:
    """Return a run as plain data, for --json. `refused`: why it may not be entered, "" if it may."""
    names = ("name", "experiment", "pid", "user", "started_s", "where", "refused", "nodes")
    return {name: getattr(run, name) for name in names}


def command(as_json: Annotated[bool, typer.Option("--json", help="Print the runs as JSON.")] = False) -> None:
    """List the runs that are alive now."""
    if as_json:
        print(json.dumps(list(map(as_plain, find())), indent=1))
    else:
        print_table(find(), console())
