"""Measures an experiment on fabrics of GPUs: builds and calibrates each, runs the workloads, injects the faults."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import inf
from typing import Final

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.controller.processes.clients import AgentsProcess
from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.core.wait import sleep_until
from railyard.experiments.measures.definition import RunContext, measures_of
from railyard.experiments.predict import steered_times
from railyard.experiments.run.fault_script import inject_faults
from railyard.experiments.run.progress import Steps, measure_undisturbed
from railyard.experiments.run.session import (
    ControllerEvent,
    FabricSession,
    built,
    check_links,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.experiments.run.traffic import Workload, run_workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.routing import RoutingSpec
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import (
    BACKGROUND_SENT,
    PROCESS,
    SLOWDOWN,
    Choice,
    Event,
    HealthSample,
    Measurement,
    Run,
)
from railyard.results.theory.predict import full_step_s
from railyard.topologies.capacity import Capacity, auto_rail_bps, max_rail_bps
from railyard.topologies.plan import Plan, make_plan
from railyard.workloads.background.flows import Background, reserved
from railyard.workloads.background.spec import BackgroundSpec
from railyard.workloads.spec import build

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
                steered_session = replace(session, steered_by=policy)
                workload = replace(workload, scene=scene)
                steered_run = SteeredRun(steered_session, loaded, routing, workload, repeat, seed, run)
                what = f"{steered_session.name}: {', '.join(filter(None, (workload.label, scene)))}"
                what += repeat_suffix(repeat, spec.repeats)
                interval = steered_session.interval(workload.label, repeat, scene)
                size = sum(workload.schedule.matrix.values())
                with steps.step(what, size, in_bytes=True), surviving_interruptions(run, interval):
                    measure_undisturbed(run, partial(steered_run.measure, agents, address, steps.reached))
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
        plan = self.session.plan
        policy = self.session.steered_by
        begun_ns = time.monotonic_ns()
        flows = steered_times.flows_in(self.workload.schedule, plan.gpus)
        pattern = steered_times.Pattern(plan, self.background)
        knows_load = HEALTH_POLICIES[policy].knows_load
        assign = cache(lambda on: steered_times.oracle_paths(plan, flows, pattern.flows(on)) if knows_load else {})
        steering = self.routing.steering(policy, plan.spec, self.seed, assign(pattern.at(0.0)))
        known = steered_times.completion_s(pattern, flows, steering) if self.workload.independent else None
        # what was before is out of the scores then: every policy begins with an idle fabric
        sleep_until(time.monotonic() + self.routing.settle)
        agents.steer(steering, address, self.routing.health.stale, [(flow.src, flow.dst) for flow in flows])
        steered_ns = time.monotonic_ns()
        on_change = (lambda on: agents.assign(assign(on))) if knows_load else (lambda on: None)
        with (
            reserved(plan, pattern.flows(range(len(self.background)))),
            Background(plan, self.background) as traffic,
            self._following(pattern, traffic.start_ns, on_change),
        ):
            sleep_until(time.monotonic() + self.routing.settle)
            run_workload(self.session, self.workload, self.repeat, self.seed, self.run, progress, known)
            sent = traffic.stop()
        totals = {"requested": sum(each.requested for each in sent), "sent": sum(each.sent for each in sent)}
        detail = {**self._interval.as_dict(), **totals}
        self.run.events.append(Event(time.monotonic_ns(), PROCESS, BACKGROUND_SENT, detail))
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
                before = on
                at_s = pattern.next_change(at_s)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _record(self, received: list[ControllerEvent], steered_ns: int) -> None:
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


SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that computes yields after so long, not after 5 ms: other threads react to events of the controller."""


def measure(spec: ExperimentSpec, datapath: Datapath, capacity: Capacity | None, run: Run, steps: Steps) -> None:
    """Measure everything of the specification on every fabric. `capacity`: of the machine, if it was measured."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    auto = auto_rail_bps(spec.gpu_fabrics, capacity) if capacity else 0
    plans = [make_plan(fabric, auto) for fabric in spec.gpu_fabrics]
    checked_plans = list(enumerate(plans))
    for each in measures_of(spec):
        checked_plans += each.plans(spec, capacity)
    for number, plan in checked_plans:
        check_rate(plan, number, capacity)
    if spec.has_load:
        for number, plan in enumerate(plans):
            with surviving_interruptions(run, IntervalId(spec.labels[number])):
                _load_and_break(spec, number, plan, datapath, run, steps)
    context = RunContext(spec, plans, datapath, capacity, run, steps)
    for each in measures_of(spec):
        each.run(context)
    for s in Analysis(run).slowdowns:
        run.measurements.append(Measurement(s.interval, s.row.phase, SLOWDOWN, s.measured, "ratio", s.predicted))


def check_rate(plan: Plan, number: int, capacity: Capacity | None) -> None:
    """Raise BadInput for a fabric whose rails are faster than this machine carries. `number`: of the fabric."""
    max_bps = max_rail_bps(plan.spec, capacity) if capacity else inf
    if plan.rail_bps > max_bps:
        most = f"{format_rate(max_bps, 2)} or less for {plan.spec.gpus} GPUs, or auto"
        value = format_rate(plan.rail_bps)
        raise BadInput(f"fabrics.{number}.rail_rate", value, f"is more than this machine carries: {most}")


def _load_and_break(spec: ExperimentSpec, number: int, plan: Plan, datapath: Datapath, run: Run, steps: Steps) -> None:
    """Build a fabric for each `reroute`; run the workloads on the first, before anything is broken; inject faults."""
    label = spec.labels[number]
    make = partial(make_workloads, spec, plan, label, run)
    for reroute in spec.reroutes_on(number):
        with ExitStack() as stack:
            with steps.step(f"{label}: building"):
                session = stack.enter_context(built(label, plan, datapath, reroute == "on", run))
            if reroute == spec.reroutes_on(number)[0]:
                with steps.step(f"{label}: calibrating links"):
                    check_links(session, run)
                load = load_steered if spec.routing else _load
                load(session, make, spec, run, steps)
            inject_faults(session, number, reroute, make, spec, run, steps)


def make_workloads(spec: ExperimentSpec, plan: Plan, label: str, run: Run, seed: int) -> list[Workload]:
    """Return the workloads of an experiment on one fabric, and record how they are scaled."""
    found = []
    for i, (name, workload) in enumerate(zip(spec.workload_labels, spec.workloads, strict=True)):
        built = build(workload, plan.spec, plan.rail_bps, plan.hb_bps, f"workloads.{i}", seed)
        is_iteration = workload.is_iteration
        is_independent = workload.is_independent
        scaled = Workload(name, built.schedule, built.scale, is_iteration, built.measured_files, is_independent)
        found.append(scaled)
        full_s = full_step_s(built.scale, plan.spec)
        run.scale.append({**built.scale.as_dict(), "workload": name, "fabric": label, "full_step_s": full_s})
    return found


def _load(session: FabricSession, make: MakeWorkloads, spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    workloads = make(spec.seed)
    for repeat in range(spec.repeats):
        for workload in workloads:
            what = f"{session.label}: {workload.label}" + repeat_suffix(repeat, spec.repeats)
            interval = session.interval(workload.label, repeat, workload.scene)
            size = sum(workload.schedule.matrix.values())
            with steps.step(what, size, in_bytes=True), surviving_interruptions(run, interval):
                replay = partial(run_workload, session, workload, repeat, spec.seed, run, steps.reached)
                measure_undisturbed(run, replay)
