"""Heartbeats between the GPUs of a built fabric, which report silent components to the controller, and their cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from railyard.controller.processes.clients import HeartbeatProcess
from railyard.experiments.run.session import FabricSession
from railyard.experiments.spec.heartbeats import HeartbeatsSpec
from railyard.failure.analysis.evaluate import false_alarms
from railyard.results.runs.records import Measurement, Run
from railyard.topologies.prediction import WHOLE

WORKLOAD: Final = "heartbeats"  # what records call them
# on a link, with headers: Ethernet 14, IP 20, UDP 8, the round's number 4
HEARTBEAT_BYTES: Final = 46


@contextmanager
def heartbeats_running(session: FabricSession, heartbeats: HeartbeatsSpec | Literal["off"], run: Run) -> Iterator[None]:
    """Send heartbeats between GPUs while entered, and report silent components to the controller.

    Over all of it, their cost and false alarms are measured: packets a second of all GPUs, their share of a rail link
    in each direction, and the share of a core that makes them.
    """
    if heartbeats == "off":
        yield
        return

    def relay(_: int, event_name: str, detail: dict[str, Any]) -> None:
        if event_name == "silence":
            session.controller.on_heartbeats(detail)

    plan = session.plan
    earlier = len(session.faults)
    heartbeat_process = HeartbeatProcess(plan, heartbeats.period, heartbeats.multiplier, relay)
    try:
        yield
        cost = heartbeat_process.cost()
        packets = cost.sent / cost.seconds
        # half of them cross rails, each over its sender's and its receiver's link
        link_packets = packets / 2 / len(plan.gpus)
        measured = (
            ("packets", packets, "1/s"),
            ("rail_link_share", link_packets * HEARTBEAT_BYTES * 8 / plan.rail_bps, "share"),
            ("core_share", cost.cpu_s / cost.seconds, "share"),
            ("false_alarms", false_alarms(session.events(), session.faults[earlier:], plan), "1"),
        )
        run.measurements += [Measurement(session.interval(WORKLOAD), WHOLE, *values) for values in measured]
    finally:
        heartbeat_process.stop()
