"""Targets of recovery from faults, and published times of other systems.

The times are Railyard's own: no paper gives any. Rail-only IV-C and Spine-free Networks, "Fault Tolerance", leave what
a dead link or switch served unavailable until the repair.
"""

from collections.abc import Sequence
from itertools import product
from operator import attrgetter
from typing import Final, NamedTuple

from railyard.core.records import Recovered, Recovery
from railyard.experiments.measures.faults import analysis as stats
from railyard.experiments.measures.faults.analysis import RecoveryRow, ScriptRow, Side
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.failure.faults import FAULTS, definition_of, fault_kinds
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, PlacedSamples, Sample, Target, measured_targets, outcomes_of

MAX_RETURN_MS: Final = 500


def shown_outcomes(analysis: Analysis) -> tuple[Outcome, ...]:
    """Return all targets of recovery; none where nothing failed, or rerouting was off."""
    has_rerouted = any(recovery.reroute == "on" for recovery in analysis.run.rows(RECOVERIES))
    if has_rerouted or measured_targets(analysis.outcomes):
        return analysis.outcomes
    return ()


def first_packet_targets() -> dict[tuple[str, Side | None], Target]:
    """Return the targets to the first packet that fault kinds state, by kind and side (None: whichever is slower)."""
    targets: dict[tuple[str, Side | None], Target] = {}
    for kind in fault_kinds():
        for stated in FAULTS[kind].first_packet_targets:
            target = Target(quantity=stated.what, median=stated.median_ms, p95=stated.p95_ms, source=stated.why)
            targets[kind, stated.side] = target
    return targets


def first_packet_target(fault: str, side: Side | None) -> Target | None:
    """Return a fault's target for the first packet; `side` None where it is the same for both."""
    targets = first_packet_targets()
    return targets.get((fault, side)) or targets.get((fault, None))


def goodput_targets() -> dict[str, Target]:
    """Return the targets to what is left of the goodput that fault kinds state, by kind."""
    targets: dict[str, Target] = {}
    for kind in fault_kinds():
        stated = FAULTS[kind].goodput_target
        if stated:
            targets[kind] = Target(quantity=stated.what, most=stated.most_ms, source=stated.why)
    return targets


NO_LOSS_WITHOUT_CONTROLLER: Final = Target(
    quantity="controller crash, probes lost",
    unit="probes",
    most=0,
    claim="a controller crash loses no packet",
    source="the data plane goes on without it",
)
RECOVERY_AFTER_CONTROLLER_RESTART: Final = Target(
    quantity="fault while the controller is away, far side, from when it listens again",
    most=MAX_RETURN_MS,
    source="its connections, the states of switch ports and heartbeats; its start isn't in it",
)
SOURCE_SIDE_WITHOUT_CONTROLLER: Final = Target(
    quantity="link down while the controller is away, source side",
    median=5,
    p95=20,
    source="the kernel's own backup route: no controller",
)
TRAFFIC_RESTORED: Final = Target(
    quantity="traffic back on its best path",
    most=1000,
    source="from the repair until the last detour is withdrawn and goodput is back, whichever is later",
)
NO_LOSS_ON_RETURN: Final = Target(
    quantity="probes lost after repair",
    unit="probes",
    most=0,
    claim="no packet is lost while traffic returns",
    source="traffic moves back to what forwards already",
)


def outcomes(analysis: Analysis) -> tuple[Outcome, ...]:
    """Return every target of recovery from a run's faults, measured or not."""
    return recovery_outcomes(stats.recovery_rows(analysis), stats.script_rows(analysis), analysis.judgement)


def recovery_outcomes(
    rows: Sequence[RecoveryRow],
    scripts: Sequence[ScriptRow],
    judgement: Judgement,
) -> tuple[Outcome, ...]:
    """Return every target of recovery from faults, of those with rerouting on."""
    rows = [row for row in rows if row.reroute == "on"]
    alone: list[tuple[str, Recovery]] = []
    for row in sorted(rows, key=attrgetter("fabric")):
        alone += [(row.fabric, repeat) for repeat in row.repeats]
    scripts_on = [script for script in scripts if script.reroute == "on"]
    measured: list[tuple[Target, PlacedSamples]] = []
    for (fault, side), target in first_packet_targets().items():
        measured.append((target, _first_packets(rows, fault, side)))
    for fault, target in goodput_targets().items():
        measured.append((target, _goodputs(alone, fault)))
    measured += [
        (NO_LOSS_WITHOUT_CONTROLLER, _lost_probes(alone)),
        (RECOVERY_AFTER_CONTROLLER_RESTART, _without_controller(scripts, "far")),
        (SOURCE_SIDE_WITHOUT_CONTROLLER, _without_controller(scripts, "source")),
        (TRAFFIC_RESTORED, _restored(alone)),
        (NO_LOSS_ON_RETURN, _lost_on_return(alone, scripts_on)),
    ]
    outcomes: list[Outcome] = []
    for target, samples in measured:
        outcomes += outcomes_of(target, samples, judgement)
    return tuple(outcomes)


def _lost_probes(alone: Sequence[tuple[str, Recovery]]) -> PlacedSamples:
    """Yield the probes lost to each crash of the controller. `alone`: faults that came alone, with their fabrics."""
    for fabric, recovery in alone:
        if definition_of(recovery.fault).stops_controller:
            yield fabric, "", _sample(recovery.probes_lost, recovery)


def _goodputs(alone: Sequence[tuple[str, Recovery]], kind: str) -> PlacedSamples:
    """Yield how long goodput took to come back, of each fault of a kind that streams saw."""
    for fabric, recovery in alone:
        if recovery.fault == kind and recovery.has_streams:
            yield fabric, "", _sample(recovery.goodput_ms, recovery)


def _restored(alone: Sequence[tuple[str, Recovery]]) -> PlacedSamples:
    """Yield how long traffic took to come back after each repair, of faults that moved any."""
    for fabric, recovery in alone:
        restored_ms = _restored_ms(recovery)
        if recovery.recovered is not Recovered.UNAFFECTED or restored_ms != 0:
            yield fabric, "", _sample(restored_ms, recovery)


def _lost_on_return(alone: Sequence[tuple[str, Recovery]], scripts: Sequence[ScriptRow]) -> PlacedSamples:
    """Yield the probes lost while traffic returned from each fault."""
    for fabric, recovery in alone:
        if stats.traffic_returns(recovery):
            yield fabric, "", _sample(recovery.probes_lost_after_repair, recovery)
    for script in scripts:
        for recovery in script.repaired_alone:
            yield script.fabric, "", _sample(recovery.probes_lost_after_repair, recovery)


def _first_packets(rows: Sequence[RecoveryRow], fault: str, side: Side | None) -> PlacedSamples:
    """Yield samples of the repeats of a fault in which pairs of a side (None: either) were probed."""
    column = "first_packet_ms"
    sides = stats.SIDES
    if side:
        column = f"{side}_side_ms"
        sides = (side,)
    for row in rows:
        # a fault that affected no other GPU left nothing to recover
        if row.fault != fault or row.unaffected:
            continue
        part = ""
        if row.is_one_of_several:
            part = row.target
        for repeat in row.repeats:
            if stats.pairs_probed(repeat, *sides):
                yield row.fabric, part, _sample(getattr(repeat, column), repeat)


def _restored_ms(recovery: Recovery) -> float | None:
    """Return the later of goodput and the withdrawal of detours: a detour that stays may carry all goodput.

    Faults of the control plane move no traffic, so their goodput varies with the machine's load alone.
    """
    if definition_of(recovery.fault).is_control_plane:
        return recovery.primary_path_ms
    if recovery.goodput_after_repair_ms is None or recovery.primary_path_ms is None:
        return None
    return max(recovery.goodput_after_repair_ms, recovery.primary_path_ms)


def _without_controller(scripts: Sequence[ScriptRow], side: Side) -> PlacedSamples:
    """Yield samples of faults in scripts while the controller was down, of sides with probed pairs.

    Far: ms from its restart, 0 if before that, of faults that were repaired long enough after it. Source: ms from the
    fault, of links that went down, since the kernel doesn't notice a silent one.
    """
    for script in scripts:
        # without rerouting a controller that returns does nothing
        if script.reroute != "on":
            continue
        outages: list[Recovery] = []
        faults: list[Recovery] = []
        for fault in script.faults:
            if definition_of(fault.fault).stops_controller:
                outages.append(fault)
            elif stats.pairs_probed(fault, side):
                faults.append(fault)
        for outage, fault in product(outages, faults):
            if not outage.t_fault <= fault.t_fault < outage.t_repair:
                continue
            value = getattr(fault, f"{side}_side_ms")
            if side == "far" and value is not None:
                value = max(0.0, value + (fault.t_fault - outage.t_repair) / 1e6)
            if _counts_without_controller(fault, outage, side):
                yield script.fabric, "", _sample(value, fault)


def _counts_without_controller(fault: Recovery, outage: Recovery, side: Side) -> bool:
    """Return whether a fault during an outage of the controller shows the recovery of a side."""
    if side == "far":
        return fault.t_repair > outage.t_repair + MAX_RETURN_MS * 10**6
    return any(target.side == "source" for target in definition_of(fault.fault).first_packet_targets)


def _sample(value: float | None, r: Recovery) -> Sample:
    name = f"{r.script} {r.fault} {r.target}, repeat {r.repeat}".lstrip()
    return Sample(value, name, r.interval, stats.pairs_probed(r))


class Published(NamedTuple):
    """Published time of another system, in ms, with its source."""

    name: str
    ms: float
    source: str


PUBLISHED_SYSTEMS: Final = (
    Published(
        "Nezha",
        200,
        "Nezha, 4.4 and abstract: from the detection of a NIC's failure until its tasks have moved to the other rails, "
        "on average, under 200 ms",
    ),
    Published(
        "NCCL",
        500,
        "NCCL, src/transport/net_ib/p2p_resiliency_recovery.cc: a failed NIC is tried again every 500 ms "
        "(NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL)",
    ),
)


def times_slower(other_system: Published, ms: float | None) -> float | None:
    """Return how many times as long the other takes; None where ours never came, or took no time."""
    if not ms:
        return None
    return other_system.ms / ms
