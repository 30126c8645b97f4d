"""The run's end of the controller process, of the agents' and of the hearts': start it, tell it of the fabric, hear
its events.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from railyard.controller.agent.steering import Assigned, Steering, plain_assigned
from railyard.controller.health.settings import HealthSpec
from railyard.controller.openflow.cross_connect_moves import moves_by_switch
from railyard.controller.openflow.listeners import PORTS, listeners
from railyard.core.errors import RailyardError
from railyard.core.json_process import ANSWER_S, JsonProcess, OnEvent
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import heartbeat_lanes, namespaces
from railyard.topologies.build.ovs import set_controller_port
from railyard.topologies.optical import Layer
from railyard.topologies.plan import Plan

_REPLIES: Final = ("ready", "learned", "stats", "registry", "relearned", "controller-restarted")
_UNREPORTED: Final = ("stats",)
GRACE_S: Final = 0.2
"""How long a controller that returns waits for switches it has called before it takes them for dead. Living ones
have all connected, and their tables been compared, within 30 ms at 4x4 and 90 at 8x8, on two cores; of the 500 ms in
which it has to repair what broke in its absence, this leaves more than half to a busy machine.
"""
_AGENT_REPLIES: Final = ("connected", "steering", "released", "failed")
_HEARTBEAT_REPLIES: Final = ("started", "cost")
_HEARTBEAT_UNREPORTED: Final = ("cost",)


class ControllerProcess:
    """A `railyard.topologies.build.network.FabricController`. `on_event(ns, what, detail)` is called from a thread for
    each event."""

    def __init__(self, reroute: bool = True, on_event: OnEvent | None = None) -> None:
        self._reroute = reroute
        self._on_event = on_event
        self._process: JsonProcess | None = None
        self._plan: Plan | None = None
        self._send_lock = threading.Lock()  # hearts are relayed from a thread of theirs
        self._silence: dict[str, Any] | None = None
        self._health: HealthSpec | None = None
        self._port = PORTS[0]
        self.is_down = False
        self.registry_address = ""

    def connect(self, plan: Plan) -> None:
        """The switches' namespaces are there: start the process; it loads its libraries while the rest is built."""
        self._plan = plan
        self._process = self._start(plan, self._port, resume=False)

    def crash(self) -> None:
        """SIGKILL to the process. "controller-crashed" is told. ValueError if it isn't running.

        Switches keep their flows and GPUs their routes. What dies with it: what it heard and hasn't acted on, the
        scores' past, the embedded registry (etcd goes on alone, and its agents see no fresh word).
        """
        at_ns = time.monotonic_ns()
        with self._send_lock:
            if self._process is None:
                raise ValueError("the controller can't crash: it is not running")
            process, self._process, self.is_down = self._process, None, True
        process.stop()
        if self._on_event:
            self._on_event(at_ns, "controller-crashed", {})

    def restart(self) -> None:
        """Start it anew after a crash; return when it listens and has called all switches.

        It is told hearts' last word; "controller-restarted" is told when it listens, "resumed" when it goes by what it
        has found. Scores begin anew if they were made. ValueError if it hasn't crashed, RailyardError if it
        can't, or if its registry can't: then the controller itself is back.
        """
        if not self.is_down or self._plan is None:
            raise ValueError("the controller can't restart: it has not crashed")
        port = PORTS[1 - PORTS.index(self._port)]
        process = self._start(self._plan, port, resume=True)
        try:
            process.await_all({"controller-restarted"})
            with self._send_lock:
                self._process, self.is_down = process, False
                if self._silence:
                    process.send({"do": "silence", "silence": self._silence})
            namespaces.in_threads(lambda switch: set_controller_port(switch.name, port), self._plan.switches)
            self._send({"do": "grace", "seconds": GRACE_S})
        except BaseException:
            process.stop()
            self._process, self.is_down = None, True
            raise
        self._port = port
        if self._health:
            self.start_health(self._health)

    def _start(self, plan: Plan, port: int, resume: bool) -> JsonProcess:
        sockets = listeners((switch.name for switch in plan.switches), port)
        numbers = [s.fileno() for s in sockets]
        process = JsonProcess(
            "railyard.controller.processes.controller_main", _REPLIES, self._on_event, _UNREPORTED, numbers
        )
        message = {"plan": plan.as_dict(), "reroute": self._reroute, "sockets": numbers, "resume": resume}
        process.send({"do": "connect", **message})
        for sock in sockets:
            sock.close()
        return process

    def wait_ready(self) -> None:
        """Return when every switch has its flows. RailyardError, with its last words, if that doesn't come."""
        self._send({"do": "learn"})
        self._running.await_all({"ready", "learned"})

    def port_counters(self, switches: int) -> dict[str, dict[int, dict[str, int]]]:
        """Counters by switch and port, as OpenFlow gives them now (`rx` is what came in from the cable)."""
        self._send({"do": "stats"})
        found: dict[str, dict[int, dict[str, int]]] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(found) < switches:
            what, detail = self._running.next_reply(deadline)
            if what == "stats":
                found[detail["switch"]] = {int(port): values for port, values in detail["ports"].items()}
        return found

    def start_health(self, spec: HealthSpec) -> str:
        """Make scores and keep them in a registry from now on; the registry's address. "health" is told each period.

        RailyardError if the registry doesn't start; "registry-failed" is told.
        """
        self._send({"do": "start-health", "spec": spec.model_dump(mode="json")})
        self._health = spec
        message = self._running.await_all({"registry"})["registry"]
        if message["why"]:
            raise RailyardError(f"no registry: {message['why']}")
        self.registry_address = str(message["address"])
        return self.registry_address

    def stop_health(self) -> None:
        """End both; while the controller is away, for good."""
        self._health, self.registry_address = None, ""
        if not self.is_down:
            self._send({"do": "stop-health"})

    def crash_registry(self) -> None:
        """Kill the registry's server (etcd: SIGKILL to its process). "registry-crashed" is told."""
        self._send({"do": "crash-registry"})

    def restart_registry(self) -> None:
        """Start it again at its address. "registry-restarted" is told, or "registry-failed" with the reason."""
        self._send({"do": "restart-registry"})

    def on_heartbeats(self, silence: dict[str, Any]) -> None:
        """Take in what hearts tell as "silence", from any thread. "silent" and "heard" are told of what is new in it.

        All of it counts, and what was told before is over. A controller that is away is told the last when it returns.
        """
        with self._send_lock:
            self._silence = silence
            if not self.is_down:
                self._running.send({"do": "silence", "silence": silence})

    def replace_gpu(self, gpu_name: str) -> None:
        """Another GPU, in a namespace of its own, is in the place of that name: return when its routes can change, and
        it has the detours that are in force. RailyardError if there is no such namespace; then all is as before.
        """
        self._send({"do": "replace-gpu", "gpu": gpu_name})
        message = self._running.await_all({"relearned"})["relearned"]
        if message["why"]:
            raise RailyardError(f"no GPU in the place of {gpu_name}: {message['why']}")

    def cross_connect(self, moves: Mapping[str, str], layers: Iterable[Layer] | None = None) -> None:
        """Move fibres of the optical switches: with {"d0g4": "d0g1"}, d0g4's lead to the places that the plan has for
        d0g1. Whose place is taken is left dark, and so is a place that is left; `layers`: all that the fabric has.

        Returns at once. The ports concerned go dark, and "light-off" is told; after the fabric's `switching_time`,
        "light-on". ValueError for what the fabric doesn't have, and for a fibre and a place that aren't at one optical
        switch: with layer `rail` alone each domain has its own.
        """
        available = tuple(self._plan.optics) if self._plan else ()
        requested = available if layers is None else tuple(layers)
        if self._plan is None or not requested or not set(requested) <= set(available):
            raise ValueError(
                f"can't cross {dict(moves)} in layers {requested}: the fabric's optical layers are {available}"
            )
        moves_by_switch(self._plan, moves, requested)
        self._send({"do": "cross-connect", "moves": dict(moves), "layers": list(requested)})

    def stop(self) -> None:
        """End the process."""
        self.is_down = False
        if self._process:
            self._process.stop()
            self._process = None

    def _send(self, command: dict[str, Any]) -> None:
        with self._send_lock:
            self._running.send(command)

    @property
    def _running(self) -> JsonProcess:
        if self._process is None:
            raise RailyardError("the controller is away: it has crashed" if self.is_down else "no controller runs")
        return self._process


class AgentsProcess:
    """One agent a GPU of a fabric that stands. `on_event(ns, what, detail)` is called from a thread for each event."""

    def __init__(self, plan: Plan, on_event: OnEvent | None = None) -> None:
        self._process = JsonProcess("railyard.controller.processes.agents_main", _AGENT_REPLIES, on_event)
        self._process.send({"do": "connect", "plan": plan.as_dict()})
        self._process.await_all({"connected"})

    def steer(
        self, steering: Steering, address: str, stale_s: float = 1.0, watched: Iterable[tuple[Gpu, Gpu]] = ()
    ) -> None:
        """Steer by a policy and the registry at `address`; return when every GPU has its first routes.

        RailyardError if the policy fails on them.
        """
        pairs = [[src.name, dst.name] for src, dst in watched]
        message = {"steering": steering.as_dict(), "address": address, "stale": stale_s, "watched": pairs}
        self._process.send({"do": "steer", **message})
        self._await("steering")

    def assign(self, assigned: Assigned) -> None:
        """Give the policy oracle other paths, while it steers."""
        self._process.send({"do": "assign", "assigned": plain_assigned(assigned)})

    def release(self) -> None:
        """Steer no more: return when all GPUs have their base routes alone. RailyardError if the policy has failed."""
        self._process.send({"do": "release"})
        self._await("released")

    def _await(self, requested: str) -> None:
        deadline, what = time.monotonic() + ANSWER_S, ""
        while what != requested:
            what, detail = self._process.next_reply(deadline)
            if what == "failed":
                raise RailyardError(f"policy {detail['policy']} failed: {detail['why']}")

    def stop(self) -> None:
        """End the process. Its routes stay until the fabric goes: `release` first if it is to go on."""
        self._process.stop()


@dataclass(frozen=True, slots=True)
class HeartbeatCost:
    """Heartbeats since the start: each one that arrives crosses two links. `cpu_s`: of the process that sends them."""

    sent: int
    received: int
    cpu_s: float
    seconds: float


class HeartbeatProcess:
    """Heartbeats between the GPUs of a fabric that stands, on links on which they have a lane of their own.

    `on_event(ns, what, detail)` is called from a thread with "silence", all that is silent, whenever that changes:
    `ControllerProcess.on_heartbeats` takes the detail. To be stopped before the fabric is. ValueError for a period that
    isn't above 0 or a multiplier below 2.
    """

    def __init__(
        self, plan: Plan, period_s: float = 0.02, multiplier: int = 3, on_event: OnEvent | None = None
    ) -> None:
        if period_s <= 0 or multiplier < 2:
            raise ValueError(f"period {period_s} s must be above 0, multiplier {multiplier} 2 at least")
        self._plan = plan
        heartbeat_lanes.enable_lanes(plan)
        self._process = JsonProcess(
            "railyard.controller.processes.heartbeat_main", _HEARTBEAT_REPLIES, on_event, _HEARTBEAT_UNREPORTED
        )
        self._process.send({"do": "start", "plan": plan.as_dict(), "period": period_s, "multiplier": multiplier})
        try:
            self._process.await_all({"started"})
        except BaseException:
            self.stop()
            raise

    def hang(self, gpu: Gpu) -> None:
        """Let a GPU's agent neither send nor hear from now on, as one whose system hangs."""
        self._process.send({"do": "hang", "gpu": gpu.name})

    def wake(self, gpu: Gpu) -> None:
        """Undo it."""
        self._process.send({"do": "wake", "gpu": gpu.name})

    def cost(self) -> HeartbeatCost:
        """What they cost so far."""
        self._process.send({"do": "cost"})
        return HeartbeatCost(**self._process.await_all({"cost"})["cost"])

    def stop(self) -> None:
        """End the process, and close the lanes."""
        self._process.stop()
        heartbeat_lanes.disable_lanes(self._plan)
