"""The run's end of the controller process: start it, tell it of the fabric, hear its events."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from controller.listeners import listeners
from topologies.errors import RailyardError
from topologies.plan import Plan

PROJECT: Final = Path(__file__).resolve().parent.parent
READY_S: Final = 30.0


class ControllerProcess:
    """A `topologies.net.FabricController`. `on_event(ns, what, detail)` is called from a thread for each event."""

    def __init__(
        self, reroute: bool = True, on_event: Callable[[int, str, dict[str, Any]], None] | None = None
    ) -> None:
        self._reroute = reroute
        self._on_event = on_event
        self._process: subprocess.Popen[str] | None = None
        self._awaited: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._log = Path("/run/railyard-controller.log")

    def connect(self, plan: Plan) -> None:
        """The switches' namespaces are there: start the process; it loads its libraries while the rest is built."""
        sockets = listeners(switch.name for switch in plan.switches)
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "controller.process"],
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                pass_fds=[s.fileno() for s in sockets],
            )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        numbers = [s.fileno() for s in sockets]
        self._say({"do": "connect", "plan": plan.as_dict(), "reroute": self._reroute, "sockets": numbers})
        for sock in sockets:
            sock.close()

    def wait_ready(self) -> None:
        """Return when every switch has its flows. RailyardError, with its last words, if that doesn't come."""
        self._say({"do": "learn"})
        self._await({"ready", "learned"})

    def port_counters(self, switches: int) -> dict[str, dict[int, dict[str, int]]]:
        """Counters by switch and port, as OpenFlow gives them now (`rx` is what came in from the cable)."""
        self._say({"do": "stats"})
        found: dict[str, dict[int, dict[str, int]]] = {}
        deadline = time.monotonic() + READY_S
        while len(found) < switches:
            what, detail = self._next(deadline)
            if what == "stats":
                found[detail["switch"]] = {int(port): values for port, values in detail["ports"].items()}
        return found

    def stop(self) -> None:
        """End the process. Killed, not asked: it holds nothing that needs to be put away."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _say(self, command: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            raise RailyardError("the controller is not running")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _await(self, wanted: set[str]) -> None:
        deadline = time.monotonic() + READY_S
        while wanted:
            what, _ = self._next(deadline)
            wanted.discard(what)

    def _next(self, deadline: float) -> tuple[str, dict[str, Any]]:
        try:
            what, detail = self._awaited.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            what, detail = "ended", {}
        if what == "ended":
            said = self._log.read_text().strip().splitlines()[-1:]
            raise RailyardError(f"the controller did not get the fabric ready in {READY_S:.0f} s: {' '.join(said)}")
        return what, detail

    def _read(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stdout or ():
            event = json.loads(line)
            if event["what"] in ("ready", "learned", "stats"):
                self._awaited.put((event["what"], event["detail"]))
            if self._on_event and event["what"] != "stats":
                self._on_event(event["ns"], event["what"], event["detail"])
        self._awaited.put(("ended", {}))
