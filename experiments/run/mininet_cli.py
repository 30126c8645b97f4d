"""Mininet's command line on a built fabric, which no command can end by an error."""

import re
import sys
from collections.abc import Mapping

from mininet.cli import CLI
from mininet.log import error

from railyard.core.errors import RailyardError
from railyard.topologies.build.network import EmulatedNet


class FabricCli(CLI):  # type: ignore[misc]
    """Mininet's CLI, reading from this process's standard input until `exit`.

    `hosts`: other names of nodes, which commands may use; the nodes' names by these.
    """

    def __init__(self, net: EmulatedNet, hosts: Mapping[str, str] | None = None) -> None:
        self._hosts = hosts or {}
        # the CLI would leave a history file in the home folder
        CLI.readlineInited = True
        # the default is the standard input of the time at which Mininet was loaded
        super().__init__(net, stdin=sys.stdin)

    def onecmd(self, line: str) -> bool:
        """Run a command; an error in it is printed in one line, and the session goes on."""
        for host, node in self._hosts.items():
            line = re.sub(rf"(?<!\S){re.escape(host)}(?!\S)", node, line)
        try:
            return bool(super().onecmd(line))
        except RailyardError as problem:
            error(f"{problem}\n")
        # Mininet's commands check few of their arguments
        except Exception as problem:
            error(f"{line.split(maxsplit=1)[0]}: {type(problem).__name__}: {problem}\n")
        return False
