"""Random faults: a script of many faults, several at a time, drawn from a seed. Pure: the same seed, the same script.

Stages of a draw: the number of faults of each injection (`_group_sizes`), then action by action the time of the next
one (`_next_action_s`), which faults are injected (`_draw_group`, `_draw_single`: kinds by their weights, among the
faults that the limits in `_is_free` allow), how long they last (`_inject`), and their repair (`_repair`).

Groups are injected at one moment: links of one rail, links of one server, or both cables of a GPU. Two faults of which
one would hide the other are never active together: a cut cable at a crashed GPU, or a GPU at a dead switch, which can't
report it.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from railyard.failure.connectivity.check import duration_s
from railyard.failure.faults import FAULTS, Fault, FaultScope, fault_kinds
from railyard.failure.scenario.script import SETTLE_S, Script, Timed
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import Layer
from railyard.topologies.plan import Plan

FIRST_INJECTION_S: Final = 0.8
MARGIN_S: Final = 0.2  # the duration of an action itself
REPAIRED_IDLE_S: Final = 1.5  # from a repair to the next fault of the same part, which is prepared and checked before
REQUIRED_IDLE_S: Final = 0.5  # from a repair to a fault of a part that the repair requires
MIN_GAP_S: Final = 0.001  # before a drawn injection: times are whole ms, and actions follow one another
MAX_CONCURRENT: Final = 4
RAIL_OR_SERVER_SHARE: Final = 2 / 3  # of the groups are of a rail or a server, the rest of the two cables of a GPU


def default_mix() -> dict[str, float]:
    """Return the kinds that have a weight of their own, with their weights."""
    return {kind: FAULTS[kind].weight for kind in fault_kinds() if FAULTS[kind].weight}


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """`count` faults, of kinds by their weights in `mix`; kinds without a target on the fabric are left out.

    `together`: the share of faults that are injected in groups. `down`: minimum and maximum duration of a fault, s.
    `every`: the mean time from an action to the next injection, s, drawn from an exponential distribution, so that
    injections are a Poisson process while any fault is possible; each repair comes when its fault has lasted. None:
    actions are as far apart as a connectivity check needs, and a fault lasts until the actions before its repair have
    had their idle time. `at_once`: the maximum number of concurrent faults, 2 or more where some come together.
    """

    count: int
    mix: Mapping[str, float] = field(default_factory=default_mix)
    together: float = 0.2
    down: tuple[float, float] = (0.3, 2.5)
    every: float | None = None
    at_once: int = MAX_CONCURRENT


def quiet_gap_s(plan: Plan) -> float:
    """Return the minimum time from one action to the next, s."""
    return SETTLE_S + duration_s(plan) + MARGIN_S


def idle_s(repaired: FaultScope, following: FaultScope) -> float:
    """Return the minimum time from the repair of a fault to another fault, s; 0 if they are independent."""
    if repaired.affected & (following.affected | following.required):
        return REPAIRED_IDLE_S
    return REQUIRED_IDLE_S if repaired.required & following.affected else 0.0


def random_script(spec: RandomFaults, plan: Plan, seed: int, name: str) -> Script:
    """Draw a script. ValueError if the fabric has no target for any kind of the mix."""
    drawn = _Draw(spec, plan, random.Random(seed)).script()
    return Script(name, tuple(sorted(drawn, key=lambda timed: timed.at_s)))


class _Candidate(NamedTuple):
    """A fault that can be drawn, with what it affects and requires."""

    fault: Fault
    scope: FaultScope


class _Active(NamedTuple):
    """An injected fault, and when its repair is due."""

    candidate: _Candidate
    at_s: float
    until_s: float


class _Draw:
    """One script in the making. The order of random draws is part of the format: a seed's results never change."""

    def __init__(self, spec: RandomFaults, plan: Plan, rng: random.Random) -> None:
        self._spec, self._plan, self._rng = spec, plan, rng
        self._candidates = {kind: _candidates(kind, plan) for kind, weight in spec.mix.items() if weight}
        if not any(self._candidates.values()):
            raise ValueError(f"nothing of the mix can break on this fabric: {', '.join(sorted(self._candidates))}")
        self._sizes = self._group_sizes()  # of the injections to come, the next one last
        self._active: list[_Active] = []
        self._repaired: list[tuple[float, FaultScope]] = []

    def script(self) -> Iterator[Timed]:
        """Yield the faults in the order of their repairs."""
        now_s = FIRST_INJECTION_S
        while self._sizes or self._active:
            if due := [one for one in self._active if one.until_s <= now_s]:
                yield from self._repair(due, now_s)
            elif not self._sizes or not self._inject(now_s):
                now_s = min(one.until_s for one in self._active) if self._active else now_s + self._gap_s()
                continue
            now_s = self._next_action_s(now_s)

    def _group_sizes(self) -> list[int]:
        """Return the number of faults of each injection: groups of two or three and single ones, in any order."""
        left, sizes = round(self._spec.count * self._spec.together), list[int]()
        while left >= 2:
            size = self._rng.choice((2, 3)) if left > 3 else left
            sizes.append(min(size, self._spec.at_once))
            left -= sizes[-1]
        sizes += [1] * (self._spec.count - sum(sizes))
        self._rng.shuffle(sizes)
        return sizes

    def _gap_s(self) -> float:
        """Return the time from an action to the next injection."""
        if self._spec.every is None:
            return quiet_gap_s(self._plan)
        return max(MIN_GAP_S, round(self._rng.expovariate(1 / self._spec.every), 3))

    def _next_action_s(self, now_s: float) -> float:
        """Return the time of the next action: the drawn injection, or a repair that is due before it.

        After a repair the time to the next injection is drawn anew: an exponential distribution has no memory.
        """
        after_s = round(now_s + self._gap_s(), 3)
        if self._spec.every is None:
            return after_s
        repairs = (math.ceil(one.until_s * 1e3) / 1e3 for one in self._active if one.until_s > now_s)
        return min([after_s, *repairs])

    def _inject(self, now_s: float) -> bool:
        """Inject one fault or a group, and draw how long it lasts; return False if none is possible now."""
        size = self._sizes[-1]
        if len(self._active) + size > self._spec.at_once and self._active:
            return False
        drawn = self._draw_group(size, now_s) if size > 1 else self._draw_single(now_s)
        if not drawn and size > 1 and not self._active:
            self._sizes[-1:] = [1] * size  # the fabric or the mix has no such group
            return self._inject(now_s)
        if drawn:
            self._sizes.pop()
            shortest_s = max(one.fault.definition.min_random_s for one in drawn)
            until_s = now_s + max(self._rng.uniform(*self._spec.down), shortest_s)
            self._active += [_Active(one, now_s, until_s) for one in drawn]
        return bool(drawn)

    def _draw_single(self, now_s: float) -> list[_Candidate]:
        """Draw a kind of those that are possible now, then its target."""
        free = {kind: self._free(found.values(), now_s) for kind, found in self._candidates.items()}
        kinds = [kind for kind, candidates in free.items() if candidates]
        if not kinds:
            return []
        (kind,) = self._rng.choices(kinds, [self._spec.mix[kind] for kind in kinds])
        return [self._rng.choice(free[kind])]

    def _draw_group(self, size: int, now_s: float) -> list[_Candidate]:
        """Draw faults of the rail cables of one rail or one server, or of both cables of a GPU."""
        gpus, fabric = self._plan.gpus, self._plan.spec
        several = [[gpu for gpu in gpus if gpu.rank == rank] for rank in range(fabric.rails)]
        several += [[gpu for gpu in gpus if gpu.domain == domain] for domain in range(fabric.domains)]
        single = [[gpu] for gpu in gpus] if size == 2 and self._kinds_at("hb") else []
        while several or single:
            use_several = several and (not single or self._rng.random() < RAIL_OR_SERVER_SHARE)
            places = several if use_several else single
            place = places.pop(self._rng.randrange(len(places)))
            found = self._draw_at("rail", place, now_s)
            if places is single:
                found += self._draw_at("hb", place, now_s)
            if len(found) >= size:
                return self._rng.sample(found, size)
        return []

    def _kinds_at(self, layer: Layer) -> list[str]:
        return [kind for kind in self._candidates if FAULTS[kind].layer == layer]

    def _draw_at(self, layer: Layer, gpus: Sequence[Gpu], now_s: float) -> list[_Candidate]:
        """Draw a kind for the cable of each GPU; return the faults that are possible now."""
        kinds = self._kinds_at(layer)
        if not kinds:
            return []
        if layer == "hb" and len(kinds) == 1:
            drawn = kinds * len(gpus)
        else:
            drawn = self._rng.choices(kinds, [self._spec.mix[kind] for kind in kinds], k=len(gpus))
        named = [(self._candidates[kind], gpu.name) for kind, gpu in zip(drawn, gpus, strict=True)]
        return self._free([candidates[name] for candidates, name in named if name in candidates], now_s)

    def _free(self, candidates: Iterable[_Candidate], now_s: float) -> list[_Candidate]:
        return [one for one in candidates if self._is_free(one.scope, now_s)]

    def _is_free(self, scope: FaultScope, now_s: float) -> bool:
        """Return whether a fault neither hides an active fault nor is hidden by one, or by one just repaired."""
        if any(scope.conflicts_with(one.candidate.scope) for one in self._active):
            return False
        return all(at_s + idle_s(repaired, scope) <= now_s for at_s, repaired in self._repaired)

    def _repair(self, due: Sequence[_Active], now_s: float) -> Iterator[Timed]:
        self._active = [one for one in self._active if one not in due]
        self._repaired = [(at_s, scope) for at_s, scope in self._repaired if at_s + REPAIRED_IDLE_S > now_s]
        self._repaired += [(now_s, one.candidate.scope) for one in due]
        yield from (Timed(one.candidate.fault, one.at_s, round(now_s - one.at_s, 3)) for one in due)


def _candidates(kind: str, plan: Plan) -> dict[str, _Candidate]:
    """Return all random faults of a kind on a fabric, by target."""
    parameters = FAULTS[kind].random_parameters()
    faults = (Fault(kind, target, parameters) for target in FAULTS[kind].targets(plan))
    return {fault.target: _Candidate(fault, fault.scope(plan)) for fault in faults}
