"""`ps`: the runs that are alive."""

from railyard.experiments.commands import live
from railyard.experiments.commands.options import console


def command() -> None:
    """List the runs that are alive now."""
    live.print_table(live.find(), console())
