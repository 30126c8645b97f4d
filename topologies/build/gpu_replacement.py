"""A spare takes a failed GPU's identity, once optical switches have given it that one's place in the network.

Source: Rail-only IV-C, "the optical switch reconfigures to bring a healthy, idle GPU to replace the failed one".
Peers of that rank reach the spare afterwards, by the same address and over the same rail, without any change at them.

The names of namespaces move with it, so that all that is addressed by rank finds the new one. The one that failed is
`<name>-failed`, and also has the spare's name: each name of the plan goes on naming a namespace, and only one.
"""

import os
import subprocess
from contextlib import suppress
from subprocess import PIPE
from typing import Final, Self

from railyard.core import watch
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan
from railyard.topologies.routing import FROM_HB, FROM_RAIL, route_commands

HIGH_PRIORITY_NICENESS: Final = -15  # niceness, the controller's


class GpuReplacement:
    """A replacement that is prepared: the programs that will carry it out run, and wait. To be closed in any case.

    ValueError for a spare in another domain whose HB link doesn't go through an optical switch.
    """

    def __init__(self, net: FabricNet, spare: Gpu, failed: Gpu) -> None:
        optical = net.plan.spec.optical
        self._hb_is_optical = bool(optical and "hb" in optical.layers)
        if spare == failed or (spare.domain != failed.domain and not self._hb_is_optical):
            raise ValueError(f"{spare.name} can't take the place of {failed.name}")
        self._net = net
        self._spare = spare
        self._failed = failed
        self._batches = [(_start_batch(spare.name, "ip"), identity_commands(net.plan, spare, failed, net.backups))]
        if not self._hb_is_optical:
            # else the place at the bridge is the failed one's
            entry = f"fdb replace {failed.mac('hb')} dev {spare.name} master static\n"
            self._batches.append((_start_batch(f"hb{failed.domain}", "bridge"), entry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _commands in self._batches:
            # closes its pipes, and waits for it
            with process:
                process.kill()

    def apply_identity(self) -> None:
        """Give the spare its new addresses and routes, at any time. RailyardError with the output of `ip`."""
        # all have their commands before one is awaited, so that they run concurrently
        for process, commands in self._batches:
            assert process.stdin
            # its output is read below
            with suppress(BrokenPipeError):
                process.stdin.write(commands)
                process.stdin.close()
            process.stdin = None
        for process, _commands in self._batches:
            watch.communicate(process, f"{self._spare.name} takes the place of {self._failed.name}: ip or bridge")

    def apply_name(self) -> None:
        """Let the spare's namespace have the failed one's name."""
        failed = self._failed.name
        spare = self._spare.name
        failed_name = f"{self._failed.name}-failed"
        for node in (self._net.nameToNode[failed], self._net.nameToNode[spare]):
            if node.shell:
                # in the namespace that had this name
                node.terminate()
        namespaces.add_name(failed, failed_name)
        namespaces.add_name(spare, failed)
        namespaces.add_name(failed_name, spare)
        self._net.extra_names.add(failed_name)


def identity_commands(plan: Plan, spare: Gpu, failed: Gpu, backups: bool) -> str:
    """Input for `ip -batch -` at the spare: neighbours go with its MACs, routes of the main table with its address."""
    lines = [
        f"link set hb0 address {failed.mac('hb')}",
        f"link set rail0 address {failed.mac('rail')}",
        f"addr del {spare.ip}/32 dev lo",
        f"addr add {failed.ip}/32 dev lo",
        f"route flush table {FROM_HB}",
        f"route flush table {FROM_RAIL}",
    ]
    return "\n".join(lines) + "\n" + route_commands(plan, failed, backups)


def _start_batch(node: str, program: str) -> subprocess.Popen[str]:
    """Start `ip -batch` or `bridge -batch` in a namespace, before others: a GPU that takes over has its processor."""
    command = [program, "-batch", "-"]
    with namespaces.inside(node):
        process = subprocess.Popen(command, stdin=PIPE, stdout=subprocess.DEVNULL, stderr=PIPE, text=True)
    # an ordinary user may not
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process.pid, HIGH_PRIORITY_NICENESS)
    return process
