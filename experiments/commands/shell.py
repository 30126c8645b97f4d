"""`shell`: Mininet's command line on a built fabric."""

import re
from functools import partial
from typing import Annotated, Final

import typer

from railyard.core.errors import BadInput
from railyard.core.sandbox import launcher
from railyard.core.sandbox.hidden import files_meant
from railyard.experiments.options import (
    ControllerApp,
    Live,
    OptionalName,
    Overrides,
    PluginFiles,
    SaveScript,
    Topo,
    experiment_of,
)
from railyard.experiments.spec.loading import load_any

PURPOSE = "Run experiments"
# a number would be taken for a pid, and a slash for a path
_RUN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def command(
    overrides: Overrides,
    name: OptionalName = "",
    topo: Topo = "",
    controller: ControllerApp = None,
    run_name: Annotated[
        str, typer.Option("--name", metavar="RUN", help="Name for `ps` and `exec`, if not shell-NAME.")
    ] = "",
    live: Live = None,
    save_script: SaveScript = None,
    *,
    plugin_files: PluginFiles,
) -> int:
    """Build an experiment's first fabric, with its controller, and open Mininet's command line on it."""
    # slow to load, and shell completion needs neither
    from railyard.experiments.live.launch import opened_page
    from railyard.experiments.machines.joining import refuse_several
    from railyard.experiments.run.sandboxed import check_machine, own_command

    if run_name and not _RUN_NAME.fullmatch(run_name):
        raise BadInput("--name", run_name, "must have 1 to 64 letters, digits and ._-, a letter or _ first")
    load = partial(load_any, experiment_of(name, topo), topo=topo, controller=controller)
    try:
        spec = load(overrides)
    except BadInput as error:
        if not error.field.startswith(("faults.", "scripts.")):
            raise
        # a shell injects no faults, so those of the file need not suit the fabric
        spec = load([*overrides, "faults=[]", "scripts=[]"])
    refuse_several(spec, "shell")
    check_machine(spec)
    run = f"{spec.name} {run_name or f'shell-{spec.name}'}"
    with opened_page(live, save_script) as page:
        task = {"do": "shell", "spec": spec.resolved(), "extensions": page.extensions}
        visible = files_meant(task["spec"])
        return launcher.enter(own_command(), task, run=run, interactive=True, visible=visible, inherited=page.fds)
