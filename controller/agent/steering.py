"""Decisions of one GPU's agent when scores change: the routes to replace, and the pairs that change their path.

Pure: scores and time are given, routes are returned. A pair has a host route of its own only while its paths differ
from those of the fabric's base routes, so an idle fabric under `dr` has none. `serve_choices` serves the choices of the
moment over a unix socket to programs in the run's sandbox, a line each way.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as File
from socketserver import StreamRequestHandler
from typing import Any, Final

from railyard.controller.health.policy import BEST, BLOCKED, DELTA, HEALTH_POLICIES, Context, Scores, fabric_score
from railyard.controller.health.registry.unix_socket import UnixServer
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.forwarding import Path, PathKind, Shares
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Route, host_prefix, next_hops, on_planes
from railyard.topologies.spec import FabricSpec

# a point of 100, in the whole hundred-millionths of a path's score
POINT: Final = BEST**3
# percent: a better path has to be four times as good
MAX_MARGIN: Final = 300
# after so many dwell times a change is no longer soon after the one before
FLAP_WINDOW_DWELLS: Final = 4
MAX_FLAPS: Final = 4
UNCHANGED: Final = -1
HOPS: Final[dict[PathKind, int]] = {"d": 1, "r": 1, "dr": 2, "rd": 2, "spine": 3, "drd": 3}
"""Components crossed: domains, rails, and the spine layer between two rails."""


@dataclass(frozen=True, slots=True)
class Damping:
    """Limits of changes, 0 or more each.

    `margin`: percent by which a score must be better; None for policies that don't decide by scores.
    `noise`: points of 100 by which it must be so at least, since one point is a large part of a low score.
    `dwell_ns`: the least time between two changes of one pair.
    """

    margin: int | None = 10
    dwell_ns: int = 200_000_000
    noise: int = 5


@dataclass(frozen=True, slots=True)
class Steering:
    """The policy of all agents, its context, and how changes are damped."""

    policy: str
    context: Context = field(default_factory=Context)
    damping: Damping = field(default_factory=Damping)


@dataclass(frozen=True, slots=True)
class ActivePaths:
    """The current paths of a pair, since when (monotonic ns), and its number of flaps.

    A flap is a change soon after the one before; each doubles the dwell time. UNCHANGED: no change yet.
    """

    shares: Shares
    since_ns: int
    flaps: int = UNCHANGED

    def dwell_ns(self, damping: Damping) -> int:
        """Return the dwell time, doubled for each flap."""
        return damping.dwell_ns << max(0, self.flaps)


def damp(
    active: ActivePaths | None, target: Shares, src: Gpu, dst: Gpu, scores: Scores, now_ns: int, steering: Steering
) -> ActivePaths:
    """Return the pair's paths from now on: `active` itself, or `target`, the choice of the steering's policy."""
    # The papers don't damp changes. But a path that all pairs leave recovers and attracts them again, so that routes
    # would change as often as scores do.
    if active is None or not active.shares:
        return ActivePaths(target, now_ns)
    damping = steering.damping
    if target in ((), active.shares) or now_ns < active.since_ns + active.dwell_ns(damping):
        return active
    if damping.margin is not None and not _is_better(active.shares, target, src, dst, scores, steering):
        return active
    is_soon = now_ns - active.since_ns < FLAP_WINDOW_DWELLS * active.dwell_ns(damping)
    flaps = 0
    if active.flaps > UNCHANGED and is_soon:
        flaps = min(active.flaps + 1, MAX_FLAPS)
    return ActivePaths(target, now_ns, flaps)


def _is_better(old: Shares, new: Shares, src: Gpu, dst: Gpu, scores: Scores, steering: Steering) -> bool:
    """Return whether paths are better by margin and noise (than blocked ones, any is), or no worse and of fewer hops.

    Sets of paths are better if their best path is (spraying sets in) or their worst (a path of the set went bad).
    """
    # by all that a path crosses: on a fabric of two tiers r, dr, rd and drd cross spines as the direct path does
    context = steering.context
    before = [fabric_score(share.path, src, dst, scores, context) for share in old]
    after = [fabric_score(share.path, src, dst, scores, context) for share in new]
    margin = steering.damping.margin or 0
    noise = steering.damping.noise * POINT

    def better(new_score: int, old_score: int) -> bool:
        return new_score * BEST > old_score * (BEST + margin) and (
            new_score - old_score >= noise or old_score == BLOCKED
        )

    if better(min(after), min(before)) or better(max(after), max(before)):
        return True
    new_hops = max(HOPS[share.path.kind] for share in new)
    old_hops = max(HOPS[share.path.kind] for share in old)
    return min(after) >= min(before) and new_hops < old_hops


# the kernel prefers the lowest metric: base routes have 20, and a detour (10) must win over a steered route
STEERED_METRIC: Final = 15
# a flow alone on a link gets 0.9 of it and more, one of two gets half
SATISFIED_SHARE: Final = 0.7
# rates are measured anew that often (topologies/measure/counters.py)
RECHECK_NS: Final = 90_000_000
Rates = Mapping[str, float | None]


def steering_on(
    fabric: FabricSpec, policy: str, damping: Damping | None = None, seed: int = 0, delta: int = DELTA
) -> Steering:
    """Return what agents need to apply a policy on a fabric.

    `damping`: by default the usual one with the fabric's margin. `seed`, `delta`: see Context.
    """
    if not HEALTH_POLICIES[policy].is_damped:
        damping = Damping(None, 0, 0)
    elif damping is None:
        damping = Damping(margin_on(fabric.domains))
    leaves: Mapping[Gpu, str] = {}
    if fabric.definition.is_graph:
        leaves = fabric.graph.switch_of
    return Steering(policy, Context(fabric.definition.joins_rails, seed, delta, leaves=leaves), damping)


def margin_on(domains: int) -> int:
    """Return the margin (percent) below which a better path may only be one that lacks the pair's own traffic."""
    if domains <= 2:
        # a transfer can take all of a rail's score
        return MAX_MARGIN
    # A transfer fills two of a rail's links, its source's and its destination's: 2/M of the rail's score. A pair that
    # went by a tenth less would run from itself, from rail to rail. A tenth on top is for noise.
    idle_share = 1 - 2 / domains
    return min(MAX_MARGIN, round(110 / idle_share - 100))


@dataclass(frozen=True, slots=True)
class Change:
    """Routes to remove and to put in, and the pairs (by destination) whose paths changed.

    `recheck_ns`: when to decide again even without new scores, since a pair may not change before; None for never.
    """

    remove: tuple[Route, ...]
    put: tuple[Route, ...]
    chosen: dict[Gpu, Shares]
    recheck_ns: int | None

    def __bool__(self) -> bool:
        return bool(self.remove or self.put or self.chosen)


class Source:
    """One GPU as a source: its choice for every GPU of other domains. `steering` may change at any time."""

    def __init__(self, plan: Plan, gpu: Gpu, steering: Steering) -> None:
        self.steering = steering
        self._gpu = gpu
        self._rail_bps = plan.rail_bps
        kind = plan.spec.definition
        self._planes = kind.carrying(kind.all_planes)
        self._policy = HEALTH_POLICIES[steering.policy]
        self._base_shares = {dst: plan.spec.paths(gpu, dst) for dst in plan.gpus if dst.domain != gpu.domain}
        self._active: dict[Gpu, ActivePaths] = {}
        self._routes: dict[Gpu, Route] = {}

    def decide(self, scores: Scores, now_ns: int, read_rates: Callable[[], Rates] = dict) -> Change:
        """Return the change that follows from new scores. `read_rates` is called at most once, and only if needed."""
        put = []
        remove = []
        chosen = {}
        rechecks_ns = []
        rates: Rates | None = None
        choose = self._policy.choose
        context = self.steering.context
        damping = self.steering.damping
        for dst, base in self._base_shares.items():
            target = choose(self._gpu, dst, scores, context)
            before = self._active.get(dst)
            # nearly always the case, in what agents do most often: it must cost little
            if before is not None and before.shares == target:
                continue
            after = damp(before, target, self._gpu, dst, scores, now_ns, self.steering)
            if before and after is not before and self._policy.is_rate_aware:
                rates = read_rates() if rates is None else rates
                if is_satisfied(rates, dst, self._rail_bps):
                    after = before
                    rechecks_ns.append(now_ns + RECHECK_NS)
            if after is not before:
                self._active[dst] = after
                chosen[dst] = after.shares
                old = self._routes.pop(dst, None)
                new = route_for(after.shares, base, self._gpu, dst, self._planes)
                if new:
                    self._routes[dst] = new
                    if new != old:
                        put.append(new)
                elif old:
                    remove.append(old)
            elif target and now_ns < (dwell_end_ns := after.since_ns + after.dwell_ns(damping)):
                rechecks_ns.append(dwell_end_ns)
        return Change(tuple(remove), tuple(put), chosen, min(rechecks_ns, default=None))

    def chosen(self, dst: Gpu) -> Shares:
        """Return the current choice for a destination; () before the first decision, and where there is no choice."""
        return self._active[dst].shares if dst in self._active else ()

    def release(self) -> tuple[Route, ...]:
        """Return all routes that were put in and not removed: those to remove at the end."""
        return tuple(self._routes.values())


def is_satisfied(rates: Rates, dst: Gpu, rail_bps: int) -> bool:
    """Return whether a pair gets its share of a rail that only its source's own destinations use.

    `rates`: bit/s by address of each destination to which the source is sending. A pair whose rate is not known yet
    (None) counts as satisfied.
    """
    if dst.ip not in rates:
        return False
    rate = rates[dst.ip]
    return rate is None or rate >= SATISFIED_SHARE * rail_bps / len(rates)


_prefix: Final = cache(host_prefix)


def route_for(shares: Shares, base: Shares, src: Gpu, dst: Gpu, planes: tuple[int, ...] = (0,)) -> Route | None:
    """Return the host route that these paths need at their source; None if the base routes equal it."""
    if shares in ((), base):
        return None
    return Route(_prefix(dst), on_planes(next_hops(shares, src, dst), planes), metric=STEERED_METRIC)


Assigned = Mapping[tuple[Gpu, Gpu], Shares]
SOCKET: Final = File("/run/railyard/choices.sock")
ANSWER_S: Final = 5.0


def serve_choices(chosen: Callable[[Gpu, Gpu], Shares | None]) -> None:
    """Serve, from a thread, what `chosen(src, dst)` returns: None while no policy steers."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            src, dst = map(gpu_of_name, self.rfile.readline().decode().split())
            shares = chosen(src, dst)
            answer = None
            if shares is not None:
                answer = [[share.path.kind, share.path.rail] for share in shares]
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    SOCKET.unlink(missing_ok=True)
    server = UnixServer(str(SOCKET), Handler)
    threading.Thread(target=server.serve_forever, name="choices", daemon=True).start()


def ask(src: Gpu, dst: Gpu) -> list[Path] | None:
    """Return the paths that `src` chose for `dst`, () if there is none; None while no policy steers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(str(SOCKET))
            sock.sendall(f"{src.name} {dst.name}\n".encode())
            line = sock.makefile().readline()
        except (FileNotFoundError, ConnectionError):
            # there are no agents, or they die while they are asked
            return None
    answer: list[Any] | None = json.loads(line or "null")
    if answer is None:
        return None
    return [Path(kind, rail) for kind, rail in answer]
