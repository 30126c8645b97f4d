"""Workloads on a fabric whose routes policies steer: each policy in turn, under the same background, seed by seed."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.controller.processes.clients import AgentsProcess
from railyard.core.records import IntervalId
from railyard.experiments.predict import steered_times
from railyard.experiments.run.session import ControllerEvent, FabricSession, Steps, repeat_suffix
from railyard.experiments.run.traffic import Workload, run_workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.routing import RoutingSpec
from railyard.results.runs.records import Choice, Event, HealthSample, Run
from railyard.workloads.background.flows import background, reserved
from railyard.workloads.background.spec import BackgroundSpec

MakeWorkloads = Callable[[int], list[Workload]]  # from a seed to the workloads, with what is drawn from it
On = frozenset[int]  # the entries of the background that are on


def load_steered(session: FabricSession, make: MakeWorkloads, spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    """Run everything that the experiment's section `routing` asks for, on one fabric."""
    routing = spec.routing
    assert routing is not None
    scenes = [("", spec.background)]
    if spec.grid:
        scenes = [(scene.name, scene.background(session.plan.spec)) for scene in spec.grid.scenes]
    address = session.controller.start_health(routing.health)
    agents = AgentsProcess(session.plan, session.on_event)
    try:
        for repeat in range(spec.repeats):
            seed = spec.seed + repeat
            for workload, (scene, loaded), policy in product(make(seed), scenes, routing.policies):
                steered_session, workload = replace(session, steered_by=policy), replace(workload, scene=scene)
                steered_run = SteeredRun(steered_session, loaded, routing, workload, repeat, seed, run)
                what = f"{steered_session.name}: {', '.join(filter(None, (workload.label, scene)))}"
                what += repeat_suffix(repeat, spec.repeats)
                with steps.step(what, total=sum(workload.schedule.matrix.values())):
                    steered_run.measure(agents, address, steps.reached)
    finally:
        agents.stop()
        session.controller.stop_health()


@dataclass(frozen=True)
class SteeredRun:
    """One policy (`session.steered_by`), workload and seed, and the records that its measurements are added to."""

    session: FabricSession
    background: tuple[BackgroundSpec, ...]
    routing: RoutingSpec
    workload: Workload
    repeat: int
    seed: int
    run: Run

    def measure(self, agents: AgentsProcess, address: str, progress: Callable[[int], None]) -> None:
        """Steer, begin the background, replay the workload after a while, and record it all."""
        plan, policy, begun_ns = self.session.plan, self.session.steered_by, time.monotonic_ns()
        flows = steered_times.flows_in(self.workload.schedule, plan.gpus)
        pattern = steered_times.Pattern(plan, self.background)
        knows_load = HEALTH_POLICIES[policy].knows_load
        assign = cache(lambda on: steered_times.oracle_paths(plan, flows, pattern.flows(on)) if knows_load else {})
        steering = self.routing.steering(policy, plan.spec, self.seed, assign(pattern.at(0.0)))
        known = steered_times.completion_s(pattern, flows, steering) if self.workload.independent else None
        time.sleep(self.routing.settle)  # what was before is out of the scores: every policy begins with an idle fabric
        agents.steer(steering, address, self.routing.health.stale, [(flow.src, flow.dst) for flow in flows])
        steered_ns = time.monotonic_ns()
        on_change = (lambda on: agents.assign(assign(on))) if knows_load else (lambda on: None)
        with (
            reserved(plan, pattern.flows(range(len(self.background)))),
            background(plan, self.background) as traffic,
            self._following(pattern, traffic.start_ns, on_change),
        ):
            time.sleep(self.routing.settle)
            run_workload(self.session, self.workload, self.repeat, self.seed, self.run, progress, known)
        ended_ns = time.monotonic_ns()
        agents.release()
        received = [event for event in self.session.events() if event[0] >= begun_ns]
        if any(what == "changed" and steered_ns < at <= ended_ns for at, what, _ in received):
            self.run.loads[-1] = replace(self.run.loads[-1], rerouted=True)
        self._record(received, steered_ns)

    @property
    def _interval(self) -> IntervalId:
        return self.session.interval(self.workload.label, self.repeat, self.workload.scene)

    @contextmanager
    def _following(
        self, pattern: steered_times.Pattern, start_ns: int, on_change: Callable[[On], None]
    ) -> Iterator[None]:
        """Record each change of the background when it is due, and call `on_change` with the entries that are on."""
        stopped = threading.Event()

        def follow() -> None:
            at_s: float | None = 0.0
            before: On = frozenset()
            while at_s is not None and not stopped.wait(max(0.0, start_ns / 1e9 + at_s - time.monotonic())):
                on = pattern.at(at_s)
                for number in sorted(before ^ on):
                    spec = self.background[number]
                    what = {**self._interval.as_dict(), "text": spec.text, **spec.model_dump(mode="json")}
                    act = "on" if number in on else "off"
                    self.run.events.append(Event(start_ns + round(at_s * 1e9), "background", act, what))
                if at_s > 0:
                    on_change(on)
                before, at_s = on, pattern.next_change(at_s)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _record(self, received: list[ControllerEvent], steered_ns: int) -> None:
        """Record scores, paths and reroutes. The first routes follow from no change of scores."""
        interval = self._interval
        put_ns: dict[int, int] = {}
        for at, what, detail in received:
            if what == "health":
                put_ns.setdefault(detail["version"], detail["put_ns"])
                self.run.health += [
                    HealthSample(interval, at, element, index, load, score)
                    for element in ("rail", "domain", "spine")
                    for index, (load, score) in enumerate(detail[element])
                ]
            elif what == "choice":
                self.run.choices.append(Choice(interval, at, detail["src"], detail["dst"], detail["paths"]))
        for at, what, detail in received:
            if what == "changed" and put_ns.get(detail["version"], 0) > steered_ns:
                # routes that had to wait for their pair's dwell time say nothing of how quick they are
                took = {"ms": (at - put_ns[detail["version"]]) / 1e6 if detail["news"] else None}
                self.run.events.append(Event(at, "steering", "changed", {**interval.as_dict(), **detail, **took}))
