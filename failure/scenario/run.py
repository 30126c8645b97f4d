"""Run a failure script on a fabric, with traffic and connectivity checks, and evaluate it."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Final

from railyard.core import watch
from railyard.core.records import ConnectivityCheck
from railyard.core.wait import sleep_until
from railyard.failure.active import Operator
from railyard.failure.analysis.evaluate import (
    AFTER_S,
    WARM_UP_S,
    FaultRun,
    ScriptObservations,
    evaluate_all,
    fault_end_ns,
)
from railyard.failure.connectivity.check import ConnectivityChecker, duration_s, missed_checks
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.pairs import PairSelection
from railyard.failure.probes.sites import Site
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.failure.script import NO_PHASES, Action, PhaseEnds, Player, Script
from railyard.topologies.addresses import Pair
from railyard.topologies.build.network import FabricNet

DRAIN_S: Final = 20.0
DRAIN: Final = 1.2
"""Bytes in flight have DRAIN_S, or DRAIN times the longest outage: TCP doubles its retransmission timeout each time, so
a connection retries at the latest as long after the repair as it was cut off.
"""
# more than is evaluated: the last receipt counts for the time before it
TAIL_S: Final = 0.1
_POLL_S: Final = 0.01
NOTHING: Final = nullcontext()


@dataclass(frozen=True)
class ScriptRun:
    """Results of a script. `faults` are in the script's order; `bps` is the goodput of all streams in bins of
    `recovery_times.BIN_MS` from `begun_ns`. `late_s`: how long after it was due each fault was injected, s.
    """

    begun_ns: int
    faults: tuple[FaultRun, ...]
    connectivity_checks: tuple[ConnectivityCheck, ...]  # with those that were due and not taken
    bps: tuple[float, ...]
    late_s: tuple[float, ...] = ()


def run_script(
    net: FabricNet,
    script: Script,
    selections: Sequence[PairSelection],
    events: Callable[[], Sequence[ControllerEvent]],
    checker: ConnectivityChecker | None = None,
    progress: Callable[[int], None] = lambda done: None,
    phases: PhaseEnds = NO_PHASES,
    on_action: Callable[[Action], None] = lambda action: None,
    sites: Sequence[Site] = (Site(),),
    operator: Operator | None = None,
    recorded: AbstractContextManager[object] = NOTHING,
) -> ScriptRun:
    """Run traffic, inject and repair the faults of a script, and measure. CheckFailed if a fault had no effect.

    `selections`: the affected pairs of each fault; all their streams and probes run from start to end. `checker` runs
    in each idle period. `events` returns the controller's events so far. `progress` is called with the number of
    finished injections and repairs, `on_action` with each of them.
    `phases`: ends of phases, for faults with `after`.
    `sites`, `operator`: of a fabric on several machines. `recorded` is entered while there is traffic, and not while
    its processes start, which keep all cores busy for a moment. All faults are repaired in any case. ValueError for a
    script with a fault within `WARM_UP_S` of the start.
    """
    if len(selections) != len(script.faults) or not selections:
        raise ValueError(f"script {script.name}: each fault needs a selection of pairs, not {len(selections)} in all")
    # no goodput before such a fault could be compared with
    if any(timed.at_s <= WARM_UP_S for timed in script.faults if not timed.after):
        raise ValueError(f"script {script.name}: at_s must be above {WARM_UP_S}")
    streams = _each_once(selection.streams for selection in selections)
    probes = _each_once(selection.probes for selection in selections)
    player = Player(operator or net, script, phases)
    check_s = duration_s(net.plan)
    numbers = range(len(selections))
    stream_bytes_per_s = net.plan.rail_bps * selections[0].stream_share / 8
    job = TrafficJob(streams=streams, probes=probes, stream_bytes_per_s=stream_bytes_per_s)
    with Traffic(job, sites) as traffic, recorded:
        begun_ns = time.monotonic_ns()
        traffic.start()
        player.play(begun_ns)
        try:
            checks = _run_checks(player, checker, check_s, progress, on_action)
            if checker:
                checks += missed_checks(player.actions.done, checks, check_s, AFTER_S)
            injected_ns = [player.injected_ns[number] for number in numbers]
            repair_start_ns = [player.repair_start_ns[number] for number in numbers]
            ends_ns = fault_end_ns(script, injected_ns, repair_start_ns, events())
            # traffic after the last fault is over, which may be later than its repair
            sleep_until(max(ends_ns) / 1e9 + AFTER_S + TAIL_S)
        except BaseException:
            player.end()
            raise
        log = traffic.stop(max(DRAIN_S, DRAIN * outage_s(injected_ns, ends_ns)))
    observed = ScriptObservations(
        net.plan, script, streams, probes, log, begun_ns, injected_ns, repair_start_ns, events()
    )
    runs, total_goodput = evaluate_all(observed, selections)
    late_s = tuple(player.late_ns[number] / 1e9 for number in numbers)
    return ScriptRun(begun_ns, runs, tuple(checks), total_goodput, late_s)


def _each_once(pairs: Iterable[Iterable[Pair]]) -> tuple[Pair, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(pairs)))


def outage_s(injected_ns: Iterable[int], fault_end_ns: Iterable[int]) -> float:
    """Return the longest time with a fault active without interruption: no pair was cut off for longer."""
    longest = since = until = 0
    for injected, fault_end in sorted(zip(injected_ns, fault_end_ns, strict=True)):
        if injected > until:
            since = injected
        until = max(until, fault_end)
        longest = max(longest, until - since)
    return longest / 1e9


def _run_checks(
    player: Player,
    checker: ConnectivityChecker | None,
    check_s: float,
    progress: Callable[[int], None],
    on_action: Callable[[Action], None],
) -> list[ConnectivityCheck]:
    """Report progress and take connectivity checks until `AFTER_S` after the last repair."""
    checks: list[ConnectivityCheck] = []
    checked = reported = 0  # actions
    look_s = time.monotonic()
    while True:
        if time.monotonic() >= look_s:
            watch.check()
            look_s = time.monotonic() + watch.STEP_S
        is_finished = player.is_over(_POLL_S)
        actions = player.actions.done
        if len(actions) > reported:
            for action in actions[reported:]:
                on_action(action)
            reported = len(actions)
            progress(reported)
        now_ns = time.monotonic_ns()
        quiet = player.actions.quiet_period(now_ns)
        has_time = quiet and checked < len(actions) and quiet.until_ns - now_ns > check_s * 1e9
        if checker and quiet and has_time:
            check = checker.check(quiet, actions)
            # a check that came to no end is taken again, while the script is still quiet
            if check:
                checked = len(actions)
                checks.append(check)
        if is_finished:
            last_done_ns = max(action.done_ns for action in actions)
            if time.monotonic_ns() > last_done_ns + (AFTER_S + TAIL_S) * 1e9:
                return checks
            time.sleep(_POLL_S)
