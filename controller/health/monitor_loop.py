"""healthd at work: once a period the counters are asked for, scores are made and put into the registry.

It owns the registry's server. All of it runs in the controller's process.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from railyard.controller.health.monitor import Element, Healthd
from railyard.controller.health.registry.client import connect
from railyard.controller.health.registry.etcd import EtcdServer
from railyard.controller.health.registry.unix_socket import SocketServer
from railyard.controller.health.scores import Scores
from railyard.controller.health.settings import HealthSpec
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.measure.counters import PortReader
from railyard.topologies.plan import Plan

FOLDER: Final = Path("/run/railyard")
NS: Final = 1_000_000_000


class HealthLoop:
    """`ask_stats()` makes every switch send its counters, which come back by `on_event`. `tell(what, detail)` gets
    "health" once a period: version, and [load, score] of each rail, domain and the spine layer.
    """

    def __init__(
        self, plan: Plan, spec: HealthSpec, ask_stats: Callable[[], None], emit: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._period_s, self._ask_stats, self._emit = spec.period, ask_stats, emit
        self._healthd = Healthd(plan, spec)
        # other queues than the bridges' count only for estimators that look at queues
        queues = (
            [] if spec.estimator == "utilisation" else [*(s.name for s in plan.switches), *(g.name for g in plan.gpus)]
        )
        self._reader = PortReader([*plan.hb_bridges, *queues])
        self._server = (
            EtcdServer(FOLDER / "etcd") if spec.registry == "etcd" else SocketServer(FOLDER / "registry.sock")
        )
        self._server.start()
        self._registry = connect(self._server.address, spec.stale)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="healthd", daemon=True)

    @property
    def address(self) -> str:
        """The registry's."""
        return self._server.address

    def start(self) -> None:
        self._thread.start()

    def on_event(self, event: SwitchEvent) -> None:
        """Whatever a switch said."""
        with self._lock:
            self._healthd.on_event(event)

    def crash_registry(self) -> None:
        """Kill its server. Agents keep their last scores."""
        self._server.stop()

    def restart_registry(self) -> None:
        """Start its server again, at the same address."""
        self._server.start()

    def stop(self) -> None:
        """End the loop and the registry."""
        self._stopped.set()
        self._thread.join()
        self._registry.close()
        self._server.stop()
        self._reader.close()

    def _run(self) -> None:
        next_tick_s = time.monotonic()
        while not self._stopped.is_set():
            self._tick()
            next_tick_s = max(
                next_tick_s + self._period_s, time.monotonic()
            )  # after a stall it goes on, and doesn't catch up
            self._stopped.wait(next_tick_s - time.monotonic())

    def _tick(self) -> None:
        self._ask_stats()  # answers come a little later, and count from the next turn on
        read = self._reader.read()
        now = time.monotonic_ns()
        with self._lock:
            for node, stats in read.items():
                self._healthd.read(node, stats, now)
            scores, loads = self._healthd.scores(now), self._healthd.loads()
        put_ns = time.monotonic_ns()
        self._registry.put(scores)
        self._emit("health", _record(scores, loads) | {"put_ns": put_ns})


def _record(scores: Scores, loads: dict[Element, float]) -> dict[str, Any]:
    """[load, score] of every element, loads to four digits."""

    def pairs(kind: str, values: tuple[int, ...]) -> list[list[float]]:
        return [[round(loads.get(Element(kind, n), 0.0), 4), score] for n, score in enumerate(values)]  # type: ignore[arg-type]

    spine = {"spine": pairs("spine", (scores.spine,))} if Element("spine", 0) in loads else {"spine": []}
    return {
        "version": scores.version,
        "rail": pairs("rail", scores.rails),
        "domain": pairs("domain", scores.domains),
    } | spine
