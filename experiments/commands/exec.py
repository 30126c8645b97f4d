"""`exec`: run a command in a GPU or switch of a live run."""

from typing import Annotated, Final

import typer

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.experiments.commands import ps
from railyard.experiments.commands.ps import LiveRunName, complete_node
from railyard.topologies.build.ovs import OVS_DIR

CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def command(
    run: LiveRunName,
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="d0g1, or a switch: rail1.", autocompletion=complete_node)],
    arguments: Annotated[list[str], typer.Argument(metavar="CMD...", help="The command to run there.")],
) -> int:
    """Run a command in a GPU or switch of a live run, from another terminal."""
    chosen, nodes = ps.choose_up(run)
    if gpu not in nodes:
        raise BadInput("GPU", gpu, unknown_name_hint(gpu, nodes).replace("known", f"in {chosen.name}", 1))
    at = str(OVS_DIR / gpu)
    return ps.run_inside(chosen, arguments, {"OVS_RUNDIR": at, "OVS_DBDIR": at}, gpu)  # ovs-vsctl finds this switch
