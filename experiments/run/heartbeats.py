"""Hearts that beat on an experiment's fabric while things break there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, cast

from railyard.controller.processes.clients import HeartsCost, HeartsProcess
from railyard.experiments.run.session import Stage
from railyard.experiments.spec.heartbeats import HeartbeatsSpec
from railyard.failure.analysis.false_alarms import Stood, false_alarms
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.results.runs.records import Measurement, Recovery, Run
from railyard.results.theory.predict import WHOLE

WORKLOAD: Final = "heartbeats"
"""What records call them."""
BEAT_BYTES: Final = 46
"""On a link, with headers: Ethernet 14, IP 20, UDP 8, the round's number 4."""


@contextmanager
def beating(stage: Stage, heartbeats: HeartbeatsSpec | Literal["off"], run: Run) -> Iterator[None]:
    """While entered, GPUs hear whether the others live, and the controller is told of what is silent. What that cost,
    and how often it was wrong, is measured over all of it.
    """
    if heartbeats == "off":
        yield
        return

    def relay(_: int, what: str, detail: dict[str, Any]) -> None:
        if what == "silence":
            stage.controller.hear_hearts(detail)

    earlier = len(run.recoveries)
    hearts = HeartsProcess(stage.plan, heartbeats.period, heartbeats.multiplier, relay)
    try:
        yield
        run.measurements += _cost(stage, hearts.cost())
        alarms = false_alarms(stage.events(), list(map(_stood, run.recoveries[earlier:])), stage.plan)
        run.measurements.append(_of(stage, "false_alarms", alarms, "1"))
    finally:
        hearts.stop()


def _cost(stage: Stage, cost: HeartsCost) -> list[Measurement]:
    """Packets a second of all GPUs, a rail link's share of them in each direction, a core's share of making them.

    Half of them cross rails, and each crosses its sender's link and its hearer's.
    """
    packets = cost.sent / cost.seconds
    on_a_link = packets / 2 / len(stage.plan.gpus)
    values = (
        ("packets", packets, "1/s"),
        ("rail_link_share", on_a_link * BEAT_BYTES * 8 / stage.plan.rail_bps, "share"),
        ("core_share", cost.cpu_s / cost.seconds, "share"),
    )
    return [_of(stage, *value) for value in values]


def _stood(row: Recovery) -> Stood:
    return Stood(Fault(cast(FaultKind, row.fault), row.target), row.t_fault, row.t_repair)


def _of(stage: Stage, metric: str, value: float, unit: str) -> Measurement:
    return Measurement(stage.label, stage.policy, WORKLOAD, WHOLE, metric, value, unit)
