"""Runs a workload while a policy steers routes: beside a background, with scores, choices and route changes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.controller.processes.clients import AgentsProcess
from railyard.core.wait import sleep_until
from railyard.experiments.measures.steering import expected_times
from railyard.experiments.measures.steering.records import BACKGROUND_SENT, CHOICES, HEALTH, Choice, HealthSample
from railyard.experiments.measures.steering.spec import RoutingSpec
from railyard.experiments.measures.workloads.replay import run_workload
from railyard.experiments.measures.workloads.turn import Turn
from railyard.experiments.run.session import ControllerEvent, FabricSession
from railyard.results.runs.records import PROCESS, Event
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares
from railyard.workloads.background.flows import Background, reserved
from railyard.workloads.background.spec import BackgroundSpec

ActiveEntries = frozenset[int]
"""Numbers of the entries of the background that are on."""
ELEMENTS = ("rail", "domain", "spine")
"""What has a health score."""


@dataclass(frozen=True)
class RouteAgents:
    """The processes that steer a fabric. `address`: where they read health scores."""

    agents: AgentsProcess
    address: str


@contextmanager
def route_agents(session: FabricSession, routing: RoutingSpec) -> Iterator[RouteAgents]:
    """Compute health scores and run the agents of all GPUs while entered."""
    address = session.controller.start_health(routing.health)
    agents = AgentsProcess(session.plan, session.on_event)
    try:
        yield RouteAgents(agents, address)
    finally:
        agents.stop()
        session.controller.stop_health()


@dataclass(frozen=True)
class SteeredTurn:
    """A replay of a workload under one policy (`turn.session.steered_by`), beside a background."""

    turn: Turn
    background: tuple[BackgroundSpec, ...]
    routing: RoutingSpec

    def measure(self, steering_processes: RouteAgents) -> None:
        """Steer, begin the background, replay the workload after a while, and record it all."""
        session = self.turn.session
        agents = steering_processes.agents
        plan = session.plan
        begun_ns = time.monotonic_ns()
        flows = expected_times.flows_in(self.turn.workload.schedule, plan.gpus)
        pattern = expected_times.Pattern(plan, self.background)
        knows_load = HEALTH_POLICIES[session.steered_by].knows_load

        @cache
        def assigned_paths(active: ActiveEntries) -> dict[tuple[Gpu, Gpu], Shares]:
            if not knows_load:
                return {}
            return expected_times.oracle_paths(plan, flows, pattern.flows(active))

        def on_change(active: ActiveEntries) -> None:
            if knows_load:
                agents.assign(assigned_paths(active))

        at_start = assigned_paths(pattern.at(0.0))
        steering = self.routing.steering(session.steered_by, plan.spec, self.turn.seed, at_start)
        predicted_s = None
        if self.turn.workload.independent:
            predicted_s = expected_times.completion_s(pattern, flows, steering)
        # what was before is out of the scores then: every policy begins with an idle fabric
        sleep_until(time.monotonic() + self.routing.settle)
        pairs = [(flow.src, flow.dst) for flow in flows]
        agents.steer(steering, steering_processes.address, self.routing.health.stale, pairs)
        steered_ns = time.monotonic_ns()
        with (
            reserved(plan, pattern.flows(range(len(self.background)))),
            Background(plan, self.background) as traffic,
            self._following(pattern, traffic.start_ns, on_change),
        ):
            sleep_until(time.monotonic() + self.routing.settle)
            run_workload(self.turn, predicted_s)
            sent = traffic.stop()
        requested_bytes = sum(entry.requested for entry in sent)
        sent_bytes = sum(entry.sent for entry in sent)
        detail = {**self.turn.interval.as_dict(), "requested": requested_bytes, "sent": sent_bytes}
        self.turn.run.events.append(Event(time.monotonic_ns(), PROCESS, BACKGROUND_SENT, detail))
        ended_ns = time.monotonic_ns()
        agents.release()
        received = [event for event in session.events() if event[0] >= begun_ns]
        changed_ns = [at_ns for at_ns, name, _ in received if name == "changed"]
        if any(steered_ns < at_ns <= ended_ns for at_ns in changed_ns):
            self.turn.run.loads[-1] = replace(self.turn.run.loads[-1], rerouted=True)
        self._record_scores(received)
        self._record_changes(received, steered_ns)

    @contextmanager
    def _following(
        self, pattern: expected_times.Pattern, start_ns: int, on_change: Callable[[ActiveEntries], None]
    ) -> Iterator[None]:
        """Record each change of the background when it is due, and call `on_change` with the entries that are on."""
        stopped = threading.Event()

        def follow() -> None:
            at_s: float | None = 0.0
            before: ActiveEntries = frozenset()
            while at_s is not None:
                wait_s = max(0.0, start_ns / 1e9 + at_s - time.monotonic())
                if stopped.wait(wait_s):
                    return
                active = pattern.at(at_s)
                self._record_background(start_ns + round(at_s * 1e9), before, active)
                if at_s > 0:
                    on_change(active)
                before = active
                at_s = pattern.next_change(at_s)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _record_background(self, at_ns: int, before: ActiveEntries, active: ActiveEntries) -> None:
        """Record each entry of the background that begins or ends."""
        for number in sorted(before ^ active):
            entry = self.background[number]
            detail = {**self.turn.interval.as_dict(), "text": entry.text, **entry.model_dump(mode="json")}
            name = "on" if number in active else "off"
            self.turn.run.events.append(Event(at_ns, "background", name, detail))

    def _record_scores(self, received: list[ControllerEvent]) -> None:
        """Record the scores that the controller published, and the paths that sources chose."""
        run = self.turn.run
        interval = self.turn.interval
        for at_ns, name, detail in received:
            if name == "health":
                for element in ELEMENTS:
                    for index, (load, score) in enumerate(detail[element]):
                        run.rows(HEALTH).append(HealthSample(interval, at_ns, element, index, load, score))
            elif name == "choice":
                run.rows(CHOICES).append(Choice(interval, at_ns, detail["src"], detail["dst"], detail["paths"]))

    def _record_changes(self, received: list[ControllerEvent], steered_ns: int) -> None:
        """Record each change of routes that followed from scores of this turn, and how long it took."""
        published_ns: dict[int, int] = {}
        for _, name, detail in received:
            if name == "health":
                published_ns.setdefault(detail["version"], detail["put_ns"])
        for at_ns, name, detail in received:
            if name == "changed" and published_ns.get(detail["version"], 0) > steered_ns:
                took_ms = None
                # routes that had to wait for their pair's dwell time say nothing of how quick they are
                if detail["news"]:
                    took_ms = (at_ns - published_ns[detail["version"]]) / 1e6
                changed = {**self.turn.interval.as_dict(), **detail, "ms": took_ms}
                self.turn.run.events.append(Event(at_ns, "steering", "changed", changed))
