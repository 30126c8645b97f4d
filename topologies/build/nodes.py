"""Mininet nodes whose namespace exists before them, and whose shell starts with the first command."""

from subprocess import Popen
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Node

from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.build import namespaces


class NamespaceNode(Node):
    """A node in the named namespace. `cmd`, `popen` and the CLI work as on any Mininet node."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **{**params, "inNamespace": False})  # "False": mnexec is not to make another one

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


class GpuNode(NamespaceNode):
    """A GPU: d<domain>g<rank>, with `hb0` into its HB domain and `rail0` into its rail."""

    def IP(self, intf: object = None) -> str:  # noqa: N802
        """Return its one address, the same on every interface."""
        return gpu_of_name(self.name).ip


class SwitchNode(NamespaceNode):
    """A rail switch, a spine, or an HB domain's bridge."""

    def start(self, controllers: object) -> None:
        """Do nothing: the switch was started with the fabric."""

    def connected(self) -> bool:
        """Return True: a fabric is started only when every switch has its flows."""
        return True


class PlannedIntf(Intf):
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
        self.ip, self.prefixLen = ip, prefix_bits

    def updateIP(self) -> str | None:  # noqa: N802
        """Return its address by the plan: a GPU's is on lo, so Mininet would not find it here."""
        return str(self.ip) if self.ip else None

    def config(self, **_: object) -> dict[str, object]:
        """Nothing: it is up and has its MAC."""
        return {}


class PlannedLink(Link):
    """A cable that is there already."""

    def __init__(self, first: PlannedIntf, second: PlannedIntf) -> None:
        first.link = second.link = self
        self.intf1, self.intf2 = first, second
