"""Workloads on a fabric whose routes policies steer: each policy in turn, under the same background, seed by seed."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.controller.processes.clients import AgentsProcess
from railyard.core.records import IntervalId
from railyard.experiments.predict import steered_times
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.session import ControllerEvent, FabricSession, check_links
from railyard.experiments.run.traffic import Workload, run_workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.routing import RoutingSpec
from railyard.results.runs.records import Choice, Event, HealthSample, Run
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.flows import background, reserved
from railyard.workloads.background.spec import BackgroundSpec

MakeWorkloads = Callable[[int], list[Workload]]
"""From a seed to the workloads, with what is drawn from it."""
On = frozenset[int]
"""The entries of the background that are on."""


def load_steered(session: FabricSession, make: MakeWorkloads, spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    """Everything that the experiment's section `routing` asks for, on one fabric."""
    routing = spec.routing
    assert routing is not None
    with steps.step(f"{session.label}: calibrating links"):
        check_links(session, run)
    with _steerable(session, routing) as (agents, address):
        for repeat in range(spec.repeats):
            for workload, scene_background in _in_scenes(make(spec.seed + repeat), spec, session.plan.spec):
                for policy in routing.policies:
                    steered_session = replace(session, steered_by=policy)
                    steered_run = SteeredRun(
                        steered_session, scene_background, routing, workload, repeat, spec.seed + repeat
                    )
                    what = f"{steered_session.name}: {', '.join(filter(None, (workload.label, workload.scene)))}"
                    what += f", {repeat + 1} of {spec.repeats}" if spec.repeats > 1 else ""
                    with steps.step(what, total=sum(workload.schedule.matrix.values())):
                        steered_run.run(agents, address, run, steps.reached)


def _in_scenes(
    workloads: list[Workload], spec: ExperimentSpec, fabric: FabricSpec
) -> Iterator[tuple[Workload, tuple[BackgroundSpec, ...]]]:
    """Yield each workload in each scene, with the scene's background."""
    for workload in workloads:
        if spec.grid is None:
            yield workload, spec.background
        else:
            for scene in spec.grid.scenes:
                yield replace(workload, scene=scene.name), scene.background(fabric)


@contextmanager
def _steerable(session: FabricSession, routing: RoutingSpec) -> Iterator[tuple[AgentsProcess, str]]:
    """Scores are made and agents are there; (the agents, the registry's address)."""
    address = session.controller.start_health(routing.health)
    agents = AgentsProcess(session.plan, session.on_event)
    try:
        yield agents, address
    finally:
        agents.stop()
        session.controller.stop_health()


@dataclass(frozen=True)
class SteeredRun:
    """One policy (`session.steered_by`), workload and seed."""

    session: FabricSession
    background: tuple[BackgroundSpec, ...]
    routing: RoutingSpec
    workload: Workload
    repeat: int
    seed: int

    def run(self, agents: AgentsProcess, address: str, run: Run, progress: Callable[[int], None]) -> None:
        """Steer, begin the background, replay the workload after a while, and add everything to the run."""
        plan, policy, begun_ns = self.session.plan, self.session.steered_by, time.monotonic_ns()
        flows = steered_times.flows_in(self.workload.schedule, plan.gpus)
        pattern = steered_times.Pattern(plan, self.background)
        knows_load = HEALTH_POLICIES[policy].knows_load
        assign = cache(lambda on: steered_times.oracle_paths(plan, flows, pattern.flows(on)) if knows_load else {})
        context = self.routing.context(plan.spec, self.seed, assign(pattern.at(0.0)))
        steering, stale = self.routing.steering(policy, plan.spec, context), self.routing.health.stale
        known = steered_times.completion_s(pattern, flows, steering) if self.workload.independent else None
        time.sleep(self.routing.settle)  # what was before is out of the scores: every policy begins with an idle fabric
        agents.steer(steering, address, stale, [(flow.src, flow.dst) for flow in flows])
        steered_ns = time.monotonic_ns()
        with (
            reserved(plan, pattern.flows(range(len(self.background)))),
            background(plan, self.background) as traffic,
            self._recording_background(pattern, traffic.start_ns, run) as listeners,
        ):
            if knows_load:
                listeners.append(lambda on: agents.assign(assign(on)))
            time.sleep(self.routing.settle)
            run_workload(self.session, self.workload, self.repeat, self.seed, run, progress, known)
        ended_ns = time.monotonic_ns()
        agents.release()
        if any(what == "changed" and steered_ns < at <= ended_ns for at, what, _ in list(self.session.received)):
            run.loads[-1] = replace(run.loads[-1], rerouted=True)
        self._record([event for event in list(self.session.received) if event[0] >= begun_ns], steered_ns, run)

    @property
    def _interval(self) -> IntervalId:
        return self.session.interval(self.workload.label, self.repeat, self.workload.scene)

    @contextmanager
    def _recording_background(
        self, pattern: steered_times.Pattern, start_ns: int, run: Run
    ) -> Iterator[list[Callable[[On], None]]]:
        """Write down each change of the background as it comes, and tell those in the list which entries are on."""
        listeners: list[Callable[[On], None]] = []
        stopped = threading.Event()

        def follow() -> None:
            at_s: float | None = 0.0
            before: On = frozenset()
            while at_s is not None and not stopped.wait(max(0.0, start_ns / 1e9 + at_s - time.monotonic())):
                on = pattern.at(at_s)
                run.events += self._background_events(before, on, start_ns + round(at_s * 1e9))
                if at_s > 0:
                    for each in listeners:
                        each(on)
                before, at_s = on, pattern.next_change(at_s)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield listeners
        finally:
            stopped.set()
            thread.join()

    def _background_events(self, before: On, on: On, at_ns: int) -> Iterator[Event]:
        for number in sorted(before ^ on):
            spec = self.background[number]
            load = {"text": spec.text, **spec.model_dump(mode="json")}
            what = {**self._interval.as_dict(), **load}
            yield Event(at_ns, "background", "on" if number in on else "off", what)

    def _record(self, received: list[ControllerEvent], steered_ns: int, run: Run) -> None:
        """What controller and agents said meanwhile, as rows. The first routes follow from no change of scores."""
        interval = self._interval
        put_ns: dict[int, int] = {}
        for at, what, detail in received:
            if what == "health":
                put_ns.setdefault(detail["version"], detail["put_ns"])
                run.health += [
                    HealthSample(interval, at, element, index, load, score)
                    for element in ("rail", "domain", "spine")
                    for index, (load, score) in enumerate(detail[element])
                ]
            elif what == "choice":
                run.choices.append(Choice(interval, at, detail["src"], detail["dst"], detail["paths"]))
        for at, what, detail in received:
            if what == "changed" and put_ns.get(detail["version"], 0) > steered_ns:
                # routes that had to wait for their pair's dwell time say nothing of how quick they are
                took = {"ms": (at - put_ns[detail["version"]]) / 1e6 if detail["news"] else None}
                run.events.append(Event(at, "steering", "changed", {**interval.as_dict(), **detail, **took}))
