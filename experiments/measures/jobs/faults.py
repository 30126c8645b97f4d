"""Faults while several jobs run: injected and repaired during a replay."""

from concurrent.futures import Future, ThreadPoolExecutor

from railyard.core.errors import CheckFailed
from railyard.core.wait import sleep_until
from railyard.experiments.run import observers
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.faults import FaultSpec
from railyard.failure.active import PREPARE_S, ActiveFault
from railyard.workloads.replay.run import CONNECT_S, Replay, replay
from railyard.workloads.schedule import Schedule

Injection = tuple[int, int]
"""When a fault was injected and repaired, monotonic ns."""


def replay_with_fault(
    session: FabricSession, schedule: Schedule, fault: FaultSpec, seed: int, limit_s: float
) -> tuple[Replay, ActiveFault]:
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
    return done, active
