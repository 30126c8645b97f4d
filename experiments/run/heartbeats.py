"""Hearts that beat on an experiment's fabric while things break there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from railyard.controller.processes.clients import HeartbeatProcess
from railyard.controller.processes.messages import HeartbeatCost
from railyard.core.records import Recovery
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.routing import HeartbeatsSpec
from railyard.failure.analysis.controller_events import FaultInterval, false_alarms
from railyard.failure.faults import Fault
from railyard.results.runs.records import Measurement, Run
from railyard.results.theory.predict import WHOLE

WORKLOAD: Final = "heartbeats"
"""What records call them."""
HEARTBEAT_BYTES: Final = 46
"""On a link, with headers: Ethernet 14, IP 20, UDP 8, the round's number 4."""


@contextmanager
def heartbeats_running(session: FabricSession, heartbeats: HeartbeatsSpec | Literal["off"], run: Run) -> Iterator[None]:
    """While entered, GPUs hear whether the others live, and the controller is told of what is silent. What that cost,
    and how often it was wrong, is measured over all of it.
    """
    if heartbeats == "off":
        yield
        return

    def relay(_: int, what: str, detail: dict[str, Any]) -> None:
        if what == "silence":
            session.controller.on_heartbeats(detail)

    earlier = len(run.recoveries)
    heartbeat_process = HeartbeatProcess(session.plan, heartbeats.period, heartbeats.multiplier, relay)
    try:
        yield
        run.measurements += _cost(session, heartbeat_process.cost())
        alarms = false_alarms(session.events(), list(map(_fault_interval, run.recoveries[earlier:])), session.plan)
        run.measurements.append(_of(session, "false_alarms", alarms, "1"))
    finally:
        heartbeat_process.stop()


def _cost(session: FabricSession, cost: HeartbeatCost) -> list[Measurement]:
    """Packets a second of all GPUs, a rail link's share of them in each direction, a core's share of making them.

    Half of them cross rails, and each crosses its sender's link and its hearer's.
    """
    packets = cost.sent / cost.seconds
    link_packets = packets / 2 / len(session.plan.gpus)
    values = (
        ("packets", packets, "1/s"),
        ("rail_link_share", link_packets * HEARTBEAT_BYTES * 8 / session.plan.rail_bps, "share"),
        ("core_share", cost.cpu_s / cost.seconds, "share"),
    )
    return [_of(session, *value) for value in values]


def _fault_interval(row: Recovery) -> FaultInterval:
    return FaultInterval(Fault(row.fault, row.target), row.t_fault, row.t_repair)


def _of(session: FabricSession, metric: str, value: float, unit: str) -> Measurement:
    return Measurement(session.interval(WORKLOAD), WHOLE, metric, value, unit)
