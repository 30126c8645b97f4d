"""One Open vSwitch for all switches, as a distribution's service starts it: where stock Mininet looks for it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from railyard.topologies.build import namespaces, ovs

RUNDIR: Final = Path("/run/openvswitch")
"""Open vSwitch's default folder. In a sandbox it is the run's own."""
_PROGRAMS: Final = ("ovsdb-server", "ovs-vswitchd")


def start(tso: bool = False, options: Sequence[str] = ()) -> list[int]:
    """Start both programs; return their process numbers when they are ready.

    `tso`: switches in userspace use TSO.
    `options`: more of ovs-vswitchd.
    """
    ovs.prepare()
    RUNDIR.mkdir(parents=True)
    database = RUNDIR / "conf.db"
    socket_path = RUNDIR / "db.sock"
    shutil.copy(ovs.EMPTY_DATABASE, database)
    _start("ovsdb-server", str(database), f"--remote=punix:{socket_path}")
    namespaces.run(["ovs-vsctl", "--no-wait", "init"])
    if tso:
        setting = "other_config:userspace-tso-enable=true"
        namespaces.run(["ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".", setting])
    _start("ovs-vswitchd", f"unix:{socket_path}", *options)
    return [int((RUNDIR / f"{program}.pid").read_text()) for program in _PROGRAMS]


def _start(program: str, *arguments: str) -> None:
    log = f"--log-file={RUNDIR}/{program}.log"
    # --detach returns when the program is ready
    namespaces.run([program, *arguments, "--pidfile", "--detach", log, *ovs.QUIET[:2]])
