"""A user's script for stock Mininet, inside a sandbox with an Open vSwitch of its own: `railyard mininet SCRIPT`.

    launcher (commands/mininet.py) ── sandbox init: this program ── ovsdb-server, ovs-vswitchd, the script's own

The script runs in this process, unchanged. What it uses of Mininet and this machine can't do is replaced before it
starts, and a line on stderr says so: the kernel's datapath and the reference switch by Open vSwitch in userspace, the
reference controller by Open vSwitch's. Delays and losses are left out where the kernel lacks netem.
"""

import os
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from railyard.core import plugins
from railyard.core.errors import RailyardError
from railyard.core.host import Datapath
from railyard.core.sandbox import init
from railyard.experiments.run import reference_controller
from railyard.topologies.build import ovs, shared_ovs
from railyard.topologies.build.mininet_import import without_setuptools

with without_setuptools():
    from mininet import link, net, node

    from railyard.topologies.build.iperf import iperf

CONTROLLER: Final = "ovs-testcontroller"
# the controller ends at the first packet of a switch with OpenFlow 1.5
PROTOCOLS: Final = "OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13"
_PROGRAMS: Final = Path("/run/railyard/mininet-programs")  # before all others in PATH


def main() -> int:
    """Run the script of the task; return its exit status."""
    task = init.prepare()
    init.install_signal_handlers(interactive=True)
    shared_ovs.start(tso=task["datapath"] == "netdev-tso", options=[ovs.NO_ROUTES])
    for line in adapt(task["datapath"], task["datapath_reason"], task["has_netem"]):
        print(f"railyard: {line}", file=sys.stderr)
    os.chdir(task["folder"])
    return run_script(task["script"], task["arguments"])


def adapt(datapath: Datapath, reason: str, has_netem: bool) -> list[str]:
    """Replace in Mininet what this machine lacks; return a line for each replacement."""
    # Mininet would set sysctls of the whole machine
    net.Mininet.inited = True
    # Mininet's own waits for a report that today's iperf doesn't print
    net.Mininet.iperf = iperf
    notes = []
    forced = {}
    if datapath != "system":
        notes.append(f"switches use Open vSwitch in userspace ({reason})")
        forced["datapath"] = "user"
    _set_switch_defaults({"protocols": PROTOCOLS}, forced)
    if datapath != "system":
        _turn_checksum_offload_off()
    if shutil.which("ofdatapath") is None:
        notes.append("UserSwitch is Open vSwitch in userspace (the reference switch ofdatapath is not installed)")
        node.UserSwitch = partial(node.OVSSwitch, datapath="user")
    if not has_netem:
        notes.append("delay, jitter and loss of links are left out (this kernel lacks netem)")
        link.TCIntf.delayCmds = staticmethod(_no_delay)
    if controller := shutil.which(CONTROLLER):
        if shutil.which("controller") is None:
            notes.append(f"the reference controller is {CONTROLLER}")
        _replace_test_controller(controller)
    return notes


def _replace_test_controller(program: str) -> None:
    """Put a program before it in PATH that takes more than its 16 switches, also as the reference controller."""
    _PROGRAMS.mkdir(parents=True)
    replacement = _PROGRAMS / CONTROLLER
    replacement.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {reference_controller.__file__} {program} "$@"\n')
    replacement.chmod(0o755)
    # Mininet's default controller is the program `controller` of the reference implementation
    if shutil.which("controller") is None:
        (_PROGRAMS / "controller").symlink_to(replacement)
    os.environ["PATH"] = f"{_PROGRAMS}:{os.environ['PATH']}"


def _set_switch_defaults(defaults: Mapping[str, str], forced: Mapping[str, str]) -> None:
    stock: Callable[..., None] = node.OVSSwitch.__init__

    def make_switch(self: Any, name: str, *args: Any, **params: Any) -> None:
        stock(self, name, *args, **{**defaults, **params, **forced})

    node.OVSSwitch.__init__ = make_switch


def _turn_checksum_offload_off() -> None:
    """Let hosts finish checksums themselves, as the switch would pass unfinished ones on."""
    # In userspace with TSO it does so for frames that pass through a controller, as the first of each connection does:
    # the receiver's kernel would drop these, and no connection would be made.
    stock: Callable[..., Any] = node.Host.config

    def configure(self: Any, **params: Any) -> Any:
        result = stock(self, **params)
        for interface in self.intfNames():
            self.cmd(f"ethtool -K {interface} tx off")
        return result

    node.Host.config = configure


def _no_delay(parent: str, **_: object) -> tuple[list[str], str]:
    return [], parent


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a Python file as `python SCRIPT ARGUMENTS` does; return its exit status."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except RailyardError as error:
        print(f"error: {Path(script).name}: {plugins.error_line(error, Path(script))}", file=sys.stderr)
        return 1
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return stop.code or 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
