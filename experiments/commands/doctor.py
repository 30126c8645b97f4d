"""`doctor`: what this machine can do, and how many frames a second its switches carry, measured in a sandbox."""

import subprocess
from typing import Final

from rich.console import Console

from railyard.core import provenance
from railyard.core.errors import MissingRequirement
from railyard.core.host import datapath_choice, detect, require
from railyard.core.installation import PROJECT, module_command

TIMEOUT_S: Final = 60.0


def command() -> int:
    """Show what this machine can do, and how to get the rest. Exit status 3 if nothing runs here yet."""
    from railyard.experiments.commands.options import console

    machine, runs = detect(), True
    try:
        require(machine)
    except MissingRequirement:
        runs = False
    with Console(stderr=True).status("measuring the switches"):
        frames = frames_per_s() if runs else None
    provenance.print_machine(machine, console(), frames)
    return 0 if runs else 3


def frames_per_s() -> float | None:
    """Return the full frames a second through a switch; None if they could not be measured. Takes about 4 s."""
    argv = module_command("railyard.core.sandbox", *module_command("railyard.experiments.commands.doctor"))
    try:
        done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        return float(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None


def main() -> None:
    """Print the figure, in the sandbox."""
    from railyard.controller.processes.clients import ControllerProcess
    from railyard.topologies.measure import rates

    datapath, _ = datapath_choice(detect())
    print(rates.measure(datapath, ControllerProcess()))


if __name__ == "__main__":
    main()
