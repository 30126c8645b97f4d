"""A workload on a built fabric: replayed, measured beside its prediction, and its bytes counted three ways."""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from railyard.experiments.run.session import Stage
from railyard.results.runs.records import ByteCheck, Event, Flow, Measurement, Run
from railyard.results.theory.predict import WHOLE, phase_times, predict_schedule, project_to_full_size
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.build.tcp_timers import patient
from railyard.topologies.ports import UPLINK_PORT
from railyard.workloads.matrix.pace import pace
from railyard.workloads.matrix.traffic_matrix import cross_rail_bytes, port_bytes
from railyard.workloads.replay.job import Windows, fitting
from railyard.workloads.replay.phases import OnOver
from railyard.workloads.replay.run import Replay, replay
from railyard.workloads.scale import Scale, payload_rates, project
from railyard.workloads.schedule import Schedule
from railyard.workloads.traces.lower import Lowered
from railyard.workloads.traces.write_back import durations, write_back

_IN_A_PATH: Final = re.compile(r"[^A-Za-z0-9._]+")
SPARE_S: Final = 30.0
LEAST_PREDICTED_S: Final = 1e-4  # a barrier's byte: what takes less is up to packets and turns, not to bandwidth
SPARE: Final = 10  # a run that takes so many times its prediction has failed


@dataclass(frozen=True)
class Workload:
    """A workload as it runs on one fabric. `iteration`: it is a training iteration, and not plain traffic.

    `trace`: somebody else's, that the schedule was made of, and that gets back what is measured. `independent`: pairs
    send to each other, and nobody waits for another pair.
    """

    label: str
    schedule: Schedule
    scale: Scale
    iteration: bool
    trace: Lowered | None = None
    independent: bool = False


def run_workload(
    stage: Stage,
    workload: Workload,
    repeat: int,
    seed: int,
    run: Run,
    progress: Callable[[int], None],
    foreseen_s: float | None = None,
) -> None:
    """Replay it once and add everything to the run. `progress` gets the bytes delivered so far.

    On a steered fabric the equations say nothing, and `foreseen_s` (s, if anybody knows) is the whole's prediction.
    """
    predicted, within_s = _expected(stage, workload, foreseen_s)
    before = _counted(stage)
    with patient(stage.net.gpu_names), stage.watched(run, workload.label, repeat):
        done = replay(workload.schedule, _windows(stage), seed, within_s, progress)
    after = _counted(stage)
    _record(stage, workload, repeat, done, run)
    run.bytes.append(_bytes(stage, workload, repeat, done, (after[0] - before[0], after[1] - before[1])))
    run.measurements += _measurements(stage, workload, repeat, done, predicted)
    run.measurements += _projections(stage, workload, repeat, done)
    if workload.trace is not None:
        measured = durations(workload.trace, done.spans, workload.scale.time_factor)
        where = "/".join(_IN_A_PATH.sub("-", part) for part in (stage.label, workload.label, str(repeat)))
        files = write_back(workload.trace.trace, measured)
        run.files |= {f"traces/{where}/{name}": content for name, content in files.items()}


def replay_broken(
    stage: Stage,
    workload: Workload,
    seed: int,
    more_s: float,
    watched: Mapping[int, OnOver],
    abort: threading.Event,
    started: Callable[[int], None],
) -> Replay:
    """Replay it while things break, with the kernel's own patience. `more_s`: so much longer may it take."""
    _, within_s = _expected(stage, workload, None)
    windows = _windows(stage)
    return replay(workload.schedule, windows, seed, within_s + more_s, started=started, abort=abort, watched=watched)


def record_broken(stage: Stage, workload: Workload, repeat: int, done: Replay, run: Run) -> None:
    """What such a replay took, beside no prediction, and its bytes: ports count detours, too, so nobody asks them."""
    _record(stage, workload, repeat, done, run)
    run.bytes.append(_bytes(stage, workload, repeat, done, None))
    run.measurements += _measurements(stage, workload, repeat, done, {})


def _expected(stage: Stage, workload: Workload, foreseen_s: float | None) -> tuple[dict[str, float], float]:
    """(the prediction of each phase and the whole, s; how long it may take before it has failed, s)."""
    schedule, fabric = workload.schedule, stage.plan.spec
    rates = payload_rates(stage.plan.hb_bps, stage.plan.rail_bps, fabric.mtu)
    predicted = predict_schedule(schedule, rates, fabric)
    if stage.steered_by:
        predicted = {} if foreseen_s is None else {WHOLE: foreseen_s}
    whole = predicted.get(WHOLE) or pace(schedule, rates, fabric.chosen_policy)
    return predicted, whole * SPARE + SPARE_S


def _windows(stage: Stage) -> Windows:
    return fitting(stage.plan.hb_bps, stage.plan.rail_bps, stage.plan.spec.mtu)


def _record(stage: Stage, workload: Workload, repeat: int, done: Replay, run: Run) -> None:
    what = {"fabric": stage.label, "workload": workload.label, "repeat": repeat}
    run.events.append(Event(done.start_ns, "workload", "started", what))
    run.events.append(Event(done.end_ns, "workload", "finished", {**what, "broken": list(done.broken)}))
    run.flows += _flows(stage, workload, repeat, done)


def _counted(stage: Stage) -> tuple[int, int]:
    """(bytes that came in at the GPU ports of the rail switches, bytes that went in at their uplinks), by OpenFlow."""
    counters = stage.controller.port_counters(len(stage.plan.switches))
    gpus = uplinks = 0
    for switch in stage.plan.switches:
        for port, values in counters[switch.name].items():
            if switch.role == "single" or (switch.role == "rail" and port < UPLINK_PORT):
                gpus += values["rx_bytes"]
            elif switch.role == "rail":
                uplinks += values["tx_bytes"]
    return gpus, uplinks


def _flows(stage: Stage, workload: Workload, repeat: int, done: Replay) -> list[Flow]:
    names = [gpu.name for gpu in stage.plan.gpus]
    corrupt = set(done.corrupt)
    return [
        Flow(
            fabric=stage.label,
            policy=stage.policy,
            workload=workload.label,
            repeat=repeat,
            phase=workload.schedule.phases[t.phase].name,
            kind=workload.schedule.phases[t.phase].kind,
            src=names[t.src],
            dst=names[t.dst],
            bytes=t.bytes,
            delivered=0 if number in corrupt else done.delivered.get(number, 0),
            start_ns=done.spans[number][0] if number in done.spans else 0,
            end_ns=done.spans[number][1] if number in done.spans else 0,
        )
        for number, t in workload.schedule.transfers
    ]


def _bytes(stage: Stage, workload: Workload, repeat: int, done: Replay, counted: tuple[int, int] | None) -> ByteCheck:
    """Between rails goes what the matrix says, or what the uplinks counted if that is more: for GPT both are none."""
    schedule = workload.schedule
    asked, got = schedule.matrix, done.delivered_matrix
    # who steers, what is in the background, and what is broken, decides what crosses a port
    on_rails = 0 if stage.steered_by or counted is None else int(port_bytes(schedule, stage.plan.policy).rail_out.sum())
    gpu_ports, uplinks = counted or (0, 0)
    return ByteCheck(
        fabric=stage.label,
        workload=workload.label,
        repeat=repeat,
        asked_bytes=sum(asked.values()),
        delivered_bytes=sum(got.values()),
        pairs_wrong=sum(1 for pair in asked.keys() | got.keys() if asked.get(pair) != got.get(pair)),
        rail_port_bytes=gpu_ports,
        rail_expected_bytes=round(on_rails / payload_fraction(stage.plan.spec.mtu)),
        cross_rail_bytes=max(cross_rail_bytes(schedule), uplinks),
    )


def _measurements(
    stage: Stage, workload: Workload, repeat: int, done: Replay, predicted: dict[str, float]
) -> list[Measurement]:
    """The whole, each phase (median of its runs), and throughput."""
    times = _times(workload, done)
    if not times:
        return []
    row = _row_of(stage, workload, repeat)
    only_phase = None if workload.iteration or not predicted else predicted.get(next(iter(predicted)))
    rows = [row(WHOLE, "throughput", sum(done.delivered.values()) * 8 / done.seconds, "bit/s")]
    for phase, value in times.items():
        whole = phase == WHOLE
        metric = "iteration_time" if whole and workload.iteration else "completion_time"
        prediction = predicted.get(phase, only_phase if whole else None)
        rows.append(row(phase, metric, value, "s", prediction if (prediction or 0) > LEAST_PREDICTED_S else None))
    return rows


def _projections(stage: Stage, workload: Workload, repeat: int, done: Replay) -> list[Measurement]:
    """What the times mean on the real cluster."""
    times = _times(workload, done)
    row = _row_of(stage, workload, repeat)
    same = project(workload.scale, times)
    full = project_to_full_size(workload.scale, workload.schedule, times, stage.plan.spec)
    return [
        *(row(phase, "projected_same_shape", value, "s") for phase, value in same.items()),
        *(row(phase, "projected_full_size", value, "s") for phase, value in full.items()),
    ]


def _times(workload: Workload, done: Replay) -> dict[str, float]:
    """Seconds by phase, and of the whole. Nothing where a part never arrived: such a time is no completion time."""
    if len(done.delivered) < len(workload.schedule.transfers):
        return {}
    spans = {n: (start / 1e9, end / 1e9) for n, (start, end) in done.spans.items()}
    phases = {name: median(runs) for name, runs in phase_times(workload.schedule, spans).items()}
    return {WHOLE: done.seconds, **(phases if workload.iteration or len(workload.schedule.phases) > 1 else {})}


def _row_of(stage: Stage, workload: Workload, repeat: int) -> Callable[..., Measurement]:
    def row(phase: str, metric: str, value: float, unit: str, prediction: float | None = None) -> Measurement:
        name = workload.label
        return Measurement(stage.label, stage.policy, name, phase, metric, value, unit, prediction, repeat)

    return row
