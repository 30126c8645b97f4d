"""Evaluation of a script's traffic, fault by fault, also of overlapping faults."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from railyard.core.records import ProbeLog, Recovered, Recovery
from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.analysis.evaluate import AFTER_S, FaultRun, ScriptObservations, evaluate_all
from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.pairs import PairSelection, affected_pairs, select_script_pairs
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.script import Script, Timed
from railyard.topologies.addresses import Pair
from railyard.topologies.spec import parse_fabric

MS = 1_000_000
BEGUN_NS = 10**12
LENGTH_MS = 6500
PLAN = nominal_plan(parse_fabric({"kind": "rail-only", "domains": 3, "rails": 3}))
CUT, CRASH, AWAY = Fault("link-down", "d0g1"), Fault("gpu-crash", "d1g1"), Fault("controller-crash", "controller")
Lost = dict[Pair, list[tuple[int, int]]]
"""ms from the start of traffic: from, to."""


def at(ms: float) -> int:
    return BEGUN_NS + int(ms * MS)


@cache
def probe_log(*lost: tuple[int, int]) -> ProbeLog:
    sent = tuple(at(ms) for ms in range(LENGTH_MS))
    arrived = [at(ms + 0.5) for ms in range(LENGTH_MS)]
    for start, end in lost:
        arrived[start:end] = [-1] * (end - start)
    return ProbeLog(sent, tuple(arrived))


@cache
def receipts_of(offset_ms: int, *silent: tuple[int, int]) -> list[tuple[int, int]]:
    """Return a receipt of 1000 bytes each 20 ms from `offset_ms` on, except in these intervals."""
    receipts: list[tuple[int, int]] = []
    for ms in range(offset_ms, LENGTH_MS, 20):
        if not any(begin <= ms < end for begin, end in silent):
            receipts.append((at(ms), 1000))
    return receipts


def talks_of(*faults: Fault) -> tuple[PairSelection, ...]:
    return select_script_pairs(PLAN, [affected_pairs(fault, PLAN) for fault in faults])


def evaluated(seen: ScriptObservations, selections: Sequence[PairSelection]) -> Recovery:
    ((run,), _) = evaluate_all(seen, selections)
    return run.recovery


def judged(*arguments: Any, **keywords: Any) -> list[Recovery]:
    return [run.recovery for run in fault_runs(*arguments, **keywords)]


def fault_runs(
    faults: dict[Fault, tuple[int, int]],
    lost: Lost,
    events: list[ControllerEvent] | None = None,
    silent: Lost | None = None,
) -> list[FaultRun]:
    """`faults`: ms from, to. `silent`: streams of which nothing arrived in these intervals."""
    selections = talks_of(*faults)
    streams = selections[0].streams
    probes = tuple(dict.fromkeys(pair for selection in selections for pair in selection.probes))
    log = TrafficLog(probes=[probe_log(*lost.get(pair, [])) for pair in probes])
    for number, pair in enumerate(streams):
        log.receipts[number] = receipts_of(number % 20, *(silent or {}).get(pair, []))
        log.sent[number] = len(log.receipts[number]) * 1000
    injected = [at(begin) for begin, _ in faults.values()]
    repair_started = [at(end) for _, end in faults.values()]
    timed = [Timed(fault, begin / 1e3, (end - begin) / 1e3) for fault, (begin, end) in faults.items()]
    seen = ScriptObservations(
        PLAN, Script("x", tuple(timed)), streams, probes, log, BEGUN_NS, injected, repair_started, events or []
    )
    runs, whole = evaluate_all(seen, selections)
    assert len(whole) == int((max(*repair_started, *seen.fault_end_ns) + AFTER_S * 1e9 - BEGUN_NS) / (20 * MS))
    return list(runs)


def reported(ms: float, what: str, **detail: Any) -> ControllerEvent:
    return at(ms), what, detail


def test_steps_follow_the_faults_own_detection() -> None:
    events = [
        reported(1005, "port-down", switch="rail1", port="d1g1"),
        reported(1006, "decided", gpus=3),
        reported(1008, "rerouted", routes=5, detours=5),
        reported(1020, "port-down", switch="rail1", port="d0g1"),
        reported(1021, "decided", gpus=2),
        reported(1024, "rerouted", routes=1, detours=6),
    ]
    crash, cut = judged({CRASH: (1000, 3000), CUT: (1010, 3000)}, {}, events)
    assert (crash.detect_ms, crash.decided_ms, crash.reroute_ms) == (5.0, 6.0, 8.0)
    assert (cut.detect_ms, cut.decided_ms, cut.reroute_ms) == (10.0, 11.0, 14.0)


def test_later_loss_of_another_fault_is_no_outage() -> None:
    (pair, *_) = talks_of(CUT)[0].probes
    cut, _ = judged({CUT: (1000, 4000), AWAY: (2000, 3000)}, {pair: [(1000, 1030), (2500, 2900)]})
    assert cut.first_packet_ms == pytest.approx(30, abs=1)
    (alone,) = judged({CUT: (1000, 4000)}, {pair: [(1500, 1530)]})
    assert alone.first_packet_ms == pytest.approx(530, abs=1)


def test_pairs_with_no_way_left_do_not_count() -> None:
    """A GPU at an end has crashed meanwhile, which no rerouting can recover."""
    victim = next(gpu for pair in talks_of(CUT)[0].probes for gpu in pair if gpu.domain != 0)
    crashed = Fault("gpu-crash", victim.name)
    selections = talks_of(CUT, crashed)
    dead = [pair for pair in selections[0].probes if victim in pair]
    live = [pair for pair in selections[0].probes if victim not in pair]
    assert dead
    assert live
    lost = {pair: [(1500, 3000)] for pair in dead}
    cut, crash = judged({CUT: (1000, 3000), crashed: (1500, 2900)}, lost, silent=lost)
    assert cut.recovered is Recovered.UNAFFECTED
    assert cut.probes_lost == 0
    assert crash.recovered is not Recovered.NO
    cut, _ = judged({CUT: (1000, 3000), crashed: (1500, 2900)}, {live[0]: [(1000, 3000)]})
    assert not cut.recovered


def test_goodput_that_never_fell_has_no_time_of_its_return() -> None:
    (pair, *_) = talks_of(CUT)[0].probes
    (cut,) = judged({CUT: (1000, 3000)}, {pair: [(1000, 1005)]})
    assert cut.first_packet_ms == pytest.approx(5, abs=1)
    assert cut.goodput_ms == 0
    assert cut.recovered is Recovered.YES


def test_losses_after_a_repair_count_until_the_next_act() -> None:
    (pair, *_) = talks_of(CUT)[0].probes
    lost = {pair: [(2000, 2010), (2500, 2600)]}
    assert judged({CUT: (1000, 2000), AWAY: (2490, 3000)}, lost)[0].probes_lost_after_repair == 10
    assert judged({CUT: (1000, 2000)}, lost)[0].probes_lost_after_repair == 110


def test_controller_is_back_at_its_own_report() -> None:
    events = [reported(1000, "controller-crashed"), reported(2450, "controller-restarted")]
    away, cut = judged({AWAY: (1000, 2000), CUT: (1500, 4000)}, {}, events)
    assert (away.detect_ms, away.first_packet_ms, away.probes_lost) == (None, 0.0, 0)
    assert away.t_repair == at(2450)
    assert cut.t_repair == at(4000)


def test_goodput_is_shown_from_a_while_before_to_a_while_after() -> None:
    silent = {pair: [(4000, 4400)] for pair in talks_of(CUT)[0].affected}
    (run,) = fault_runs({CUT: (4000, 5000)}, {}, silent=silent)
    assert run.t_ms[0] == pytest.approx(-1500, abs=20)
    assert run.t_ms[-1] == pytest.approx(1000 + AFTER_S * 1e3, abs=40)
    assert len(run.t_ms) == len(run.bps) == len(run.affected_bps)
    assert run.recovery.goodput_ms == pytest.approx(400, abs=20)
    assert run.recovery.recovered


STANDING = {CRASH: (400, 5000)}


@pytest.mark.parametrize(
    ("detours", "others", "home_ms"),
    [
        ([], {}, 0.0),
        ([(1010, 4), (3025, 0)], {}, 25.0),
        ([(1010, 4), (3025, 1), (3600, 0)], {}, 600.0),  # one was left
        ([(1010, 4), (2000, 0)], {}, 0.0),  # there was none any more
        ([(1010, 4), (3025, 0), (3050, 2), (3070, 0)], {}, 70.0),  # they came again
        ([(1010, 4)], {}, None),
        ([(1010, 4), (3025, 1)], {}, None),
        # of concurrent faults only a fault's own detours count
        ([(430, 3), (1010, 7), (3020, 3)], STANDING, 20.0),
        ([(430, 3), (1010, 7), (3020, 4)], STANDING, None),
        ([(430, 3), (1010, 7), (3020, 3)], {CRASH: (400, 2000)}, None),  # the number that must be left is unknown
        ([(630, 3), (1010, 7), (3020, 3)], {CRASH: (600, 5000)}, None),  # it may not have had its own yet
        ([(1010, 7), (3020, 0)], {CRASH: (1010, 3010)}, 20.0),  # both are one
    ],
)
def test_traffic_is_home_when_the_last_detour_is_withdrawn(
    detours: list[tuple[float, int]], others: dict[Fault, tuple[int, int]], home_ms: float | None
) -> None:
    """Of a cable that is cut from 1000 to 3000 ms. `detours`: (ms, detours in force) of each "rerouted"."""
    events = [reported(ms, "rerouted", routes=9, detours=count) for ms, count in detours]
    assert judged({CUT: (1000, 3000), **others}, {}, events)[0].primary_path_ms == home_ms


def test_a_reboot_is_over_when_its_switch_is_there_again() -> None:
    reboot = Fault("rail-switch-reboot", "rail1")
    (pair, *_) = talks_of(reboot)[0].probes
    events = [
        reported(1005, "switch-down", switch="rail1"),
        reported(1010, "rerouted", routes=9, detours=9),
        reported(1600, "switch-up", switch="rail1"),
        reported(1620, "rerouted", routes=9, detours=0),
    ]
    (run,) = judged({reboot: (1000, 2500)}, {pair: [(1000, 1030), (1605, 1608)]}, events)
    assert (run.t_repair, run.primary_path_ms, run.probes_lost_after_repair) == (at(1600), 20.0, 3)
    assert run.first_packet_ms == pytest.approx(30, abs=1)
    assert run.recovered


def test_late_losses_prevent_recovery() -> None:
    (pair, *_) = talks_of(CUT)[0].probes
    (run,) = judged({CUT: (1000, 3000)}, {pair: [(1000, 1010), (1500, 3000)]})
    assert (run.first_packet_ms, run.recovered) == (None, Recovered.NO)
    (run,) = judged({CUT: (1000, 3000)}, {pair: [(1000, 1010), (2900, 2910)]})
    assert not run.recovered
    flapping = Fault("link-flapping", "d0g1")
    (pair, *_) = talks_of(flapping)[0].probes
    (run,) = judged({flapping: (1000, 3000)}, {pair: [(n, n + 10) for n in range(1000, 3000, 200)]})
    assert run.first_packet_ms == pytest.approx(10, abs=1)
    assert run.recovered, "it is cut again and again"


def test_recovery_without_probes_is_judged_by_goodput() -> None:
    selection = PairSelection(talks_of(CUT)[0].streams, talks_of(CUT)[0].affected, ())
    log = TrafficLog(sent={0: 0})
    seen = ScriptObservations(
        PLAN, Script("x", (Timed(CUT, 1.0, 1.0),)), selection.streams, (), log, BEGUN_NS, [at(1000)], [at(2000)], []
    )
    run = evaluated(seen, [selection])
    assert (run.first_packet_ms, run.source_side_probed, run.far_side_probed) == (None, 0, 0)
    assert run.recovered is not Recovered.NO
    run = evaluated(seen, [PairSelection((), frozenset(), ())])
    assert (run.goodput_ms, run.goodput_after_repair_ms) == (None, None), "nothing streams"
    assert run.recovered is Recovered.NOT_MEASURED


def test_stream_above_its_max_flow_is_reported() -> None:
    assert judged({CUT: (1000, 3000)}, {})[0].above_max_flow == 0
    crashed = Fault("server-crash", "hb1")
    selection = talks_of(CUT)[0]
    to_dead = frozenset(pair for pair in selection.streams if pair[1].domain == 1)
    receipts = {n: [(at(ms), 1000) for ms in range(0, LENGTH_MS, 20)] for n in range(len(selection.streams))}
    log = TrafficLog(receipts=receipts)
    script = Script("x", (Timed(crashed, 1.0, 1.0),))
    seen = ScriptObservations(PLAN, script, selection.streams, (), log, BEGUN_NS, [at(1000)], [at(2000)], [])
    run = evaluated(seen, [PairSelection(selection.streams, frozenset(selection.streams), ())])
    assert run.above_max_flow == sum(1 in (a.domain, b.domain) for a, b in selection.streams) > len(to_dead) > 0
