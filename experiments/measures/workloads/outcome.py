"""Outcome of a workload's replay: its times beside their predictions, and its bytes counted three ways."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import NamedTuple

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.workloads.phase_times import phase_times
from railyard.experiments.measures.workloads.predictions import Prediction, ReplayConditions, predictions_of
from railyard.experiments.measures.workloads.records import UPLINK_BYTES, UPLINK_IMBALANCE, WAITS, WaitRecord
from railyard.experiments.measures.workloads.turn import Workload
from railyard.experiments.run.session import FabricSession
from railyard.results.runs.records import THROUGHPUT, ByteCheck, Event, Flow, Measurement, Run
from railyard.results.theory.ecmp import imbalance, uplink_imbalance
from railyard.results.theory.path_seconds import PathSeconds
from railyard.results.theory.predict import project_to_full_size
from railyard.topologies.build.shaping import IP_TCP, payload_fraction
from railyard.topologies.prediction import WHOLE
from railyard.workloads.collectives.algorithm import Sizes, operation_of
from railyard.workloads.matrix.traffic_matrix import cross_rail_bytes, port_bytes, ways
from railyard.workloads.matrix.waiting import (
    member_names,
    pair_name,
    wait_line,
    waiting_transfers,
    waits,
    without_transfers,
)
from railyard.workloads.replay.run import Replay
from railyard.workloads.schedule import Schedule


class PortBytes(NamedTuple):
    """Bytes received at the rail switches' GPU ports, and of each uplink by (rail switch, "out" or "in", spine)."""

    gpus: int
    uplinks: dict[tuple[str, str, int], int]

    def since(self, before: "PortBytes") -> "PortBytes":
        """Return the bytes after an earlier reading of the same ports."""
        uplinks = {uplink: size - before.uplinks[uplink] for uplink, size in self.uplinks.items()}
        return PortBytes(self.gpus - before.gpus, uplinks)


def record(
    session: FabricSession,
    workload: Workload,
    interval: IntervalId,
    done: Replay,
    run: Run,
    predicted: Mapping[str, float],
    counted: PortBytes | None,
) -> dict[str, float]:
    """Record a replay: events, flows, bytes and measurements; return the seconds of the whole and of each phase.

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


def record_projections(
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
