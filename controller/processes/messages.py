"""Commands to the controller, agents and heartbeat processes, and their replies. GPUs are given by name ("d0g1").

Events, which docstrings quote, go into the run's event log.
"""

from typing import Any, Literal

from pydantic import InstanceOf

from railyard.controller.agent.steering import Steering
from railyard.controller.health.estimator import HealthSpec
from railyard.core.worker import Message
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import Layer


class ConnectController(Message):
    """Listen on these inherited sockets. `resume`: after a crash; event "controller-restarted" when it listens."""

    kind: Literal["connect-controller"] = "connect-controller"
    plan: InstanceOf[Plan]
    reroute: bool
    sockets: tuple[int, ...]
    resume: bool


class LearnInterfaces(Message):
    """Read the GPUs' interfaces, which exist now: event "learned"."""

    kind: Literal["learn"] = "learn"


class ReadCounters(Message):
    """Read the port counters of all switches: Counters for each."""

    kind: Literal["stats"] = "stats"


class Counters(Message):
    """The port counters of a switch, by port number and name."""

    kind: Literal["counters"] = "counters"
    switch: str
    ports: dict[int, dict[str, int]]


class AwaitSwitches(Message):
    """After a restart: switches that don't connect within `seconds` count as dead. Event "resumed"."""

    kind: Literal["await-switches"] = "await-switches"
    seconds: float


class ReplaceGpu(Message):
    """Another GPU is in the place of this one: event "relearned"."""

    kind: Literal["replace-gpu"] = "replace-gpu"
    gpu: str


class SetSilence(Message):
    """All that is silent by heartbeats now: the detail of the event "silence"."""

    kind: Literal["silence"] = "silence"
    silence: dict[str, Any]


class CrossConnect(Message):
    """Cross-connect optical switches: events "optical-links-down", "optical-links-up" with `moves` and `layers`.

    `moves`: fibre to place, by GPU; `ports`: the same as {datapath id: {fibre: place}} in port numbers.
    """

    kind: Literal["cross-connect"] = "cross-connect"
    moves: dict[str, str]
    layers: tuple[Layer, ...]
    ports: dict[int, dict[int, int]]


class StartHealth(Message):
    """Compute scores, and start the registry: event "registry"."""

    kind: Literal["start-health"] = "start-health"
    spec: InstanceOf[HealthSpec]


class StopHealth(Message):
    """Stop both."""

    kind: Literal["stop-health"] = "stop-health"


class CrashRegistry(Message):
    """Kill the registry's server: event "registry-crashed"."""

    kind: Literal["crash-registry"] = "crash-registry"


class RestartRegistry(Message):
    """Start the registry's server again: event "registry-restarted", or "registry-failed"."""

    kind: Literal["restart-registry"] = "restart-registry"


class ConnectAgents(Message):
    """Open netlink sockets in all GPUs: event "connected"."""

    kind: Literal["connect-agents"] = "connect-agents"
    plan: InstanceOf[Plan]


class Steer(Message):
    """Steer by a policy and the registry at `address`: event "steering" when all GPUs have their first routes.

    `stale_s`: seconds without a message after which scores are stale. `watched`: pairs whose choices become events.
    """

    kind: Literal["steer"] = "steer"
    steering: InstanceOf[Steering]
    address: str
    stale_s: float
    watched: frozenset[tuple[Gpu, Gpu]]


class Assign(Message):
    """Give the oracle's policy other paths."""

    kind: Literal["assign"] = "assign"
    assigned: InstanceOf[dict[Any, Any]]


class Release(Message):
    """Steer no more: event "released" when the GPUs have their base routes alone."""

    kind: Literal["release"] = "release"


class StartHeartbeats(Message):
    """Send heartbeats each `period_s`, and report a component as silent after `multiplier` periods.

    Event "started" after the first round; "silence" with all that is silent, whenever that changes.
    """

    kind: Literal["start-heartbeats"] = "start-heartbeats"
    plan: InstanceOf[Plan]
    period_s: float
    multiplier: int


class Hang(Message):
    """Let a GPU's agent neither send nor receive."""

    kind: Literal["hang"] = "hang"
    gpu: str


class Wake(Message):
    """Undo Hang."""

    kind: Literal["wake"] = "wake"
    gpu: str


class ReadCost(Message):
    """Read what heartbeats cost: HeartbeatCost."""

    kind: Literal["read-cost"] = "read-cost"


class HeartbeatCost(Message):
    """Heartbeats since the start: each one that arrives crosses two links. `cpu_s`: of the process that sends them."""

    kind: Literal["cost"] = "cost"
    sent: int
    received: int
    cpu_s: float
    seconds: float
