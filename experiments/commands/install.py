"""`install`: install the system packages that Railyard needs; core/packages.sh has their list and installs them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.installation import INSTALL, data_file, python_extra

PURPOSE = "Set up machines"
WITHOUT_PYTHON_PACKAGES: Final = frozenset({"mininet", "sshd"})
"""Extras that are programs alone."""
SCRIPT: Final = str(data_file("core/packages.sh"))


def command(
    extras: Annotated[
        list[str],
        typer.Argument(
            metavar="[gloo] [mininet] [mpi] [record] [torchft]",
            default_factory=list,
            show_default=False,
            help="Also install allreduce engines to compare with, training programs, Mininet's default controller.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be installed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> int:
    """Install the system packages that Railyard needs, such as Open vSwitch: on Debian and Ubuntu, as root."""
    missing = subprocess.run(["bash", SCRIPT, "missing", *extras], stdout=subprocess.PIPE, text=True, check=False)
    if missing.returncode:
        return missing.returncode
    packages = missing.stdout.split()
    if packages:
        print(f"missing: {', '.join(packages)}")
    else:
        print("every program is installed")
    if packages and not dry_run:
        check_installable(packages, extras)
        if not yes and not confirmed():
            print("nothing was installed")
            return 1
        if status := subprocess.run(["bash", SCRIPT, "install", *packages], check=False).returncode:
            return status
    elif packages:
        print(f"would run: apt-get update; apt-get install -y --no-install-recommends {' '.join(packages)}")
    for extra in sorted({*extras} - WITHOUT_PYTHON_PACKAGES):
        print(f"the Python packages for {extra}: {python_extra(extra)}")
    return 0


def check_installable(packages: list[str], extras: list[str]) -> None:
    """MissingRequirement unless this is Debian or Ubuntu, and the user is root."""
    if not Path("/usr/bin/apt-get").exists():
        problem = f"missing: {', '.join(packages)}; this is neither Debian nor Ubuntu"
        raise MissingRequirement(problem, "install them with this system's package manager")
    if os.geteuid() != 0:
        raise MissingRequirement("installing needs root", " ".join([INSTALL, *extras]))


def confirmed() -> bool:
    """Ask on the terminal. BadInput where there is none."""
    if not sys.stdin.isatty():
        raise BadInput("--yes", False, "must be given where there is no terminal to ask on")
    try:
        return input("install them? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
