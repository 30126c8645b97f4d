"""A run's part on another machine, in a sandbox there: `python -m railyard.experiments.machines.part`, started by the
agent (agent.py), with the connection to the run.
"""

import os
import select
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from railyard.controller.processes.clients import listeners
from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.host import Datapath, datapath_choice, detect, raise_open_file_limit, require
from railyard.core.host_load import LoadMeter
from railyard.core.installation import PROJECT, module_command
from railyard.core.remote import authenticate, relay, send_line, tuned
from railyard.core.sandbox import init
from railyard.core.worker import Parent, Ready
from railyard.experiments.machines import messages
from railyard.experiments.machines.faults import act
from railyard.failure.active import Operator
from railyard.failure.analysis.state_snapshot import snapshot_state
from railyard.topologies.build import namespaces
from railyard.topologies.build.machine_part import PartNet, guarded, interface_bytes
from railyard.topologies.measure import rates
from railyard.topologies.measure.counters import count
from railyard.topologies.plan import Plan

DIAL_S = 10.0
FOLLOW_S = 0.2  # after which a process that has died is noticed
_LARGEST_DATAGRAM = 65_535


class RelayedController:
    """The controller as this machine's switches see it: what they send goes to the run's machine, and back."""

    user_app = ""  # refused on several machines

    def __init__(self, part: "Part") -> None:
        self._part = part
        self._listeners: list[socket.socket] = []

    def connect(self, plan: Plan) -> None:
        """Listen in each switch's namespace."""
        net = self._part.net
        assert net is not None
        self._listeners = listeners(net.ovs)
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def wait_ready(self) -> None:
        """Return at once: the run waits until all switches have their flows."""

    def stop(self) -> None:
        """Accept no more switches."""
        for listener in self._listeners:
            with suppress(OSError):
                # shutdown wakes the thread that accepts
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        # the connection may be closed, or the run over
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                relay(tuned(connection), self._part.dial({"role": "openflow"}))


class Part:
    """The part, and what is under way on it. `task`: what the agent gave (agent.py)."""

    def __init__(self, parent: Parent, task: dict[str, Any]) -> None:
        self._parent = parent
        self._machine_net: int = task["machine_net"]
        self._address = task["address"]
        self._run = (task["run"][0], task["run"][1])
        self._token = bytes.fromhex(task["token"])
        self.net: PartNet | None = None
        machine = detect()
        require(machine)
        self._datapath: Datapath = datapath_choice(machine)[0]
        self._closing, self._relaxed = ExitStack(), ExitStack()
        self._meter = LoadMeter()

    def dial(self, greeting: dict[str, Any]) -> socket.socket:
        """Return a new connection to the run."""
        with namespaces.inside_machine(self._machine_net):
            sock = socket.create_connection(self._run, DIAL_S, source_address=(self._address, 0))
        authenticate(sock, self._token, caller=True)
        send_line(sock, greeting)
        return tuned(sock)

    def execute(self, command: messages.ToPart) -> None:
        """Execute a command and reply."""
        self._parent.send(self._reply(command) or Ready())

    def _reply(self, command: messages.ToPart) -> Any:
        match command:
            case messages.Prepare():
                return self._prepare(command)
            case messages.Build():
                return self._build(command)
            case messages.RelaxTimers() if self.net is None or not command.on:
                self._relaxed.close()
            case messages.Meter(on=True, late_s=late_s):
                self._meter = LoadMeter(late_s)
                self._meter.__enter__()
            case messages.Meter():
                return self._metered()
            case messages.StartWorker(number=number, module=module, name=name):
                return messages.Started(pid=self._start_worker(number, module, name))
            case messages.ReadClock():
                return messages.Clock(ns=time.monotonic_ns())
            case messages.ServeIperf(gpu=gpu, ip=ip):
                rates.start_server(gpu, ip)
            case messages.ServeEcho(gpu=gpu, ip=ip):
                with namespaces.inside(gpu):
                    return messages.Port(number=_echo(ip))
            case _:
                if self.net is None:
                    raise RailyardError(f"{command.__class__.__name__} came without a fabric")
                return self._reply_of_fabric(command, self.net)
        return None

    def _reply_of_fabric(self, command: messages.ToPart, net: PartNet) -> Any:
        """Execute a command that needs a fabric which is up."""
        match command:
            case messages.TakeDown():
                self._relaxed.close()
                net.stop()
                self.net = None
            case messages.RelaxTimers(longest_queue_s=queue_s):
                gpus = [host.name for host in net.hosts]
                self._relaxed.enter_context(namespaces.relaxed_tcp_timers(gpus, queue_s))
            case messages.ReadCounters():
                sent = interface_bytes(self._machine_net, self._underlay.interface)
                return messages.Counted(counters=count(net), underlay_bytes=sent)
            case messages.ActOnFault(operation=operation, fault=fault):
                return act(Operator(net), operation, fault)
            case messages.TakeSnapshot():
                return messages.Snapshot(state=dict(snapshot_state(net.node_names)))
            case _:
                raise AssertionError(f"{command.__class__.__name__} has no handler")
        return None

    def _prepare(self, command: messages.Prepare) -> messages.Port:
        self._underlay = command.underlay
        self._closing.enter_context(guarded(command.underlay, self._machine_net))
        with namespaces.inside_machine(self._machine_net):
            return messages.Port(number=_echo(self._address))

    def _build(self, command: messages.Build) -> messages.Built:
        relayed = RelayedController(self)
        self.net = PartNet(
            command.placement, self._underlay, self._machine_net, self._datapath, relayed, command.backups
        )
        self.net.start()
        return messages.Built(datapath=self.net.datapath, switch_buffers=self.net.switch_buffers)

    def _metered(self) -> messages.Metered:
        self._meter.__exit__()
        used_by_step = [(step.at, step.ours) for step in self._meter.steps]
        return messages.Metered(load=self._meter.load, own=used_by_step, own_s=self._meter.own_s)

    def _start_worker(self, number: int, module: str, name: str) -> int:
        sock = self.dial({"role": "worker", "number": number})
        process = subprocess.Popen(
            module_command(module, str(sock.fileno())),
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            pass_fds=[sock.fileno()],
        )
        watched = watch.add(name, process.pid, may_exit=True)
        _start_following(process, watched, sock)
        return process.pid


def _start_following(process: "subprocess.Popen[bytes]", watched: watch.Watched, sock: socket.socket) -> None:
    threading.Thread(target=_follow, args=(process, watched, sock), daemon=True).start()


def _follow(process: "subprocess.Popen[bytes]", watched: watch.Watched, sock: socket.socket) -> None:
    """Kill a process when the run closes its connection, which one that is stopped would not see.

    If it dies before, the run knows so before the connection ends, and it is missing until the run closes it.
    """
    closed = select.poll()
    closed.register(sock, select.POLLRDHUP)
    while not closed.poll(FOLLOW_S * 1000):
        if watched.is_over():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            closed.poll()
            break
    watched.release()
    process.kill()
    process.wait()
    sock.close()


def _echo(ip: str) -> int:
    """Send back what comes to a UDP port of an address of this thread's namespace, in a thread; return the port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # IP_MTU_DISCOVER, IP_PMTUDISC_DO: nothing is fragmented
    sock.setsockopt(socket.IPPROTO_IP, 10, 2)
    sock.bind((ip, 0))

    def answer() -> None:
        while True:
            data, peer = sock.recvfrom(_LARGEST_DATAGRAM)
            # the answer may be too long for this end
            with suppress(OSError):
                sock.sendto(data, peer)

    threading.Thread(target=answer, daemon=True).start()
    return int(sock.getsockname()[1])


def main() -> None:
    """Execute the run's commands until it ends."""
    task = init.prepare()
    init.install_signal_handlers()
    raise_open_file_limit()
    os.set_inheritable(task["machine_net"], False)
    os.set_inheritable(task["control"], False)
    parent = Parent(*messages.ToPart.__subclasses__(), sock=socket.socket(fileno=task["control"]))
    watch.announce(lambda interruption: parent.emit(messages.INTERRUPTION, asdict(interruption)))
    watch.forward(lambda pid, presence: parent.emit(messages.PRESENCE, {"pid": pid, **presence.state()}))
    watch.include_own_pauses()
    part = Part(parent, task)
    for command in parent:
        part.execute(command)


if __name__ == "__main__":
    main()
