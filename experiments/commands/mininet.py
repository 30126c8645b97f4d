"""`mininet`: run a script of stock Mininet in a sandbox, with an Open vSwitch of its own."""

import shutil
from pathlib import Path
from typing import Annotated, Final

import typer

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.host import datapath_choice, detect, require
from railyard.core.installation import INSTALL, PROJECT, module_command
from railyard.core.safe_files import real_path
from railyard.core.sandbox import launcher
from railyard.core.sandbox.hidden import check_visible

PURPOSE = "Run experiments"
CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def command(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file that uses Mininet's API.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS...", help="Arguments of the script.")
    ] = None,
) -> int:
    """Run a script of stock Mininet, unchanged, in a sandbox: it touches nothing of the machine and leaves nothing."""
    if not script.is_file():
        raise BadInput("SCRIPT", str(script), "must be a Python file")
    check_visible("SCRIPT", script)
    machine = detect()
    require(machine)
    if not (shutil.which("controller") or shutil.which("ovs-testcontroller")):
        raise MissingRequirement("this machine lacks Mininet's default controller", f"{INSTALL} mininet")
    path = real_path(script)
    datapath, reason = datapath_choice(machine)
    task: dict[str, object] = {"script": str(path), "arguments": list(arguments or []), "folder": str(Path.cwd())}
    task |= {"datapath": datapath, "datapath_reason": reason, "has_netem": "netem" in machine.qdiscs}
    program = module_command("railyard.experiments.run.mininet_script")
    run = f"mininet {path.name}"
    return launcher.enter(program, task, run=run, interactive=True, visible=[path.parent], folder=PROJECT)
