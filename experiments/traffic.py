"""A workload on a built fabric: replayed, measured beside its prediction, and its bytes counted three ways."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from experiments.stage import Stage
from results.predict import WHOLE, phase_times, predict_schedule, project_to_full_size
from results.records import ByteCheck, Event, Flow, Measurement, Run
from topologies.patience import patient
from topologies.ports import UPLINK_PORT
from topologies.shaping import payload_fraction
from workloads.matrix import cross_rail_bytes, port_bytes
from workloads.pace import pace
from workloads.replay.job import fitting
from workloads.replay.run import Replay, replay
from workloads.scale import Scale, payload_rates, project
from workloads.schedule import Schedule
from workloads.traces.lower import Lowered
from workloads.traces.write_back import durations, write_back

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
    schedule, fabric = workload.schedule, stage.plan.spec
    rates = payload_rates(stage.plan.hb_bps, stage.plan.rail_bps, fabric.mtu)
    predicted = predict_schedule(schedule, rates, fabric)
    if stage.steered_by:
        predicted = {} if foreseen_s is None else {WHOLE: foreseen_s}
    whole = predicted.get(WHOLE) or pace(schedule, rates, fabric.chosen_policy)
    windows = fitting(stage.plan.hb_bps, stage.plan.rail_bps, fabric.mtu)
    before = _counted(stage)
    with patient(stage.net.gpu_names), stage.watched(run, workload.label, repeat):
        done = replay(schedule, windows, seed, whole * SPARE + SPARE_S, progress)
    after = _counted(stage)
    what = {"fabric": stage.label, "workload": workload.label, "repeat": repeat}
    run.events.append(Event(done.start_ns, "workload", "started", what))
    run.events.append(Event(done.end_ns, "workload", "finished", {**what, "broken": list(done.broken)}))
    run.flows += _flows(stage, workload, repeat, done)
    run.bytes.append(_bytes(stage, workload, repeat, done, (after[0] - before[0], after[1] - before[1])))
    run.measurements += _measurements(stage, workload, repeat, done, predicted)
    if workload.trace is not None:
        measured = durations(workload.trace, done.spans, workload.scale.time_factor)
        where = "/".join(_IN_A_PATH.sub("-", part) for part in (stage.label, workload.label, str(repeat)))
        files = write_back(workload.trace.trace, measured)
        run.files |= {f"traces/{where}/{name}": content for name, content in files.items()}


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


def _bytes(stage: Stage, workload: Workload, repeat: int, done: Replay, counted: tuple[int, int]) -> ByteCheck:
    """Between rails goes what the matrix says, or what the uplinks counted if that is more: for GPT both are none."""
    schedule = workload.schedule
    asked, got = schedule.matrix, done.delivered_matrix
    # who steers, and what is in the background, decides what crosses a port
    on_rails = 0 if stage.steered_by else int(port_bytes(schedule, stage.plan.policy).rail_out.sum())
    gpu_ports, uplinks = counted
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
    """The whole, each phase (median of its runs), throughput, and what the times mean on the real cluster.

    Nothing where a part never arrived: such a time is no completion time.
    """
    if len(done.delivered) < len(workload.schedule.transfers):
        return []
    spans = {n: (start / 1e9, end / 1e9) for n, (start, end) in done.spans.items()}
    phases = {name: median(runs) for name, runs in phase_times(workload.schedule, spans).items()}
    only_phase = None if workload.iteration or not predicted else predicted.get(next(iter(predicted)))
    times = {WHOLE: done.seconds, **(phases if workload.iteration or len(workload.schedule.phases) > 1 else {})}

    def row(phase: str, metric: str, value: float, unit: str, prediction: float | None = None) -> Measurement:
        name = workload.label
        return Measurement(stage.label, stage.policy, name, phase, metric, value, unit, prediction, repeat)

    rows = [row(WHOLE, "throughput", sum(done.delivered.values()) * 8 / done.seconds, "bit/s")]
    for phase, value in times.items():
        whole = phase == WHOLE
        metric = "iteration_time" if whole and workload.iteration else "completion_time"
        prediction = predicted.get(phase, only_phase if whole else None)
        rows.append(row(phase, metric, value, "s", prediction if (prediction or 0) > LEAST_PREDICTED_S else None))
    for phase, value in project(workload.scale, times).items():
        rows.append(row(phase, "projected_same_shape", value, "s"))
    for phase, value in project_to_full_size(workload.scale, workload.schedule, times, stage.plan.spec).items():
        rows.append(row(phase, "projected_full_size", value, "s"))
    return rows
