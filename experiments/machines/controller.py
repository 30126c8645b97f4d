"""The controller of a fabric on several machines."""

import socket
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from railyard.controller.processes.clients import ControllerProcess
from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.worker import OnEvent, Ready, Worker
from railyard.experiments.machines import messages
from railyard.experiments.machines.cluster import Cluster
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import carrier
from railyard.topologies.plan import Plan

BUILD_S: Final = 300.0
CARRIERS: Final = "the carriers of cables"
ROUTES: Final = "railyard.controller.processes.routes_main"


class ClusterController(ControllerProcess):
    """The controller of a fabric on several machines, and the carriers of the cables between them.

    Its switches elsewhere connect to it through the parts, and its route agents there through connections of their own.
    """

    def __init__(self, cluster: Cluster, plan: Plan, reroute: bool, on_event: OnEvent) -> None:
        self._placement = cluster.place(plan)
        elsewhere = frozenset(node for node, machine in self._placement.machine_of.items() if machine)
        super().__init__(reroute, on_event, elsewhere)
        self._cluster = cluster
        self._carriers: list[Worker] = []

    def connect(self, plan: Plan) -> None:
        """Start the controller, and let all machines build their parts."""
        super().connect(plan)
        for machine in self._cluster.others:
            machine.send(messages.Build(placement=self._placement, backups=self._reroute))

    def wait_ready(self) -> None:
        """Return when all parts are there, all switches have their flows, and carriers are mirrored."""
        for machine in self._cluster.others:
            machine.receive(messages.Built, BUILD_S)
        super().wait_ready()
        sockets = [self._cluster.dial(machine, carrier.MODULE, CARRIERS) for machine in self._cluster.others]
        numbers = [sock.fileno() for sock in sockets]
        self._carriers = [Worker(carrier.MODULE, CARRIERS, Ready, pass_fds=numbers)]
        other_machines = tuple(enumerate(numbers, 1))
        self._carriers[0].open(carrier.Mirror(placement=self._placement, machine=0, peers=other_machines))
        for sock in sockets:
            sock.close()

    def stop(self) -> None:
        """End it, then take the parts down, whose switches it would else report as dead.

        A machine that is gone has nothing to take down.
        """
        while self._carriers:
            self._carriers.pop().end()
        super().stop()
        # the next fabric needs none of this one's processes
        with suppress(RailyardError), watch.unchecked():
            self._cluster.ask_all(messages.TakeDown(), within_s=60.0)

    def remote_agents(self) -> Mapping[socket.socket, frozenset[Gpu]]:
        """Start a route agent on each other machine; return the connections, with the GPUs there."""
        gpus_of_machines: dict[int, set[Gpu]] = defaultdict(set)
        for gpu in self._placement.plan.gpus:
            gpus_of_machines[self._placement.machine_of[gpu.name]].add(gpu)
        agents: dict[socket.socket, frozenset[Gpu]] = {}
        for number, machine in enumerate(self._cluster.others, 1):
            connection = self._cluster.dial(machine, ROUTES, "the route agents")
            agents[connection] = frozenset(gpus_of_machines[number])
        return agents
