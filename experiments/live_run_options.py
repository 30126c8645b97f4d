"""Arguments of commands that look into a live run. Runs are looked up only when a shell completes a word."""

from typing import Annotated

import typer

from railyard.experiments.options import completion


def live_run_names() -> list[str]:
    """Return the names of the runs that are alive."""
    from railyard.experiments.commands import ps

    return ps.live_run_names()


def complete_node(context: typer.Context, incomplete: str) -> list[str]:
    """Return the GPUs and switches of the live run that the command line names."""
    from railyard.experiments.commands import ps

    return [node for node in ps.node_names(context.params.get("run") or "") if node.startswith(incomplete)]


LiveRunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run that `ps` lists: its name, its experiment, or its pid.",
        autocompletion=completion(live_run_names),
    ),
]
