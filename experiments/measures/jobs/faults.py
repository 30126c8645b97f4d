"""Faults while several jobs run: injected and repaired during a replay, and their effect by max-min fair shares."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from railyard.core.errors import CheckFailed
from railyard.core.wait import sleep_until
from railyard.experiments.run import observers
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.faults import FaultSpec
from railyard.failure.active import PREPARE_S, ActiveFault
from railyard.failure.faults import FAULTS
from railyard.failure.faults.link_slow import LinkSlow
from railyard.results.theory.fluid.jobs import JobsPrediction
from railyard.results.theory.fluid.routes import Port, is_hashed
from railyard.results.theory.fluid.simulation import Conditions, FluidRun, RateChange, simulate
from railyard.topologies.addresses import link_of_name
from railyard.topologies.plan import Plan
from railyard.workloads.replay.run import CONNECT_S, Replay, replay
from railyard.workloads.schedule import Rates, Schedule

Injection = tuple[int, int]
"""When a fault was injected and repaired, monotonic ns."""


def replay_with_fault(
    session: FabricSession, schedule: Schedule, fault: FaultSpec, seed: int, limit_s: float
) -> tuple[Replay, Injection]:
    """Replay a schedule, and inject and repair a fault meanwhile. CheckFailed if it is over before the fault."""
    started = Future[int]()
    shown = observers.replay_callbacks(schedule, started.set_result)
    active = ActiveFault(session.net, fault.fault, observers.show_fault)
    with ThreadPoolExecutor(1, "jobs") as pool, active:
        replaying = pool.submit(replay, schedule, session.windows, seed, limit_s, **shown)
        replaying.add_done_callback(lambda done: started.cancel())
        begun_s = started.result(CONNECT_S) / 1e9
        # so that the injection is not late
        sleep_until(begun_s + fault.at - PREPARE_S)
        active.prepare()
        sleep_until(begun_s + fault.at)
        active.inject(round((begun_s + fault.at) * 1e9))
        active.confirm()
        sleep_until(begun_s + fault.at + fault.repair)
        active.repair()
        done = replaying.result()
    if active.injected_ns > done.end_ns:
        raise CheckFailed(f"{fault.label} was injected after the end of the jobs: they need more iterations")
    return done, (active.injected_ns, active.repaired_ns)


def predicted_with_fault(prediction: JobsPrediction, fault: FaultSpec, plan: Plan, rates: Rates) -> FluidRun | None:
    """Simulate all jobs with links that the fault slows.

    None for a fault that does more, such as new routes, and where a hash decides which flows meet.
    """
    definition = FAULTS[fault.kind]
    routes = prediction.together.routes
    if not isinstance(definition, LinkSlow) or is_hashed(routes, plan.spec):
        return None
    changes = tuple(_rate_changes(fault, definition, plan, routes.ports))
    return simulate(prediction.combined.schedule, rates, plan.spec, Conditions(changes=changes))


def _rate_changes(fault: FaultSpec, definition: LinkSlow, plan: Plan, used: tuple[Port, ...]) -> Iterator[RateChange]:
    """Yield the changes of a slow link in both directions, when it becomes slow and when it is repaired.

    `used`: the ports that any transfer crosses.
    """
    parameters = fault.parameters
    assert isinstance(parameters, LinkSlow.Parameters)
    node = fault.target
    plane = 0
    if fault.target not in plan.nics:
        gpu, plane = link_of_name(fault.target)
        node = gpu.name
    for is_out in (True, False):
        port = Port(node, definition.layer, is_out, plane=plane)
        # a link that carries nothing makes no difference
        if port in used:
            yield RateChange(fault.at, port, parameters.rate)
            yield RateChange(fault.at + fault.repair, port, 1.0)
