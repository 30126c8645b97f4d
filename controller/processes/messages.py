"""Commands to the controller, agents and heartbeat processes, and their replies. GPUs are given by name ("d0g1").

Each command is derived from the class of its receiver. Events, which docstrings quote, go into the run's event log.
"""

from typing import Any

from pydantic import InstanceOf

from railyard.controller.agent.steering import Steering
from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.health.estimator import HealthSpec
from railyard.core.worker import Message
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import Layer
from railyard.topologies.plan import Plan


class ToController(Message):
    """A command to the controller. ConnectController is the first."""


class ConnectController(ToController):
    """Listen on these inherited sockets.

    `resume`: after a crash; event "controller-restarted" when it listens.

    `elsewhere`: the namespaces that are on other machines.
    `agents`: a connection to the route agent of each of them, and in `gpus_elsewhere` the GPUs there.
    `user_app`: the file of an app that decides how switches forward.
    """

    plan: InstanceOf[Plan]
    reroute: bool
    sockets: tuple[int, ...]
    resume: bool
    elsewhere: frozenset[str] = frozenset()
    agents: tuple[int, ...] = ()
    gpus_elsewhere: tuple[frozenset[Gpu], ...] = ()
    user_app: str = ""


class LearnInterfaces(ToController):
    """Read the GPUs' interfaces, which exist now: event "learned"."""


class ReadCounters(ToController):
    """Read the port counters of all switches: Counters for each."""


class Counters(Message):
    """The port counters of a switch, by port number and name."""

    switch: str
    ports: dict[int, dict[str, int]]


class AwaitSwitches(ToController):
    """After a restart: switches that don't connect within `seconds` count as dead. Event "controller-resumed"."""

    seconds: float


class ReplaceGpu(ToController):
    """Another GPU is in the place of this one: event "relearned"."""

    gpu: str


class SetSilence(ToController):
    """All that is silent by heartbeats now: the detail of the event "silence"."""

    silence: SilentComponents


class CrossConnect(ToController):
    """Cross-connect optical switches: events "optical-links-down", "optical-links-up" with `moves` and `layers`.

    `moves`: fibre to place, by GPU.
    `ports`: the same as {datapath id: {fibre: place}} in port numbers.
    """

    moves: dict[str, str]
    layers: tuple[Layer, ...]
    ports: dict[int, dict[int, int]]


class StartHealth(ToController):
    """Compute scores, and start the registry: event "registry"."""

    spec: InstanceOf[HealthSpec]


class StopHealth(ToController):
    """End scores and registry."""


class SetRegistry(ToController):
    """Kill the registry's server, or start it again: event "registry-crashed", "registry-restarted" or "-failed"."""

    up: bool


class ToRoutes(Message):
    """A command of the controller to the route agent on another machine. Each gets one reply."""


class LearnRoutes(ToRoutes):
    """Open netlink sockets in these GPUs, whose interfaces exist now: Ready."""

    plan: InstanceOf[Plan]
    gpus: frozenset[Gpu]


class ChangeRoutes(ToRoutes):
    """Change routes: RoutesChanged. `changes`: routes to remove and to put, by GPU, in this order."""

    changes: InstanceOf[dict]  # type: ignore[type-arg]


class RoutesChanged(Message):
    """`done`: how many changes are in force. `refused`: error number and text, by GPU."""

    done: int
    refused: dict[Gpu, tuple[int, str]]


class ReadRoutes(ToRoutes):
    """Read the routes of a metric at a GPU: Routes."""

    gpu: Gpu
    metric: int


class Routes(Message):
    """Routes by key; or why the kernel doesn't answer."""

    routes: InstanceOf[dict]  # type: ignore[type-arg]
    why: str = ""


class ToAgents(Message):
    """A command to the agents. ConnectAgents is the first."""


class ConnectAgents(ToAgents):
    """Open netlink sockets in all GPUs: event "connected"."""

    plan: InstanceOf[Plan]


class Steer(ToAgents):
    """Steer by a policy and the registry at `address`: event "steering" when all GPUs have their first routes.

    `stale_s`: seconds without a message after which scores are stale.
    `watched`: pairs whose choices become events.
    """

    steering: InstanceOf[Steering]
    address: str
    stale_s: float
    watched: frozenset[tuple[Gpu, Gpu]]


class Assign(ToAgents):
    """Give the oracle's policy other paths."""

    assigned: InstanceOf[dict[Any, Any]]


class Release(ToAgents):
    """Steer no more: event "released" when the GPUs have their base routes alone."""


class ToHeartbeats(Message):
    """A command to the heartbeat process. StartHeartbeats is the first."""


class StartHeartbeats(ToHeartbeats):
    """Send heartbeats each `period_s`, and report a component as silent after `multiplier` periods.

    Event "started" after the first round; "silence" with all that is silent, whenever that changes.
    """

    plan: InstanceOf[Plan]
    period_s: float
    multiplier: int


class ReadCost(ToHeartbeats):
    """Read what heartbeats cost: HeartbeatCost."""


class HeartbeatCost(Message):
    """Heartbeats since the start: each one that arrives crosses two links.

    `cpu_s`: CPU time of the sending process.
    """

    sent: int
    received: int
    cpu_s: float
    seconds: float
