"""Mininet's command line on a built fabric, which no command can end by an error."""

import sys

from mininet.cli import CLI
from mininet.log import error

from railyard.core.errors import RailyardError
from railyard.topologies.build.network import EmulatedNet


class FabricCli(CLI):  # type: ignore[misc]
    """Mininet's CLI, reading from this process's standard input until `exit`."""

    def __init__(self, net: EmulatedNet) -> None:
        CLI.readlineInited = True  # or it would leave a history file in the home folder
        super().__init__(net, stdin=sys.stdin)  # the default is that of when the module was loaded

    def onecmd(self, line: str) -> bool:
        """Run a command; an error in it is printed in one line, and the session goes on."""
        try:
            return bool(super().onecmd(line))
        except RailyardError as problem:
            error(f"{problem}\n")
        except Exception as problem:  # Mininet's commands check few of their arguments
            error(f"{line.split(maxsplit=1)[0]}: {type(problem).__name__}: {problem}\n")
        return False
