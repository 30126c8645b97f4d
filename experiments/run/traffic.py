"""A workload on a built fabric: replayed, measured beside its prediction, and its bytes counted three ways."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final, NamedTuple, TypeVar

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.live import page
from railyard.experiments.run.session import FabricSession
from railyard.results.runs.records import (
    CLOCK_UNCERTAINTY,
    THROUGHPUT,
    UNDERLAY_BYTES,
    UPLINK_BYTES,
    UPLINK_IMBALANCE,
    ByteCheck,
    Event,
    Flow,
    Measurement,
    Run,
)
from railyard.results.theory.ecmp import has_choice, imbalance, uplink_imbalance
from railyard.results.theory.formula_text import formula_texts
from railyard.results.theory.predict import (
    PathSeconds,
    explained_ratios,
    idle_credit,
    latency,
    phase_times,
    predict_schedule,
    project_to_full_size,
    share_uplinks,
)
from railyard.results.theory.stated import stated
from railyard.topologies.addresses import UPLINK_PORT, Gpu, gpu_at
from railyard.topologies.build.shaping import IP_TCP, idle_credit_s, payload_fraction
from railyard.topologies.prediction import WHOLE, NotCompared
from railyard.workloads.collectives.algorithm import Sizes, operation_of
from railyard.workloads.matrix.traffic_matrix import (
    at_line_rate,
    cross_rail_bytes,
    line_rate_duration_s,
    port_bytes,
    ways,
)
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import Place, Replay, replay
from railyard.workloads.schedule import Scale, Schedule, payload_rates
from railyard.workloads.spec import TaskSpans

_UNSAFE_IN_PATH: Final = re.compile(r"[^A-Za-z0-9._]+")
TIMEOUT_MARGIN_S: Final = 30.0
MIN_PREDICTED_S: Final = 1e-4  # a barrier's byte: what takes less is up to packets and turns, not to bandwidth
MAX_SHARED: Final = 0.05  # of a run's time: from here on what shares its links may move it by more than is judged
Found = TypeVar("Found")
TIMEOUT_FACTOR: Final = 10  # a run that takes so many times its prediction has failed


@dataclass(frozen=True)
class Workload:
    """A workload as it runs on one fabric. `iteration`: it is a training iteration, and not plain traffic.

    `measured_files`: see `Built`; a trace's own files with the times that were measured. `independent`: no pair waits
    for another pair.
    """

    label: str
    schedule: Schedule
    scale: Scale
    iteration: bool
    measured_files: Callable[[TaskSpans], dict[str, bytes]] | None = None
    independent: bool = False
    scene: str = ""


class PortBytes(NamedTuple):
    """Bytes received at the rail switches' GPU ports, and of each uplink by (rail switch, "out" or "in", spine)."""

    gpus: int
    uplinks: dict[tuple[str, str, int], int]


def run_workload(
    session: FabricSession,
    workload: Workload,
    repeat: int,
    seed: int,
    run: Run,
    progress: Callable[[int], None],
    predicted_s: float | None = None,
) -> None:
    """Replay it once and add everything to the run. `progress` gets the bytes delivered so far.

    The equations don't cover a steered fabric; there `predicted_s` (s, if known) is the whole's prediction.
    """
    predicted, within_s = expected(session, workload, predicted_s)
    interval, before = session.interval(workload.label, repeat, workload.scene), _counted(session)
    queue_s = longest_queue_s(workload.schedule, session.plan, session.windows)
    shown = page.showing_phases(workload.schedule)
    with (
        session.relaxed_tcp_timers(queue_s),
        beside_machines(session, workload.schedule, interval, run) as places,
        session.watch().record_load(run, interval),
    ):
        done = replay(workload.schedule, session.windows, seed, within_s, progress, places=places, **shown)
    after = _counted(session)
    counted = PortBytes(after.gpus - before.gpus, {k: n - before.uplinks[k] for k, n in after.uplinks.items()})
    times = record(session, workload, interval, done, run, predicted, counted)
    # what the times mean on the real cluster
    same = {phase: seconds / workload.scale.time_factor for phase, seconds in times.items()}
    full = project_to_full_size(workload.scale, workload.schedule, times, session.plan.spec)
    for metric, projected in (("projected_same_shape", same), ("projected_full_size", full)):
        run.measurements += [Measurement(interval, phase, metric, value, "s") for phase, value in projected.items()]
    if workload.measured_files is not None:
        where = "/".join(_UNSAFE_IN_PATH.sub("-", part) for part in (session.name, workload.label, str(repeat)))
        files = workload.measured_files(done.spans)
        run.files |= {f"traces/{where}/{name}": content for name, content in files.items()}


@contextmanager
def beside_machines(
    session: FabricSession, schedule: Schedule, interval: IntervalId, run: Run
) -> Iterator[Sequence[Place]]:
    """Yield the machines of a replay, none if there is one; record their clocks, and what their underlay carried."""
    cluster = session.cluster
    if cluster is None:
        yield ()
        return
    before_s, (_, sent) = cluster.measure_clocks(), cluster.counters()
    yield cluster.places()
    _, sent_after = cluster.counters()
    uncertainty_s = max(before_s, cluster.measure_clocks())
    run.measurements.append(Measurement(interval, WHOLE, CLOCK_UNCERTAINTY, uncertainty_s, "s"))
    ports = port_bytes(schedule, session.plan.spec)
    predicted = cluster.underlay_bytes(ports.rail_out.tolist(), ports.rail_in.tolist(), session.plan.spec.mtu)
    row = Measurement(interval, WHOLE, UNDERLAY_BYTES, float(sent_after - sent), "B", predicted or None)
    run.measurements.append(row)
    run.provenance["machines"] = cluster.provenance()


def expected(
    session: FabricSession, workload: Workload, predicted_s: float | None = None
) -> tuple[dict[str, float], float]:
    """Return (the prediction of each phase and the whole, s; how long it may take before it has failed, s)."""
    schedule, fabric = workload.schedule, session.plan.spec
    rates = payload_rates(session.plan.hb_bps, session.plan.rail_bps, fabric.mtu)
    predicted = predict_schedule(schedule, rates, fabric)
    if session.steered_by:
        predicted = {} if predicted_s is None else {WHOLE: predicted_s}
    whole = predicted.get(WHOLE) or line_rate_duration_s(schedule, rates, fabric)
    return predicted, whole * TIMEOUT_FACTOR + TIMEOUT_MARGIN_S


def record(
    session: FabricSession,
    workload: Workload,
    interval: IntervalId,
    done: Replay,
    run: Run,
    predicted: Mapping[str, float],
    counted: PortBytes | None,
) -> dict[str, float]:
    """Record a replay: events, flows, bytes and measurements; return s by phase, and of the whole (none if broken).

    `counted`: of the replay alone; None while faults are injected, since detours cross the same ports.
    """
    what, times = interval.as_dict(), dict[str, float]()
    if len(done.delivered) == len(workload.schedule.transfers):
        # Eq. 6 counts computing; a prediction of plain traffic counts bytes alone
        has_computing = workload.iteration or workload.schedule.iteration is not None
        times[WHOLE] = done.seconds if has_computing else done.transfer_seconds
        if workload.iteration or len(workload.schedule.phases) > 1:
            spans = {n: (start / 1e9, end / 1e9) for n, (start, end) in done.spans.items()}
            times |= {name: median(runs) for name, runs in phase_times(workload.schedule, spans).items()}
    run.events.append(Event(done.start_ns, "workload", "started", what))
    run.events.append(Event(done.end_ns, "workload", "finished", {**what, "broken": list(done.broken)}))
    names, phases = [gpu.name for gpu in session.plan.gpus], workload.schedule.phases
    corrupt, operations = set(done.corrupt), [operation_of(phase) for phase in phases]
    for number, t in workload.schedule.transfers:
        start_ns, end_ns = done.spans.get(number, (0, 0))
        flow = Flow(
            interval=interval,
            phase=phases[t.phase].name,
            kind=phases[t.phase].kind,
            src=names[t.src],
            dst=names[t.dst],
            bytes=t.bytes,
            delivered=0 if number in corrupt else done.delivered.get(number, 0),
            start_ns=start_ns,
            end_ns=end_ns,
            operation=operations[t.phase],
            stage=phases[t.phase].stage,
            step=phases[t.phase].step,
        )
        run.flows.append(flow)
    # Bytes at receivers and ports. Cross-rail bytes are those of the matrix, or of the uplinks if more. On a steered or
    # broken fabric, and beside a background, the ports carry more than the schedule says.
    schedule, got = workload.schedule, done.delivered_matrix
    known = counted is not None and not session.steered_by
    on_rails = int(port_bytes(schedule, session.plan.spec).rail_out.sum()) if known else 0
    gpu_ports, uplinks = (counted.gpus, counted.uplinks) if counted else (0, {})
    run.bytes.append(
        ByteCheck(
            interval=interval,
            asked_bytes=sum(schedule.matrix.values()),
            delivered_bytes=sum(got.values()),
            pairs_wrong=sum(1 for p in schedule.matrix.keys() | got.keys() if schedule.matrix.get(p) != got.get(p)),
            rail_port_bytes=gpu_ports,
            rail_expected_bytes=round(on_rails / payload_fraction(session.plan.spec.mtu)),
            cross_rail_bytes=max(cross_rail_bytes(schedule), sum(n for key, n in uplinks.items() if key[1] == "out")),
        )
    )
    if times:
        rate = sum(done.delivered.values()) * 8 / times[WHOLE]
        run.measurements.append(Measurement(interval, WHOLE, THROUGHPUT, rate, "bit/s"))
    loads = _record_uplinks(session, schedule, interval, done.end_ns, uplinks, run) if uplinks else None
    exact, fabric = known, session.plan.spec
    schedule_rates = payload_rates(session.plan.hb_bps, session.plan.rail_bps, fabric.mtu)
    explained = explained_ratios(schedule, schedule_rates, fabric, loads) if exact else {}
    at_uplinks = share_uplinks(schedule, fabric) if exact else {}
    by_uplink = {}
    if exact and has_choice(fabric):
        by_uplink = predict_schedule(schedule, schedule_rates, fabric, "expected")

    plan, messages = session.plan, defaultdict[str, list[int]](list)
    rail_credit_s = idle_credit_s(plan.rail_link(Gpu(0, 0)).rate_bps, fabric.mtu)
    uplink_credit_s = idle_credit_s(plan.uplink_bps, fabric.mtu) if plan.uplinks else 0.0
    far_credit_s = max(rail_credit_s, uplink_credit_s)
    if fabric.definition.is_graph:  # where paths along a rail pass several switches, too
        rail_credit_s = far_credit_s
    of_links = PathSeconds(idle_credit_s(plan.hb_bps, fabric.mtu), rail_credit_s, far_credit_s)
    credit = idle_credit(schedule, of_links) if predicted else {}
    one_way = _latencies(session, run) if predicted else None
    latencies = latency(schedule, one_way) if one_way else {}
    formulas = formula_texts(schedule, schedule_rates, fabric) if exact else {}
    has_phases = bool(predicted) and len(set(schedule.phases)) > 1
    shared = at_line_rate(schedule, schedule_rates, fabric).shared if has_phases else {}
    for _, t in schedule.transfers:
        messages[phases[t.phase].name].append(t.bytes)
    all_messages = [t.bytes for _, t in schedule.transfers]

    def of(found: Mapping[str, Found], phase: str) -> Found | None:
        """Return what is known of a phase; of plain traffic in a single step as a whole, that of this step."""
        is_plain = phase == WHOLE and not workload.iteration
        return found.get(phase, next(iter(found.values()), None) if is_plain else None)

    own_predictions = {} if session.steered_by else stated(schedule, schedule_rates, fabric)
    for phase, value in times.items():
        stated_of_phase = own_predictions.get(phase)
        reason = session.not_compared
        if isinstance(stated_of_phase, NotCompared):
            reason = stated_of_phase.reason
        metric = "iteration_time" if phase == WHOLE and workload.iteration else "completion_time"
        prediction = None if reason else of(predicted, phase)
        prediction = prediction if (prediction or 0) > MIN_PREDICTED_S else None
        least, most = of(explained, phase) or (0.0, inf)
        longer = of(latencies, phase) if prediction else None
        with_latency = prediction + longer if prediction and longer is not None else None
        others = [o for (p, o), share in shared.items() if p == phase and share > MAX_SHARED]
        shares_links_with = ", ".join(others) or at_uplinks.get(phase, "")
        if shares_links_with and not reason:
            reason = f"shares links with {shares_links_with}"
        row = Measurement(
            interval,
            phase,
            metric,
            value,
            "s",
            prediction,
            least,
            most + longer / prediction if prediction and longer else most,
            predicted_by_uplink=of(by_uplink, phase) if prediction else None,
            frames=median(messages.get(phase) or all_messages) / (fabric.mtu - IP_TCP),
            credit_share=(of(credit, phase) or 0.0) / prediction if prediction else 0.0,
            shares_links_with=shares_links_with,
            predicted_with_latency=with_latency,
            formula=(of(formulas, phase) or "") if prediction else "",
            not_compared=reason,
        )
        run.measurements.append(row)
    return times


def _latencies(session: FabricSession, run: Run) -> PathSeconds | None:
    """Return the one-way latency of each path as calibration measured it; None if a path's is not known."""
    found = {link.link_class: link.latency_s for link in run.links if link.fabric == session.label}
    hb, rail = found.get("hb"), found.get("rail")
    if hb is None or rail is None:
        return None
    return PathSeconds(hb, rail, found.get("uplink") or hb + rail)  # without spines an HB domain forwards


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
    fabric, sizes = session.plan.spec, Sizes.of(schedule.matrix)
    routed = [(sizes, ways(sizes.src, sizes.dst, schedule.rails, fabric))]
    expected = uplink_imbalance(routed, schedule.rails, fabric.domains, fabric, "expected")
    if expected is None:
        return None
    by_switch = {(switch, way): [0] * fabric.spine_count for switch, way, _ in uplinks}
    for (switch, way, spine), size in uplinks.items():
        by_switch[switch, way][spine] = size
    detail = {f"{switch} {way}": sizes for (switch, way), sizes in by_switch.items()}
    run.events.append(Event(end_ns, "fabric", UPLINK_BYTES, {**interval.as_dict(), "bytes": detail}))
    measured = imbalance(np.array(list(by_switch.values())))
    predicted = None if session.steered_by else expected
    run.measurements.append(Measurement(interval, WHOLE, UPLINK_IMBALANCE, measured, "ratio", predicted))
    return measured


def _counted(session: FabricSession) -> PortBytes:
    """Return the counters of the rail switches' ports since they were made, by OpenFlow."""
    counters = session.controller.port_counters(len(session.plan.switches))
    gpus, uplinks = 0, dict[tuple[str, str, int], int]()
    for switch in session.plan.switches:
        for port, values in counters[switch.name].items():
            if gpu_at(switch.dpid, port):
                gpus += values["rx_bytes"]
            elif switch.role == "rail":
                spine = port - UPLINK_PORT
                uplinks[switch.name, "out", spine] = values["tx_bytes"]
                uplinks[switch.name, "in", spine] = values["rx_bytes"]
    return PortBytes(gpus, uplinks)
