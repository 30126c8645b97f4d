"""`agent`: let this machine take part in runs of another one."""

import socket
from math import inf
from typing import Annotated

import typer

PURPOSE = "Set up machines"


def command(
    join: Annotated[str, typer.Option(metavar="tcp://HOST:PORT", help="The run's address, as the run prints it.")],
    name: Annotated[str, typer.Option(help="This machine's name in results (default: its host name).")] = "",
    once: Annotated[bool, typer.Option("--once", help="End after one run.")] = False,
    within: Annotated[
        str, typer.Option(metavar="TIME", show_default=False, help="End if no run has taken it within this time.")
    ] = "",
) -> int:
    """Let this machine take part in runs that another machine starts with hosts: 2 or more.

    RAILYARD_TOKEN, the secret of these machines, must have the same value on all of them.
    """
    from railyard.core.errors import BadInput
    from railyard.core.units import parse_time

    # this import is slow, and help does without it
    from railyard.experiments.machines.agent import serve

    try:
        within_s = parse_time(within) if within else inf
    except ValueError as error:
        raise BadInput("--within", within, str(error)) from None
    return serve(join, name or socket.gethostname(), once, within_s)
