"""The controller as a process of its own: `python -m controller.process`, a line of JSON in for a command, one out for
an event.

In: {"do": "connect", "plan": {...}, "reroute": true, "sockets": [3, ...]}, {"do": "learn"}, {"do": "stats"}.
Out: {"ns": monotonic, "what": ..., "detail": {...}}. It ends when its input does.
"""

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from controller.agent import RouteAgent
from controller.app import Heard
from controller.brain import Brain
from controller.server import OpenFlowServer
from topologies.plan import Plan


class _Process:
    """Commands in, events out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brain: Brain | None = None
        self._agent: RouteAgent | None = None
        self._server = OpenFlowServer(self._hear)
        self._names: dict[int, str] = {}

    def obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "connect":
                self._connect(command)
            case "learn" if self._agent:
                self._agent.learn_interfaces()
                self.tell("learned", {})
            case "stats":
                self._server.app.ask_stats()

    def tell(self, what: str, detail: dict[str, Any]) -> None:
        line = json.dumps({"ns": time.monotonic_ns(), "what": what, "detail": detail})
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _connect(self, command: dict[str, Any]) -> None:
        plan = Plan.from_dict(command["plan"])
        self._names = {switch.dpid: switch.name for switch in plan.switches}
        self._agent = RouteAgent(plan)
        self._brain = Brain(plan, self._agent, command["reroute"], self.tell)
        self._server.serve(socket.socket(fileno=fd) for fd in command["sockets"])

    def _hear(self, heard: Heard) -> None:
        if heard.what == "stats":
            self.tell("stats", {"switch": self._names[heard.dpid], "ports": heard.counters})
        elif self._brain:
            self._brain.hear(heard)


def main() -> None:
    with suppress(PermissionError):  # an ordinary user may not
        os.nice(-15)  # a real control plane has processors of its own, and doesn't queue behind the traffic
    process = _Process()
    for line in sys.stdin:
        process.obey(json.loads(line))


if __name__ == "__main__":
    main()
