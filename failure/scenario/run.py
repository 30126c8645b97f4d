"""A failure script, from first packet to last: traffic on, break and mend, and what was seen, in one record."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from railyard.failure.analysis.detours import Told
from railyard.failure.analysis.evaluate import AFTER_S, WARM_UP_S, FaultRun, Seen, back_ns, judge_all
from railyard.failure.connectivity.check import CensusRun, CensusTaker, duration_s
from railyard.failure.connectivity.schedule import missed
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.failure.scenario.pairs import Talkers
from railyard.failure.scenario.player import Player, WaitFor
from railyard.failure.scenario.script import Script
from railyard.topologies.build.network import FabricNet

DRAIN_S: Final = 20.0
DRAIN: Final = 1.2
"""At least so long, or so many times the longest outage, what is under way may arrive: a connection that was cut off
tries again after twice the time each time, so at the latest as long after its repair as it was cut off.
"""
STREAM_SHARE: Final = 0.08  # of a rail for each stream: two or three from each GPU, and room for detours
TAIL_S: Final = 0.1  # more than is judged: a last receipt counts for the time before it
_POLL_S: Final = 0.01

Events = Callable[[], Sequence[Told]]
"""What the controller has told so far: (monotonic ns, what, detail)."""


@dataclass(frozen=True)
class ScriptRun:
    """What happened. `faults` are in the script's order; `bps` is the goodput of all streams in bins of
    `railyard.failure.analysis.recovery_times.BIN_MS` from `begun_ns`; `lost_bytes` and `broken` connections are of the
    whole script.
    """

    begun_ns: int
    faults: tuple[FaultRun, ...]
    censuses: tuple[CensusRun, ...]  # with those that were due and not taken
    bps: tuple[float, ...]
    lost_bytes: int
    broken: tuple[str, ...]


def run_script(
    net: FabricNet,
    script: Script,
    talks: Sequence[Talkers],
    events: Events,
    census: CensusTaker | None = None,
    progress: Callable[[int], None] = lambda done: None,
    wait_for: WaitFor | None = None,
) -> ScriptRun:
    """Run traffic, break and mend as the script says, and measure. CheckFailed if a fault did not bite.

    `talks`: for each fault whom it concerns; all their streams and probes run from the start to the end. `census` is
    taken at each quiet moment. `progress` hears how many injections and repairs are done. `wait_for` returns when a
    phase has ended, for faults that come after one. However it ends, everything is mended. ValueError for a script
    that breaks something within `WARM_UP_S` of the start, when there is nothing to compare with.
    """
    if len(talks) != len(script.faults) or not talks:
        raise ValueError(f"script {script.name}: {len(script.faults)} faults and {len(talks)} talkers: one for each")
    if any(timed.at_s <= WARM_UP_S for timed in script.faults if not timed.after):
        raise ValueError(f"script {script.name}: at_s must be above {WARM_UP_S}")
    streams = tuple(dict.fromkeys(pair for talk in talks for pair in talk.streams))
    probes = tuple(dict.fromkeys(pair for talk in talks for pair in talk.probes))
    player = Player(net, script, wait_for)
    traffic = Traffic(TrafficJob(streams, probes, net.plan.rail_bps * STREAM_SHARE / 8))
    try:
        begun_ns = time.monotonic_ns()
        traffic.go()
        player.play(begun_ns)
        try:
            censuses = _attend(player, census, duration_s(net.plan), progress)
            if census:
                censuses += missed(player.acts.done, censuses, duration_s(net.plan), AFTER_S)
            struck, mended = ([times[n] for n in range(len(talks))] for times in (player.struck_ns, player.mended_ns))
            backs = back_ns(script, struck, mended, events())
            _outlast(max(backs))
        except BaseException:
            player.end()
            raise
        log = traffic.stop(max(DRAIN_S, DRAIN * outage_s(struck, backs)))
    except BaseException:
        traffic.end()
        raise
    seen = Seen(net.plan, script, streams, probes, log, begun_ns, struck, mended, events())
    runs, whole = judge_all(seen, talks)
    return ScriptRun(begun_ns, runs, tuple(censuses), whole, log.lost_bytes, tuple(log.broken.values()))


def outage_s(struck_ns: Iterable[int], back_ns: Iterable[int]) -> float:
    """The longest that something was broken without a break: nobody was cut off for longer."""
    longest = since = until = 0
    for struck, back in sorted(zip(struck_ns, back_ns, strict=True)):
        since = since if struck <= until else struck
        until = max(until, back)
        longest = max(longest, until - since)
    return longest / 1e9


def _outlast(last_ns: int) -> None:
    """What took a while to be there again, as a controller does, has its time after that too."""
    time.sleep(max(0.0, last_ns / 1e9 + AFTER_S + TAIL_S - time.monotonic()))


def _attend(
    player: Player, census: CensusTaker | None, census_s: float, progress: Callable[[int], None]
) -> list[CensusRun]:
    """Until all is mended and its time after that is over: tell how far it is, and take censuses."""
    found: list[CensusRun] = []
    counted = shown = 0  # acts
    while True:
        over, acts = player.is_over(_POLL_S), player.acts.done
        if len(acts) > shown:
            shown = len(acts)
            progress(shown)
        now_ns = time.monotonic_ns()
        moment = player.acts.quiet(now_ns)
        is_time = moment and counted < len(acts) and moment.until_ns - now_ns > census_s * 1e9
        if census and moment and is_time and (taken := census.take(moment, acts)):  # else again, while it is quiet
            counted = len(acts)
            found.append(taken)
        if over and time.monotonic_ns() > max(act.done_ns for act in acts) + (AFTER_S + TAIL_S) * 1e9:
            return found
        if over:
            time.sleep(_POLL_S)
