"""A workload on a built fabric: replayed once, alone or while faults are active, and recorded."""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from railyard.core.records import IntervalId
from railyard.experiments.measures.workloads.outcome import PortBytes, record, record_projections
from railyard.experiments.measures.workloads.turn import Turn, Workload
from railyard.experiments.run import observers
from railyard.experiments.run.session import FabricSession
from railyard.results.runs.records import CLOCK_UNCERTAINTY, UNDERLAY_BYTES, Measurement, Run
from railyard.results.theory.predict import predict_schedule
from railyard.topologies.addresses import UPLINK_PORT, gpu_at
from railyard.topologies.prediction import WHOLE
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s, port_bytes
from railyard.workloads.matrix.waiting import unreachable_pairs, waiting_transfers
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import Place, Replay, replay, time_limit_s
from railyard.workloads.schedule import Rates, Schedule, payload_rates

_UNSAFE_IN_PATH: Final = re.compile(r"[^A-Za-z0-9._]+")
# of a replay in which a communicator waits for ever: the time for the transfers that can run, at line rate and after
WAITING_FACTOR: Final = 2
WAITING_MARGIN_S: Final = 3.0


def run_workload(turn: Turn, predicted_s: float | None = None) -> None:
    """Replay a workload once and add everything to the run.

    `predicted_s`: predicted time of the whole on a steered fabric, s, which the equations don't cover; None: unknown.
    """
    session = turn.session
    workload = turn.workload
    schedule = workload.schedule
    run = turn.run
    predicted = _predicted_seconds(session, workload, predicted_s)
    limit_s = _limit_s(session, workload, predicted)
    # ports are counted since the switches were made, and earlier replays crossed them too
    before = _counted(session)
    # TCP takes a queue that grows fast for a loss, and the real fabrics' RDMA has no such timer
    queue_s = longest_queue_s(schedule, session.plan, session.windows)
    shown = observers.replay_callbacks(schedule)
    with (
        session.relaxed_tcp_timers(queue_s),
        beside_machines(session, schedule, turn.interval, run) as places,
        session.watch().record_load(run, turn.interval),
    ):
        done = replay(
            schedule, session.windows, turn.seed, limit_s, turn.progress, places=places,
            unreachable=unreachable_pairs(schedule, session.plan.spec), **shown,
        )  # fmt: skip
    counted = _counted(session).since(before)
    times = record(session, workload, turn.interval, done, run, predicted, counted)
    record_projections(session, workload, turn.interval, times, run)
    if workload.measured_files is not None:
        # labels have spaces, and those of plugins may have slashes
        parts = (session.name, workload.label, str(turn.repeat))
        safe_parts = [_UNSAFE_IN_PATH.sub("-", part) for part in parts]
        folder = "/".join(safe_parts)
        for name, content in workload.measured_files(done.spans).items():
            run.files[f"traces/{folder}/{name}"] = content


def run_faulted_workload(turn: Turn, interval: IntervalId) -> None:
    """Replay a workload once while faults are active, and add everything to the run, without predictions."""
    with turn.session.watch().record_load(turn.run, interval, faulted=True):
        done = replay_faulted(turn, observers.replay_callbacks(turn.workload.schedule))
    record_faulted(turn, interval, done)


def replay_faulted(
    turn: Turn,
    callbacks: Mapping[str, Any],
    faults_s: float = 0.0,
    abort: threading.Event | None = None,
    places: Sequence[Place] = (),
) -> Replay:
    """Replay a workload once while faults are active.

    `callbacks`: of observers.replay_callbacks. `faults_s`: how much longer faults may make it, s. `abort`, `places`: as
    of workloads.replay.run.replay.
    """
    session = turn.session
    schedule = turn.workload.schedule
    limit_s = _limit_s(session, turn.workload, _predicted_seconds(session, turn.workload, None)) + faults_s
    # the kernel's own TCP timers are kept: how soon TCP notices a loss is part of what a fault costs
    unreachable = unreachable_pairs(schedule, session.plan.spec)
    return replay(
        schedule, session.windows, turn.seed, limit_s, abort=abort, places=places, unreachable=unreachable, **callbacks
    )


def record_faulted(turn: Turn, interval: IntervalId, done: Replay) -> None:
    """Record a replay during which faults were active."""
    # No equation predicts its times. Detours cross the same ports as its bytes, so port counters say nothing.
    record(turn.session, turn.workload, interval, done, turn.run, {}, None)


@contextmanager
def beside_machines(
    session: FabricSession, schedule: Schedule, interval: IntervalId, run: Run
) -> Iterator[Sequence[Place]]:
    """Yield the machines of a replay, none if there is one; record their clocks, and what their underlay carried."""
    machines = session.machines
    if not machines.are_several:
        yield ()
        return
    before_s = machines.measure_clocks()
    sent_before = machines.underlay_sent_bytes()
    yield machines.places()
    sent_after = machines.underlay_sent_bytes()
    uncertainty_s = max(before_s, machines.measure_clocks())
    run.measurements.append(Measurement(interval, WHOLE, CLOCK_UNCERTAINTY, uncertainty_s, "s"))
    ports = port_bytes(schedule, session.plan.spec)
    predicted = machines.expected_underlay_bytes(ports.rail_out.tolist(), ports.rail_in.tolist(), session.plan.spec.mtu)
    row = Measurement(interval, WHOLE, UNDERLAY_BYTES, float(sent_after - sent_before), "B", predicted or None)
    run.measurements.append(row)
    run.provenance["machines"] = machines.provenance()


def _predicted_seconds(session: FabricSession, workload: Workload, predicted_s: float | None) -> dict[str, float]:
    """Return the predicted time of each phase and of the whole. On a steered fabric `predicted_s` is the only one."""
    if session.steered_by:
        if predicted_s is None:
            return {}
        return {WHOLE: predicted_s}
    return predict_schedule(workload.schedule, _rates(session), session.plan.spec)


def _limit_s(session: FabricSession, workload: Workload, predicted: Mapping[str, float]) -> float:
    """Return the time limit of a replay, s; a short one for a replay that can't end."""
    if waiting_transfers(workload.schedule, session.plan.spec):
        # the other transfers take this long at most, each after the other
        reachable_s = line_rate_duration_s(workload.schedule, _rates(session), session.plan.spec)
        return reachable_s * WAITING_FACTOR + WAITING_MARGIN_S
    whole_s = predicted.get(WHOLE)
    if not whole_s:
        whole_s = line_rate_duration_s(workload.schedule, _rates(session), session.plan.spec)
    return time_limit_s(whole_s)


def _rates(session: FabricSession) -> Rates:
    return payload_rates(session.plan.hb_bps, session.plan.rail_bps, session.plan.spec.mtu)


def _counted(session: FabricSession) -> PortBytes:
    """Return the counters of the rail switches' ports since they were made, by OpenFlow."""
    counters = session.controller.port_counters(len(session.plan.switches))
    gpus = 0
    uplinks: dict[tuple[str, str, int], int] = {}
    for switch in session.plan.switches:
        for port, values in counters[switch.name].items():
            if gpu_at(switch.dpid, port):
                gpus += values["rx_bytes"]
            elif switch.role == "rail":
                spine = port - UPLINK_PORT
                uplinks[switch.name, "out", spine] = values["tx_bytes"]
                uplinks[switch.name, "in", spine] = values["rx_bytes"]
    return PortBytes(gpus, uplinks)
