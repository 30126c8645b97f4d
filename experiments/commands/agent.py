"""`agent`: let this machine take part in runs of another one."""

import socket
from typing import Annotated

import typer


def command(
    join: Annotated[str, typer.Option(metavar="tcp://HOST:PORT", help="The run's address, as the run prints it.")],
    name: Annotated[str, typer.Option(help="This machine's name in results (default: its host name).")] = "",
    once: Annotated[bool, typer.Option("--once", help="End after one run.")] = False,
) -> int:
    """Let this machine take part in runs of another one with hosts: 2 or more. RAILYARD_TOKEN is their secret."""
    from railyard.experiments.machines.agent import serve  # slow to load

    return serve(join, name or socket.gethostname(), once)
