"""A workload on a built fabric: replayed, measured beside its prediction, and its bytes counted three ways."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.workloads.phase_times import phase_times
from railyard.experiments.measures.workloads.predictions import Prediction, ReplayConditions, predictions_of
from railyard.experiments.measures.workloads.records import UPLINK_BYTES, UPLINK_IMBALANCE, WAITS, WaitRecord
from railyard.experiments.measures.workloads.turn import Turn, Workload
from railyard.experiments.run import observers
from railyard.experiments.run.session import FabricSession
from railyard.results.runs.records import (
    CLOCK_UNCERTAINTY,
    THROUGHPUT,
    UNDERLAY_BYTES,
    ByteCheck,
    Event,
    Flow,
    Measurement,
    Run,
)
from railyard.results.theory.ecmp import imbalance, uplink_imbalance
from railyard.results.theory.path_seconds import PathSeconds
from railyard.results.theory.predict import predict_schedule, project_to_full_size
from railyard.topologies.addresses import UPLINK_PORT, gpu_at
from railyard.topologies.build.shaping import IP_TCP, payload_fraction
from railyard.topologies.prediction import WHOLE
from railyard.workloads.collectives.algorithm import Sizes, operation_of
from railyard.workloads.matrix.traffic_matrix import (
    cross_rail_bytes,
    line_rate_duration_s,
    port_bytes,
    ways,
)
from railyard.workloads.matrix.waiting import (
    member_names,
    pair_name,
    unreachable_pairs,
    wait_line,
    waiting_transfers,
    waits,
    without_transfers,
)
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import Place, Replay, replay, time_limit_s
from railyard.workloads.schedule import Rates, Schedule, payload_rates

_UNSAFE_IN_PATH: Final = re.compile(r"[^A-Za-z0-9._]+")
# of a replay in which a communicator waits for ever: the time for the transfers that can run, at line rate and after
WAITING_FACTOR: Final = 2
WAITING_MARGIN_S: Final = 3.0


class PortBytes(NamedTuple):
    """Bytes received at the rail switches' GPU ports, and of each uplink by (rail switch, "out" or "in", spine)."""

    gpus: int
    uplinks: dict[tuple[str, str, int], int]

    def since(self, before: "PortBytes") -> "PortBytes":
        """Return the bytes after an earlier reading of the same ports."""
        uplinks = {uplink: size - before.uplinks[uplink] for uplink, size in self.uplinks.items()}
        return PortBytes(self.gpus - before.gpus, uplinks)


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
    times = _record(session, workload, turn.interval, done, run, predicted, counted)
    _record_projections(session, workload, turn.interval, times, run)
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
    _record(turn.session, turn.workload, interval, done, turn.run, {}, None)


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


def _record(
    session: FabricSession,
    workload: Workload,
    interval: IntervalId,
    done: Replay,
    run: Run,
    predicted: Mapping[str, float],
    counted: PortBytes | None,
) -> dict[str, float]:
    """Record a replay: events, flows, bytes and measurements; return the times of `_times`.

    `counted`: of the replay alone; None while faults are injected.
    """
    times = _times(workload, done)
    run.events.append(Event(done.start_ns, "workload", "started", interval.as_dict()))
    finished = {**interval.as_dict(), "broken": list(done.broken)}
    run.events.append(Event(done.end_ns, "workload", "finished", finished))
    run.flows.extend(flows_of(session, workload.schedule, interval, done))
    run.bytes.append(_byte_check(session, workload.schedule, interval, done, counted))
    run.rows(WAITS).extend(_waits(session, workload.schedule, interval, done))
    if times:
        rate = sum(done.delivered.values()) * 8 / times[WHOLE]
        run.measurements.append(Measurement(interval, WHOLE, THROUGHPUT, rate, "bit/s"))
    measured_imbalance = None
    if counted is not None and counted.uplinks:
        measured_imbalance = _record_uplinks(session, workload.schedule, interval, done.end_ns, counted.uplinks, run)
    conditions = ReplayConditions(
        is_iteration=workload.iteration,
        is_steered=bool(session.steered_by),
        is_faulted=counted is None,
        one_way=_latencies(session, run),
        uplink_imbalance=measured_imbalance,
        not_compared=session.not_compared,
    )
    if times:
        predictions = predictions_of(workload.schedule, session.plan, predicted, conditions)
        frames = _frames_of_messages(workload.schedule, session.plan.spec.mtu)
        for phase, seconds in times.items():
            metric = "completion_time"
            if phase == WHOLE and workload.iteration:
                metric = "iteration_time"
            row = measurement_row(interval, phase, metric, seconds, frames[phase], predictions[phase])
            run.measurements.append(row)
    return times


def _times(workload: Workload, done: Replay) -> dict[str, float]:
    """Return the seconds of the whole replay and of each phase; none if a transfer did not arrive."""
    schedule = workload.schedule
    if len(done.delivered) != len(schedule.transfers):
        return {}
    # Eq. 6 and the simulation of stragglers count computing; a prediction of plain traffic counts bytes alone
    has_computing = workload.iteration or schedule.iteration is not None or schedule.is_uneven
    whole_s = done.seconds if has_computing else done.transfer_seconds
    times = {WHOLE: whole_s}
    if workload.iteration or len(schedule.phases) > 1:
        spans = {number: (start / 1e9, end / 1e9) for number, (start, end) in done.spans.items()}
        for phase, durations in phase_times(schedule, spans).items():
            times[phase] = median(durations)
    return times


def flows_of(session: FabricSession, schedule: Schedule, interval: IntervalId, done: Replay) -> Iterator[Flow]:
    """Yield one flow per transfer. A corrupt transfer counts as not delivered."""
    names = [gpu.name for gpu in session.plan.gpus]
    operations = [operation_of(phase) for phase in schedule.phases]
    intact = done.delivered.keys() - set(done.corrupt)
    for number, transfer in schedule.transfers:
        phase = schedule.phases[transfer.phase]
        start_ns, end_ns = done.spans.get(number, (0, 0))
        yield Flow(
            interval=interval,
            phase=phase.name,
            kind=phase.kind,
            src=names[transfer.src],
            dst=names[transfer.dst],
            bytes=transfer.bytes,
            delivered=done.delivered[number] if number in intact else 0,
            start_ns=start_ns,
            end_ns=end_ns,
            operation=operations[transfer.phase],
            stage=phase.stage,
            step=phase.step,
        )


def _byte_check(
    session: FabricSession, schedule: Schedule, interval: IntervalId, done: Replay, counted: PortBytes | None
) -> ByteCheck:
    """Compare the bytes at receivers and ports with those of the schedule, without transfers that wait for ever.

    Cross-rail bytes are those of the matrix, or of the uplinks if more.
    """
    waiting = waiting_transfers(schedule, session.plan.spec)
    sent = without_transfers(schedule, waiting)
    asked = sent.matrix
    delivered = done.delivered_matrix
    # On a steered or broken fabric, and beside a background, the ports carry more than the schedule says.
    ports_expected = 0
    if counted is not None and not session.steered_by:
        ports_expected = int(port_bytes(sent, session.plan.spec).rail_out.sum())
    ports_counted = counted or PortBytes(0, {})
    uplinks_out = 0
    for (_, direction, _), size in ports_counted.uplinks.items():
        if direction == "out":
            uplinks_out += size
    pairs_wrong = 0
    for pair in asked.keys() | delivered.keys():
        pairs_wrong += asked.get(pair) != delivered.get(pair)
    return ByteCheck(
        interval=interval,
        asked_bytes=sum(asked.values()),
        delivered_bytes=sum(delivered.values()),
        pairs_wrong=pairs_wrong,
        rail_port_bytes=ports_counted.gpus,
        rail_expected_bytes=round(ports_expected / payload_fraction(session.plan.spec.mtu)),
        cross_rail_bytes=max(cross_rail_bytes(sent, session.plan.spec.rail_of_rank), uplinks_out),
    )


def _waits(session: FabricSession, schedule: Schedule, interval: IntervalId, done: Replay) -> Iterator[WaitRecord]:
    """Yield a record for each communicator that waits for ever."""
    fabric = session.plan.spec
    waited_s = (time.monotonic_ns() - done.start_ns) / 1e9
    delivered_pairs = done.delivered_matrix.keys()
    for wait in waits(schedule, fabric):
        yield WaitRecord(
            interval=interval,
            communicator=wait.communicator,
            operation=wait.operation,
            ranks=member_names(wait.members, schedule.rails),
            pair=pair_name(wait.pairs[0], schedule.rails),
            pairs=len(wait.pairs),
            waited_s=waited_s,
            arrived=sum(pair in delivered_pairs for pair in wait.pairs),
            line=wait_line(wait, schedule.rails, fabric.chosen_policy),
        )


def _frames_of_messages(schedule: Schedule, mtu: int) -> dict[str, float]:
    """Return the frames of the median message of each phase, and of the whole."""
    sizes = defaultdict[str, list[int]](list)
    for _, transfer in schedule.transfers:
        sizes[schedule.phases[transfer.phase].name].append(transfer.bytes)
        sizes[WHOLE].append(transfer.bytes)
    return {phase: median(messages) / (mtu - IP_TCP) for phase, messages in sizes.items()}


def measurement_row(
    interval: IntervalId, phase: str, metric: str, seconds: float, frames: float, prediction: Prediction
) -> Measurement:
    """Return the row of a measured time beside its prediction. `frames`: of the median message."""
    explained_most = prediction.explained_most
    credit_share = 0.0
    with_latency_s = None
    if prediction.seconds:
        credit_share = prediction.credit_s / prediction.seconds
        if prediction.latency_s is not None:
            # latency prolongs the time, so it raises the ratio that is explained at most
            explained_most += prediction.latency_s / prediction.seconds
            with_latency_s = prediction.seconds + prediction.latency_s
    return Measurement(
        interval,
        phase,
        metric,
        seconds,
        "s",
        prediction.seconds,
        prediction.explained_least,
        explained_most,
        predicted_by_uplink=prediction.by_uplink_s,
        frames=frames,
        credit_share=credit_share,
        shares_links_with=prediction.shares_links_with,
        predicted_with_latency=with_latency_s,
        formula=prediction.formula,
        not_compared=prediction.not_compared,
    )


def _record_projections(
    session: FabricSession, workload: Workload, interval: IntervalId, times: Mapping[str, float], run: Run
) -> None:
    """Record what the times mean on the real cluster: with this fabric's shape, and at full size."""
    for phase, seconds in times.items():
        same_shape_s = seconds / workload.scale.time_factor
        run.measurements.append(Measurement(interval, phase, "projected_same_shape", same_shape_s, "s"))
    full_size_s = project_to_full_size(workload.scale, workload.schedule, times, session.plan.spec)
    for phase, seconds in full_size_s.items():
        run.measurements.append(Measurement(interval, phase, "projected_full_size", seconds, "s"))


def _latencies(session: FabricSession, run: Run) -> PathSeconds | None:
    """Return the one-way latency of each path as calibration measured it; None if a path's is not known."""
    latency_s = {link.link_class: link.latency_s for link in run.links if link.fabric == session.label}
    hb_s = latency_s.get("hb")
    rail_s = latency_s.get("rail")
    if hb_s is None or rail_s is None:
        return None
    # without spines, a GPU of the HB domain forwards what changes rails
    cross_rail_s = latency_s.get("uplink") or hb_s + rail_s
    return PathSeconds(hb_s, rail_s, cross_rail_s)


def _record_uplinks(
    session: FabricSession,
    schedule: Schedule,
    interval: IntervalId,
    end_ns: int,
    uplinks: Mapping[tuple[str, str, int], int],
    run: Run,
) -> float | None:
    """Record the bytes of every uplink, and return their imbalance; None if no bytes have a choice of uplinks.

    It is recorded beside what ECMP or the policy is expected to give.
    """
    fabric = session.plan.spec
    sizes = Sizes.of(schedule.matrix)
    routed = [(sizes, ways(sizes.src, sizes.dst, schedule.rails, fabric))]
    expected = uplink_imbalance(routed, schedule.rails, fabric.domains, fabric, "expected")
    if expected is None:
        return None
    by_switch: defaultdict[str, list[int]] = defaultdict(lambda: [0] * fabric.spine_count)
    for (switch, direction, spine), size in uplinks.items():
        by_switch[f"{switch} {direction}"][spine] = size
    run.events.append(Event(end_ns, "fabric", UPLINK_BYTES, {**interval.as_dict(), "bytes": dict(by_switch)}))
    measured = imbalance(np.array(list(by_switch.values())))
    # a policy moves flows between uplinks meanwhile, and what hashing is expected to give no longer holds
    predicted = None if session.steered_by else expected
    run.measurements.append(Measurement(interval, WHOLE, UPLINK_IMBALANCE, measured, "ratio", predicted))
    return measured


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
