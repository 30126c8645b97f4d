"""Provenance of a run's figures (machine, programs, libraries, the project's commit), and the output of `doctor`:
the machine's capabilities, what their absence rules out, and how to get them.
"""

import subprocess
from hashlib import sha256
from importlib import metadata
from typing import Any, Final

from rich.console import Console

from railyard.core import plugins
from railyard.core.errors import MissingRequirement
from railyard.core.host import Machine, capabilities, datapath_choice, require
from railyard.core.installation import IS_CHECKOUT, PROJECT
from railyard.core.units import format_size

LIBRARIES: Final = ("mininet", "os-ken", "pyroute2", "numpy", "pandas", "pyarrow", "pydantic", "matplotlib", "psutil")


def provenance(machine: Machine, datapath: str, reason: str, seed: int) -> dict[str, Any]:
    """Return plain data for provenance.json."""
    return {
        "kernel": machine.kernel,
        "cpu": machine.cpu_model,
        "cores": machine.cores,
        "root": machine.root,
        "ovs": machine.ovs_version,
        "datapath": datapath,
        "datapath_why": reason,
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "seed": seed,
        "plugins": {str(plugin.path): sha256(plugin.source).hexdigest() for plugin in plugins.loaded()},
        "git_commit": git_commit(),
        "git_changed": bool(_git("status", "--porcelain")),
    }


def git_commit() -> str:
    """Return the project's commit; nothing where this isn't a checkout."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    """Return git's output; nothing where this isn't a checkout, which may lie in one of other files."""
    if not IS_CHECKOUT:
        return ""
    command = ["git", "-c", f"safe.directory={PROJECT}", "-C", str(PROJECT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine_data(machine: Machine, packets_per_s: float | None) -> dict[str, Any]:
    """Return what `print_machine` prints as plain data. Capabilities by group: needed, faster, optional."""
    datapath, reason = datapath_choice(machine)
    return {
        "capabilities": {group: [row._asdict() for row in rows] for group, rows in capabilities(machine).items()},
        "kernel": machine.kernel,
        "cpu": machine.cpu_model,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "disk_free_bytes": machine.disk_free_bytes,
        "root": machine.root,
        "datapath": datapath,
        "datapath_why": reason,
        "packets_per_s": packets_per_s,
    }


def print_machine(machine: Machine, console: Console, packets_per_s: float | None) -> None:
    """Print the capabilities by group, with what the absence of each rules out and its remedy, and a closing line.

    `packets_per_s`: None if it was not measured.
    """
    title = {"needed": "Needed for every run", "faster": "Faster with", "optional": "For some experiments"}
    for group, rows in capabilities(machine).items():
        console.print(f"[bold]{title[group]}[/]")
        for row in rows:
            if row.found:
                mark = "[green]yes[/]"
            elif group == "needed":
                mark = "[red]no [/]"
            else:
                mark = "[yellow]no [/]"
            console.print(f"  {mark} {row.name:25}{row.detail}".rstrip(), highlight=False, soft_wrap=True)
            if not row.found:
                absent = f"{'':6}rules out: {row.rules_out}\n{'':6}get it by: {row.remedy}"
                # not folded to the width of the terminal: users copy remedies
                console.print(absent, highlight=False, markup=False, soft_wrap=True)
    rate = "not measured" if packets_per_s is None else f"{packets_per_s:,.0f} packets/s through its switches"
    facts = {
        "kernel": f"Linux {machine.kernel}",
        "CPU": f"{machine.cores:g} cores, {machine.cpu_model}",
        "memory": f"{format_size(machine.memory_bytes, 3)} free",
        "disk": f"{format_size(machine.disk_free_bytes, 3)} free",
        "capacity": rate,
    }
    console.print("[bold]This machine[/]")
    for name, fact in facts.items():
        console.print(f"{'':6}{name:25}{fact}", highlight=False, markup=False, soft_wrap=True)
    choice, reason = datapath_choice(machine)
    user = "root" if machine.root else "an ordinary user"
    conclusion = f"Runs work here, as {user}. Datapath: {choice} ({reason})."
    try:
        require(machine)
    except MissingRequirement as error:
        conclusion = f"Nothing runs here yet: {error}"
    console.print(conclusion, highlight=False, markup=False, soft_wrap=True)
