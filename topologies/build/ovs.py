"""One Open vSwitch for each switch: its own ovsdb-server and ovs-vswitchd, in the switch's namespace and folder.

Killing a switch is then a signal to a real process, and no switch shares fate with another, with another run, or with
the machine's own OVS. Two vswitchd in one namespace would clash over the `ovs-netdev` tap; here each has a namespace
to itself.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.host import Datapath
from railyard.core.wait import poll
from railyard.topologies.build import namespaces

OVS_DIR: Final = Path("/run/railyard-ovs")
EMPTY_DATABASE: Final = OVS_DIR / "empty.db"
SCHEMA: Final = Path("/usr/share/openvswitch/vswitch.ovsschema")
CONTROLLER_PORT: Final = 6653  # of 127.0.0.1, in the switch's own namespace
START_S: Final = 20.0
# a real switch forwards in hardware, and queues behind no program of a GPU
FORWARDING_NICENESS: Final = -10


def prepare() -> None:
    """Make the empty switch database that each switch copies. Once, before any switch starts."""
    OVS_DIR.mkdir(parents=True, exist_ok=True)
    if not EMPTY_DATABASE.exists():
        namespaces.run(["ovsdb-tool", "create", str(EMPTY_DATABASE), str(SCHEMA)])


def set_controller_port(switch: str, port: int) -> None:
    """Set the port of a switch's controller in its database: the switch connects at once.

    A crashed switch reads of it when it starts again.
    """
    # A switch whose controller was gone tries again only once a second (max_backoff; no less is allowed). It is one
    # transaction, so that the switch is never without a controller, which would flush its flows.
    database = f"--db=unix:{OVS_DIR / switch}/db.sock"
    target = f'target="tcp:127.0.0.1:{port}"'
    argv = ["ovs-vsctl", "--no-wait", database, "set", "controller", switch, target]
    namespaces.run(argv, name=f"ovs-vsctl of {switch}")


def wake_vswitchd(switch: str) -> None:
    """Make a switch that was called look whether its controller has greeted it. Returns at once, whatever it does."""
    # Open vSwitch 3.1 doesn't wait for that greeting (poll(2) in the state CONNECTING lacks the connection), and an
    # idle switch would see it up to 500 ms late, when its next look at old flows is due. Any connection wakes it.
    with socket.socket(socket.AF_UNIX) as management_socket:
        management_socket.setblocking(False)
        management_socket.connect_ex(str(OVS_DIR / switch / f"{switch}.mgmt"))


def is_listening(path: Path) -> bool:
    """Return whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


# ovs-vswitchd takes buffers of 64 KB for every wake-up and frees them: glibc then shrinks the heap, and the next packet
# pays for page faults. Measured: half of the CPU time of a switch at 1,000 packets/s. A heap that stays costs 4 MB.
MALLOC_ENVIRONMENT: Final = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_TOP_PAD_": str(4 << 20)}
# It would look through all interfaces for its tunnels' routes whenever a port changes, and forward nothing meanwhile:
# some milliseconds where there are many ports. There are no tunnels here.
NO_ROUTES: Final = "--disable-system-route"
QUIET: Final = ("--verbose=console:off", "--verbose=syslog:off", "--verbose=file:warn")


@dataclass
class PrivateSwitch:
    """The two processes of one switch. `start` needs its namespace and its interfaces to be there.

    `ports`: the OpenFlow port number that each interface shall have.
    """

    name: str
    dpid: int
    ports: Mapping[str, int]
    datapath: Datapath
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    watched: dict[str, watch.Watched] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of its database, sockets and logs."""
        return OVS_DIR / self.name

    @property
    def vswitchd_pid(self) -> int:
        """PID of its ovs-vswitchd."""
        return self.processes["ovs-vswitchd"].pid

    def setup_command(self) -> list[str]:
        """Return one ovs-vsctl transaction: the bridge, its ports with their numbers, its controller, but no flows."""
        name = self.name
        kind = "system" if self.datapath == "system" else "netdev"
        arguments = ["set", "Open_vSwitch", ".", "other_config:n-handler-threads=1"]
        arguments += ["other_config:n-revalidator-threads=1"]
        if self.datapath == "netdev-tso":
            arguments += ["other_config:userspace-tso-enable=true"]
        arguments += ["--", "add-br", name, "--", "set", "bridge", name, f"datapath_type={kind}"]
        arguments += ["protocols=OpenFlow13", "fail_mode=secure", f"other_config:datapath-id={self.dpid:016x}"]
        arguments += ["other_config:disable-in-band=true"]
        arguments += ["--", "set-controller", name, f"tcp:127.0.0.1:{CONTROLLER_PORT}"]
        arguments += ["--", "set", "controller", name]
        arguments += ["connection_mode=out-of-band", "inactivity_probe=0", "max_backoff=1000"]
        # a port without this record would lose its shaper: ovs-vswitchd resets the qdiscs of all interfaces that it
        # takes up, but those marked linux-noop
        arguments += ["--", "--id=@hands-off", "create", "qos", "type=linux-noop"]
        for interface, number in self.ports.items():
            arguments += ["--", "add-port", name, interface, "--", "set", "interface", interface]
            arguments += [f"ofport_request={number}", "--", "set", "port", interface, "qos=@hands-off"]
        return arguments

    def start_database(self) -> None:
        """Start ovsdb-server on a fresh copy of the empty database, in the switch's namespace."""
        self.folder.mkdir(parents=True)
        shutil.copy(EMPTY_DATABASE, self.folder / "conf.db")
        path = self.folder / "db.sock"
        self._spawn("ovsdb-server", ["conf.db", f"--remote=punix:{path}", f"--unixctl={self.folder}/ovsdb.ctl"])
        database = self.watched["ovsdb-server"]
        poll(lambda: is_listening(path) or database.is_over(), START_S, 0.002)
        if not is_listening(path):
            raise self.start_failure("ovsdb-server")

    def start(self) -> None:
        """Write the configuration, then start the switch, which takes it all up at once. In the switch's namespace."""
        self.vsctl("--no-wait", "init", "--", *self.setup_command())
        self.start_vswitchd()

    def start_vswitchd(self) -> None:
        """Start ovs-vswitchd on the database, also after a crash. In the switch's namespace."""
        database = f"unix:{self.folder}/db.sock"
        control = f"--unixctl={self.folder}/vswitchd.ctl"
        self._spawn("ovs-vswitchd", [database, control, NO_ROUTES])
        # an ordinary user may not
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self.vswitchd_pid, FORWARDING_NICENESS)

    def start_failure(self, program: str) -> RailyardError:
        """Return the error for a program that does not listen in time: ProcessMissing if a signal ended it."""
        name = self.watched[program].name
        died = self.watched[program].died
        if died.startswith("died (signal"):
            return watch.ProcessMissing(f"{name} {died}")
        log = self.folder / f"{program}.log"
        log_tail = log.read_text().strip().splitlines()[-1:] if log.exists() else []
        return RailyardError(f"{name} did not start{''.join(f': {line}' for line in log_tail)}")

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl on its database."""
        argv = ["ovs-vsctl", f"--db=unix:{self.folder}/db.sock", *arguments]
        return namespaces.run(argv, name=f"ovs-vsctl of {self.name}")

    def kill(self) -> None:
        """Crash it, in its namespace: SIGKILL to ovs-vswitchd. The database stays, as a switch's flash does."""
        self.signal(signal.SIGKILL)
        self.processes["ovs-vswitchd"].wait()
        # the kernel's datapath would go on forwarding by itself, which no crashed switch does
        if self.datapath == "system":
            namespaces.run(["ovs-dpctl", "del-dp", "system@ovs-system"])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to ovs-vswitchd on purpose."""
        watch.send_signal(self.vswitchd_pid, number)

    def end(self) -> None:
        """Kill both processes, without waiting: each takes 0.2 s to let go of its ports, all of a fabric no longer."""
        for program, process in self.processes.items():
            self.watched[program].release()
            process.kill()

    def stop(self) -> None:
        """End both processes and remove their folder; what they leave in the namespace goes with it."""
        self.end()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(self, program: str, arguments: list[str]) -> None:
        environment = {**os.environ, "OVS_RUNDIR": str(self.folder), "OVS_LOGDIR": str(self.folder)}
        environment |= {"OVS_DBDIR": str(self.folder), **MALLOC_ENVIRONMENT}
        log = f"--log-file={self.folder}/{program}.log"
        self.processes[program] = subprocess.Popen(
            [program, *arguments, log, *QUIET, "--no-chdir"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.watched[program] = watch.add(f"{program} of {self.name}", self.processes[program].pid)
