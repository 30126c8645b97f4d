"""The run's end of the controller process, and of the agents': start it, tell it of the fabric, hear its events."""

import time
from collections.abc import Iterable
from typing import Final

from controller.child import ANSWER_S, Child, OnEvent
from controller.health.settings import HealthSpec
from controller.listeners import listeners
from controller.steering import Assigned, Steering, plain_assigned
from topologies.addresses import Gpu
from topologies.errors import RailyardError
from topologies.plan import Plan

_AWAITED: Final = ("ready", "learned", "stats", "registry")
_SILENT: Final = ("stats",)
_AGENTS_AWAITED: Final = ("connected", "steering", "released")


class ControllerProcess:
    """A `topologies.net.FabricController`. `on_event(ns, what, detail)` is called from a thread for each event."""

    def __init__(self, reroute: bool = True, on_event: OnEvent | None = None) -> None:
        self._reroute = reroute
        self._on_event = on_event
        self._process: Child | None = None

    def connect(self, plan: Plan) -> None:
        """The switches' namespaces are there: start the process; it loads its libraries while the rest is built."""
        sockets = listeners(switch.name for switch in plan.switches)
        numbers = [s.fileno() for s in sockets]
        self._process = Child("controller.process", _AWAITED, self._on_event, _SILENT, numbers)
        self._process.say({"do": "connect", "plan": plan.as_dict(), "reroute": self._reroute, "sockets": numbers})
        for sock in sockets:
            sock.close()

    def wait_ready(self) -> None:
        """Return when every switch has its flows. RailyardError, with its last words, if that doesn't come."""
        self._running.say({"do": "learn"})
        self._running.await_all({"ready", "learned"})

    def port_counters(self, switches: int) -> dict[str, dict[int, dict[str, int]]]:
        """Counters by switch and port, as OpenFlow gives them now (`rx` is what came in from the cable)."""
        self._running.say({"do": "stats"})
        found: dict[str, dict[int, dict[str, int]]] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(found) < switches:
            what, detail = self._running.next(deadline)
            if what == "stats":
                found[detail["switch"]] = {int(port): values for port, values in detail["ports"].items()}
        return found

    def start_health(self, spec: HealthSpec) -> str:
        """Make scores and keep them in a registry from now on; the registry's address. "health" is told each period."""
        self._running.say({"do": "start-health", "spec": spec.model_dump(mode="json")})
        return str(self._running.await_all({"registry"})["registry"]["address"])

    def stop_health(self) -> None:
        """End both."""
        self._running.say({"do": "stop-health"})

    def crash_registry(self) -> None:
        """Kill the registry's server (etcd: SIGKILL to its process). "registry-crashed" is told."""
        self._running.say({"do": "crash-registry"})

    def restart_registry(self) -> None:
        """Start it again at its address. "registry-restarted" is told."""
        self._running.say({"do": "restart-registry"})

    def stop(self) -> None:
        """End the process."""
        if self._process:
            self._process.stop()
            self._process = None

    @property
    def _running(self) -> Child:
        if self._process is None:
            raise RailyardError("the controller is not running")
        return self._process


class AgentsProcess:
    """One agent a GPU of a fabric that stands. `on_event(ns, what, detail)` is called from a thread for each event."""

    def __init__(self, plan: Plan, on_event: OnEvent | None = None) -> None:
        self._process = Child("controller.agents", _AGENTS_AWAITED, on_event)
        self._process.say({"do": "connect", "plan": plan.as_dict()})
        self._process.await_all({"connected"})

    def steer(
        self, steering: Steering, address: str, stale_s: float = 1.0, watched: Iterable[tuple[Gpu, Gpu]] = ()
    ) -> None:
        """Steer by a policy and the registry at `address`; return when every GPU has its first routes."""
        pairs = [[src.name, dst.name] for src, dst in watched]
        told = {"steering": steering.as_dict(), "address": address, "stale": stale_s, "watched": pairs}
        self._process.say({"do": "steer", **told})
        self._process.await_all({"steering"})

    def assign(self, assigned: Assigned) -> None:
        """Give the policy oracle other paths, while it steers."""
        self._process.say({"do": "assign", "assigned": plain_assigned(assigned)})

    def release(self) -> None:
        """Steer no more: return when all GPUs have their base routes alone."""
        self._process.say({"do": "release"})
        self._process.await_all({"released"})

    def stop(self) -> None:
        """End the process. Its routes stay until the fabric goes: `release` first if it is to go on."""
        self._process.stop()
