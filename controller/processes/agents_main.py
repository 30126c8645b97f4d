"""The agents of all GPUs, a process: `python -m railyard.controller.processes.agents_main`, by messages.py.

Each GPU has an agent with a cache of the registry's scores, which decides for it alone as a source (steering.py). One
thread decides for all agents that are due and writes their routes together. Events: "connected"; "steering" once all
have their first routes; "choice" when a watched pair changes; "changed" for each batch of routes, with the version of
the scores; "stale" and "fresh"; "failed" if the policy raises, which ends steering; "released".
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from railyard.controller.agent.route_agent import RouteAgent
from railyard.controller.agent.steering import Assigned, Change, Source, serve_choices
from railyard.controller.health.policy import Scores
from railyard.controller.health.registry.client import Registry, View, connect
from railyard.controller.processes import messages
from railyard.core.worker import Parent
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares, path_names
from railyard.topologies.measure.counters import TcpRates
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Route

Emit = Callable[[str, dict[str, Any]], None]
AT_ONCE_NS: Final = 0  # of an agent that has new scores


class Agents:
    """All agents, while they steer by one policy."""

    def __init__(self, plan: Plan, routes: RouteAgent, rates: TcpRates, command: messages.Steer, emit: Emit) -> None:
        self._routes = routes
        self._rates = rates
        self._command = command
        self._emit = emit
        self._sources = {gpu: Source(plan, gpu, command.steering) for gpu in plan.gpus}
        self._views: dict[Gpu, View] = {}
        self._stale: set[Gpu] = set()
        self._recheck_ns: dict[Gpu, int] = {}
        self._condition = threading.Condition()
        self._stopped = False
        self._steered: set[Gpu] = set()
        self._caches: list[Registry] = []
        self._thread = threading.Thread(target=self._run, name="steering", daemon=True)

    def start(self) -> None:
        """Start steering."""
        self._thread.start()
        for gpu in self._sources:
            cache = connect(self._command.address, self._command.stale_s)
            cache.watch(partial(self._on_view, gpu))
            self._caches.append(cache)

    def stop(self) -> None:
        """Close all caches and remove all routes."""
        for cache in self._caches:
            cache.close()
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join()
        self._routes.change_all({gpu: (source.release(), ()) for gpu, source in self._sources.items()})

    def assign(self, assigned: Assigned) -> None:
        """Give the oracle's policy other paths."""
        with self._condition:
            for source in self._sources.values():
                source.steering = replace(source.steering, context=replace(source.steering.context, assigned=assigned))
            self._recheck_ns = dict.fromkeys(self._views, AT_ONCE_NS)
            self._condition.notify_all()

    def chosen(self, src: Gpu, dst: Gpu) -> Shares:
        """Return the current choice of a source for a destination."""
        return self._sources[src].chosen(dst) if src in self._sources else ()

    def _on_view(self, gpu: Gpu, view: View) -> None:
        with self._condition:
            if view.stale != (gpu in self._stale):
                if view.stale:
                    self._stale.add(gpu)
                    self._emit("stale", {"gpu": gpu.name})
                else:
                    self._stale.discard(gpu)
                    self._emit("fresh", {"gpu": gpu.name})
            self._views[gpu] = view
            self._recheck_ns[gpu] = AT_ONCE_NS
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopped:
                    now = time.monotonic_ns()
                    due_gpus = [gpu for gpu, at_ns in self._recheck_ns.items() if at_ns <= now]
                    if due_gpus:
                        break
                    wait_s = None
                    if self._recheck_ns:
                        wait_s = max(0.0, (min(self._recheck_ns.values()) - time.monotonic_ns()) / 1e9)
                    self._condition.wait(wait_s)
                if self._stopped:
                    return
                todo: dict[Gpu, Scores] = {}
                has_new_scores = all(self._recheck_ns[gpu] == AT_ONCE_NS for gpu in due_gpus)
                for gpu in due_gpus:
                    del self._recheck_ns[gpu]
                    scores = self._views[gpu].scores
                    if scores is not None:
                        todo[gpu] = scores
            # a plugin's policy may raise anything: its experiment fails, with the reason
            try:
                self._steer(todo, has_new_scores)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                self._emit("failed", {"policy": self._command.steering.policy, "why": why})
                return

    def _steer(self, todo: dict[Gpu, Scores], has_new_scores: bool) -> None:
        now_ns = time.monotonic_ns()
        changes: dict[Gpu, Change] = {}
        routes: dict[Gpu, tuple[tuple[Route, ...], tuple[Route, ...]]] = {}
        for gpu, scores in todo.items():
            change = self._sources[gpu].decide(scores, now_ns, partial(self._rates.read, gpu.name))
            changes[gpu] = change
            if change.remove or change.put:
                routes[gpu] = change.remove, change.put
        outcome = self._routes.change_all(routes)
        # a crashed GPU has no interfaces; the others' routes matter more
        for gpu, error in outcome.refused.items():
            self._emit("refused", {"gpu": gpu.name, "why": error.strerror or str(error)})
        with self._condition:
            for gpu, change in changes.items():
                if change.recheck_ns is not None:
                    self._recheck_ns.setdefault(gpu, change.recheck_ns)
        for gpu, change in changes.items():
            self._emit_choices(gpu, change)
        if outcome.done:
            version = max(scores.version for scores in todo.values())
            detail = {"routes": outcome.done, "sources": len(routes), "news": has_new_scores, "version": version}
            self._emit("changed", detail)
        was_steering = len(self._steered) == len(self._sources)
        self._steered |= todo.keys()
        if not was_steering and len(self._steered) == len(self._sources):
            self._emit("steering", {})

    def _emit_choices(self, src: Gpu, change: Change) -> None:
        """Report the paths that were chosen for the pairs that are watched."""
        for dst, shares in change.chosen.items():
            if (src, dst) in self._command.watched:
                self._emit("choice", {"src": src.name, "dst": dst.name, "paths": path_names(shares)})


def main() -> None:
    """Execute the parent's commands until it ends."""
    # an ordinary user may not
    with suppress(PermissionError):
        # real agents have a processor each, and don't queue behind the traffic
        os.nice(-15)
    parent = Parent(*messages.ToAgents.__subclasses__())
    plan: Plan = parent.receive().plan
    routes = RouteAgent(plan)
    rates = TcpRates(plan.hosts)
    routes.learn_interfaces()
    # none while no policy steers, else one
    steering = list[Agents]()

    def chosen(src: Gpu, dst: Gpu) -> Shares | None:
        for agents in steering:
            return agents.chosen(src, dst)
        return None

    serve_choices(chosen)
    parent.emit("connected", {})
    for command in parent:
        if isinstance(command, messages.Assign):
            for agents in steering:
                agents.assign(command.assigned)
            continue
        while steering:
            steering.pop().stop()
        if isinstance(command, messages.Steer):
            steering.append(Agents(plan, routes, rates, command, parent.emit))
            steering[0].start()
        else:
            parent.emit("released", {})


if __name__ == "__main__":
    main()
