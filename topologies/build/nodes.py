"""Mininet's nodes and links for what a plan has built: `cmd`, `popen` and the CLI work on them as on Mininet's own.

Nothing here makes a namespace or an interface; network.py does, in batches, before these objects exist.
"""

import json
from subprocess import Popen
from typing import Any

from railyard.topologies.build import namespaces
from railyard.topologies.build.mininet_import import without_setuptools
from railyard.topologies.build.ovs import PrivateSwitch

with without_setuptools():
    from mininet import link as mininet_link
    from mininet.log import error as mininet_error
    from mininet.node import Node


class NamespaceNode(Node):
    """A node in the named namespace."""

    def __init__(self, name: str, **params: Any) -> None:
        # "False": mnexec is not to make another one
        super().__init__(name, **{**params, "inNamespace": False})

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 (Mininet's name)
        """Postpone the shell: 128 idle ones take seconds to start."""

    def sendCmd(self, *args: Any, **kwargs: Any) -> None:  # noqa: N802
        """Start the shell, if need be, and send a command."""
        self._need_shell()
        super().sendCmd(*args, **kwargs)

    def cmd(self, *args: Any, **kwargs: Any) -> Any:
        """Start the shell, if need be, and run a command."""
        self._need_shell()
        return super().cmd(*args, **kwargs)

    def popen(self, *args: Any, **kwargs: Any) -> Any:
        """Start a process in the namespace."""
        return super().popen(*args, **{"mncmd": self._prefix(), **kwargs})

    def _need_shell(self) -> None:
        if self.shell is None:
            super().startShell()

    def _prefix(self) -> list[str]:
        return ["nsenter", f"--net={namespaces.path(self.name)}"]

    def _popen(self, cmd: list[str], **params: Any) -> "Popen[bytes]":
        if cmd[0] == "mnexec":
            cmd = [*self._prefix(), *cmd]
        process: Popen[bytes] = super()._popen(cmd, **params)
        return process


class SwitchNode(NamespaceNode):
    """A switch of the network, or the bridge of an HB domain, which has no Open vSwitch (`switch` is None)."""

    def __init__(self, name: str, switch: PrivateSwitch | None = None, **params: Any) -> None:
        super().__init__(name, **params)
        self._switch = switch
        self._is_stopped = False

    def start(self, controllers: object) -> None:
        """Start the switch again after `stop`. It was started with the fabric."""
        if self._switch is not None and self._is_stopped:
            with namespaces.inside(self.name):
                self._switch.start_vswitchd()
            self._is_stopped = False

    def stop(self, deleteIntfs: bool = False) -> None:  # noqa: N803 (Mininet's name)
        """Kill the switch's ovs-vswitchd, as a crash does. A bridge can't be stopped."""
        if self._switch is None:
            mininet_error(f"{self.name} is a Linux bridge, which can't be stopped: `link` cuts its links\n")
        elif not self._is_stopped:
            with namespaces.inside(self.name):
                self._switch.kill()
            self._is_stopped = True

    def connected(self) -> bool:
        """Return True: a fabric is started only when every switch has its flows."""
        return True

    def dpctl(self, *args: str) -> str:
        """Return what ovs-ofctl prints for a command, such as dump-flows, at this switch."""
        if self._switch is None:
            return "a Linux bridge, without OpenFlow\n"
        command, *arguments = args
        target = f"unix:{self._switch.folder}/{self.name}.mgmt"
        output, errors, _ = self.pexec(["ovs-ofctl", "-O", "OpenFlow13", command, target, *arguments])
        return str(output + errors)


class PlannedIntf(mininet_link.Intf):
    """An interface that is in its namespace already."""

    def __init__(
        self,
        name: str,
        node: Node,
        port: int | None,
        mac: str | None = None,
        ip: str | None = None,
        prefix_bits: int | None = None,
    ) -> None:
        super().__init__(name, node=node, port=port, mac=mac, moveIntfFn=lambda *_: None)
        self.ip = ip
        self.prefixLen = prefix_bits

    def updateIP(self) -> str | None:  # noqa: N802
        """Return its address by the plan: a GPU's is on lo, so Mininet would not find it here."""
        return str(self.ip) if self.ip else None

    def config(self, **_: object) -> dict[str, object]:
        """Nothing: it is up and has its MAC."""
        return {}

    def isUp(self, setUp: bool = False) -> bool:  # noqa: N802
        """Return whether it is up and has a carrier. `setUp`: set it up first."""
        if setUp:
            self.node.pexec(["ip", "link", "set", self.name, "up"])
        return self.status() == "up"

    def status(self) -> str:
        """Return `up`, `down`, `no carrier` or `missing`. Mininet's own says OK of all that exist."""
        output, _, _ = self.node.pexec(["ip", "-json", "link", "show", "dev", self.name])
        try:
            flags = json.loads(output)[0]["flags"]
        except (ValueError, IndexError, KeyError):
            return "missing"
        if "UP" not in flags:
            return "down"
        return "no carrier" if "NO-CARRIER" in flags else "up"


class PlannedLink(mininet_link.Link):
    """A cable that is there already."""

    def __init__(self, first: PlannedIntf, second: PlannedIntf) -> None:
        first.link = second.link = self
        self.intf1 = first
        self.intf2 = second

    def __str__(self) -> str:
        ends = (self.intf1, self.intf2)
        # with their nodes, since an interface is named after what it leads to
        return "<->".join(f"{end.node.name}-{end.name}" for end in ends)

    def status(self) -> str:
        """Return the state of both ends, such as `(up, no carrier)`."""
        return f" ({self.intf1.status()}, {self.intf2.status()})"
