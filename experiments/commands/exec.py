"""`exec`: run a command in a GPU or switch of a live run."""

from typing import Annotated, Final

import typer

from railyard.experiments.commands import ps
from railyard.experiments.commands.options import LiveRunName

CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def command(
    run: LiveRunName,
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="d0g1, or a switch: rail1.")],
    arguments: Annotated[list[str], typer.Argument(metavar="CMD...", help="The command to run there.")],
) -> None:
    """Run a command in a GPU or switch of a live run, from another terminal."""
    ps.execute(run, gpu, arguments)
