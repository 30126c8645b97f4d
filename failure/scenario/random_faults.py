"""Random faults: a script of many faults, several at a time, drawn from a seed. Pure: the same seed, the same script.

A draw sets the number of faults of each injection, then action by action the time of the next one, which faults are
injected, how long they last, and their repair. Groups are injected at one moment: links of one rail, links of one
server, or both cables of a GPU. Two faults of which one would hide the other are never active together: a cut cable at
a crashed GPU, or a GPU at a dead switch, which can't report it.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from railyard.core.config import ConfigModel, field_error
from railyard.core.errors import unknown_name_hint
from railyard.core.units import Time, format_time, time_between
from railyard.failure.connectivity.check import duration_s
from railyard.failure.faults import FAULTS, Fault, FaultScope, fault_kinds
from railyard.failure.script import SETTLE_S, Script, Timed
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import Layer
from railyard.topologies.plan import Plan

FIRST_INJECTION_S: Final = 0.8
MARGIN_S: Final = 0.2  # the duration of an action itself
# from a repair to the next fault of the same part, which is prepared and checked before
REPAIRED_IDLE_S: Final = 1.5
# from a repair to a fault of a part that the repair requires
REQUIRED_IDLE_S: Final = 0.5
# before a drawn injection: times are whole ms, and actions follow one another
MIN_GAP_S: Final = 0.001
MAX_FAULTS: Final = 500
MIN_DURATION_S: Final = 0.2
MAX_DURATION_S: Final = 60.0
# share of the groups that are of a rail or a server; the other groups are the two cables of a GPU
RAIL_OR_SERVER_SHARE: Final = 2 / 3


class RandomFaults(ConfigModel):
    """Random faults, as an experiment file has them: `count` of them, of kinds by their weights in `mix` (default: all
    kinds that have a weight of their own). Kinds without a target on the fabric are left out.

    `group_share`: the share of faults that are injected in groups, at one rail, server or pair of cables.
    `duration`: minimum and maximum duration of a fault, s.
    `mean_interval`: the mean time from an action to the next injection, s, drawn from an exponential distribution, so
    that injections are a Poisson process while any fault is possible; each repair comes when its fault has lasted.
    None: actions are as far apart as a connectivity check needs, and a fault lasts until the actions before its repair
    have had their idle time.
    `max_concurrent`: the most faults at a time.
    """

    count: Annotated[int, Field(ge=1, le=MAX_FAULTS)] = 50
    mix: dict[str, float] | None = None
    group_share: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.2
    duration: Annotated[tuple[Time, Time], Field(strict=False)] = (0.3, 1.5)
    mean_interval: Annotated[Time, time_between(0.05, 60.0)] | None = None
    max_concurrent: Annotated[int, Field(ge=1, le=16)] = 4

    @field_validator("mix")
    @classmethod
    def _kinds_are_known(cls, mix: dict[str, float] | None) -> dict[str, float] | None:
        for kind, weight in (mix or {}).items():
            if kind not in FAULTS:
                raise field_error(kind, weight, unknown_name_hint(kind, FAULTS.names()))
            if weight <= 0:
                raise field_error(kind, weight, "must be above 0: the weight of this kind among all")
        if mix == {}:
            raise ValueError("must have 1 kind or more, or be left out")
        return mix

    @field_validator("duration")
    @classmethod
    def _check_duration(cls, duration: tuple[float, float]) -> tuple[float, float]:
        if not MIN_DURATION_S <= duration[0] <= duration[1] <= MAX_DURATION_S:
            allowed = f"{format_time(MIN_DURATION_S)} to {format_time(MAX_DURATION_S)}, the shorter one first"
            raise ValueError(f"must be two times of {allowed}")
        return duration

    @field_validator("max_concurrent")
    @classmethod
    def _groups_are_possible(cls, max_concurrent: int, info: ValidationInfo) -> int:
        if max_concurrent == 1 and info.data.get("group_share"):
            raise ValueError("must be 2 or more, or group_share 0: a group is injected at once")
        return max_concurrent

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each kind, in the order of random draws: the order of the kinds in a file doesn't matter."""
        mix = self.mix or {kind: FAULTS[kind].weight for kind in FAULTS}
        return {kind: mix[kind] for kind in fault_kinds() if mix.get(kind)}

    def script(self, name: str, plan: Plan, seed: int) -> Script:
        """Draw a script. ValueError if the fabric has no target for any kind of the mix."""
        drawn = _Draw(self, plan, random.Random(seed)).script()
        return Script(name, tuple(sorted(drawn, key=lambda timed: timed.at_s)))


def idle_s(repaired: FaultScope, following: FaultScope) -> float:
    """Return the minimum time from the repair of a fault to another fault, s; 0 if they are independent."""
    if repaired.affected & (following.affected | following.required):
        return REPAIRED_IDLE_S
    if repaired.required & following.affected:
        return REQUIRED_IDLE_S
    return 0.0


class _Candidate(NamedTuple):
    """A fault that can be drawn, with what it affects and requires; once injected, with when, and its repair's time."""

    fault: Fault
    scope: FaultScope
    at_s: float = 0.0
    until_s: float = 0.0


class _Draw:
    """One script in the making. The order of random draws is part of the format: a seed's results never change."""

    def __init__(self, spec: RandomFaults, plan: Plan, rng: random.Random) -> None:
        self._spec = spec
        self._plan = plan
        self._rng = rng
        self._weights = spec.weights
        # all random faults of a kind, by target
        self._candidates: dict[str, dict[str, _Candidate]] = {}
        for kind in self._weights:
            self._candidates[kind] = {}
            for target in FAULTS[kind].targets(plan):
                fault = Fault(kind, target, FAULTS[kind].random_parameters())
                self._candidates[kind][target] = _Candidate(fault, fault.scope(plan))
        if not any(self._candidates.values()):
            raise ValueError(f"nothing of the mix can break on this fabric: {', '.join(sorted(self._candidates))}")
        # of the injections to come, the next one last
        self._sizes = self._group_sizes()
        self._active: list[_Candidate] = []
        self._repaired: list[tuple[float, FaultScope]] = []

    def script(self) -> Iterator[Timed]:
        """Yield the faults in the order of their repairs."""
        now_s = FIRST_INJECTION_S
        while self._sizes or self._active:
            due = [candidate for candidate in self._active if candidate.until_s <= now_s]
            if due:
                yield from self._repair(due, now_s)
            elif not self._sizes or not self._inject(now_s):
                # nothing can be injected now: try again after the next repair
                if self._active:
                    now_s = min(candidate.until_s for candidate in self._active)
                else:
                    now_s += self._gap_s()
                continue
            now_s = self._next_action_s(now_s)

    def _group_sizes(self) -> list[int]:
        """Return the number of faults of each injection: groups of two or three and single ones, in any order."""
        in_groups = round(self._spec.count * self._spec.group_share)
        sizes: list[int] = []
        while in_groups >= 2:
            size = self._rng.choice((2, 3)) if in_groups > 3 else in_groups
            sizes.append(min(size, self._spec.max_concurrent))
            in_groups -= sizes[-1]
        sizes += [1] * (self._spec.count - sum(sizes))
        self._rng.shuffle(sizes)
        return sizes

    def _gap_s(self) -> float:
        # each gap must leave time for a connectivity check
        if self._spec.mean_interval is None:
            return SETTLE_S + duration_s(self._plan) + MARGIN_S
        return max(MIN_GAP_S, round(self._rng.expovariate(1 / self._spec.mean_interval), 3))

    def _next_action_s(self, now_s: float) -> float:
        """Return the time of the next action: the drawn injection, or a repair that is due before it."""
        # also after a repair, before which an injection was drawn: an exponential distribution has no memory
        after_s = round(now_s + self._gap_s(), 3)
        if self._spec.mean_interval is None:
            return after_s
        for candidate in self._active:
            if candidate.until_s > now_s:
                after_s = min(after_s, math.ceil(candidate.until_s * 1e3) / 1e3)
        return after_s

    def _inject(self, now_s: float) -> bool:
        """Inject one fault or a group, and draw how long it lasts; return False if none is possible now."""
        size = self._sizes[-1]
        if len(self._active) + size > self._spec.max_concurrent and self._active:
            return False
        drawn = self._draw_group(size, now_s) if size > 1 else self._draw_single(now_s)
        # with no fault active, a group that can't be drawn now never can: the fabric or the mix has none
        if not drawn and size > 1 and not self._active:
            self._sizes[-1:] = [1] * size
            return self._inject(now_s)
        if not drawn:
            return False
        self._sizes.pop()
        shortest_s = max(candidate.fault.definition.min_random_s for candidate in drawn)
        until_s = now_s + max(self._rng.uniform(*self._spec.duration), shortest_s)
        self._active += [candidate._replace(at_s=now_s, until_s=until_s) for candidate in drawn]
        return True

    def _draw_single(self, now_s: float) -> list[_Candidate]:
        free: dict[str, list[_Candidate]] = {}
        for kind, by_target in self._candidates.items():
            candidates = self._free(by_target.values(), now_s)
            if candidates:
                free[kind] = candidates
        kinds = list(free)
        if not kinds:
            return []
        (kind,) = self._rng.choices(kinds, [self._weights[kind] for kind in kinds])
        return [self._rng.choice(free[kind])]

    def _draw_group(self, size: int, now_s: float) -> list[_Candidate]:
        """Draw faults of the rail cables of one rail or one server, or of both cables of a GPU."""
        shared_places = self._rails_and_servers()
        single_gpus = []
        if size == 2 and any(FAULTS[kind].layer == "hb" for kind in self._candidates):
            single_gpus = [[gpu] for gpu in self._plan.gpus]
        while shared_places or single_gpus:
            places = single_gpus
            # the order of these conditions decides what is drawn: no number is drawn unless both kinds are left
            if shared_places and (not single_gpus or self._rng.random() < RAIL_OR_SERVER_SHARE):
                places = shared_places
            place = places.pop(self._rng.randrange(len(places)))
            candidates = self._draw_at("rail", place, now_s)
            if places is single_gpus:
                candidates += self._draw_at("hb", place, now_s)
            if len(candidates) >= size:
                return self._rng.sample(candidates, size)
        return []

    def _rails_and_servers(self) -> list[list[Gpu]]:
        """Return the GPUs of each rail, and those of each server."""
        rails: list[list[Gpu]] = [[] for _ in range(self._plan.spec.rail_count)]
        servers: list[list[Gpu]] = [[] for _ in range(self._plan.spec.domains)]
        for gpu in self._plan.gpus:
            rails[self._plan.spec.rail_of(gpu.rank)].append(gpu)
            servers[gpu.domain].append(gpu)
        return rails + servers

    def _draw_at(self, layer: Layer, gpus: Sequence[Gpu], now_s: float) -> list[_Candidate]:
        """Draw a kind for the cable of each GPU; return the faults that are possible now."""
        kinds = [kind for kind in self._candidates if FAULTS[kind].layer == layer]
        if not kinds:
            return []
        names = list(dict.fromkeys(self._plan.link_name_of(gpu, layer) for gpu in gpus))
        if layer == "hb" and len(kinds) == 1:
            drawn = kinds * len(names)
        else:
            drawn = self._rng.choices(kinds, [self._weights[kind] for kind in kinds], k=len(names))
        candidates: list[_Candidate] = []
        for kind, name in zip(drawn, names, strict=True):
            by_target = self._candidates[kind]
            if name in by_target:
                candidates.append(by_target[name])
        return self._free(candidates, now_s)

    def _free(self, candidates: Iterable[_Candidate], now_s: float) -> list[_Candidate]:
        """Return the faults that neither hide an active fault nor are hidden by one, or by one just repaired."""
        recent = self._recently_repaired(now_s)
        if not self._active and not recent:
            return list(candidates)
        free: list[_Candidate] = []
        for candidate in candidates:
            if any(candidate.scope.conflicts_with(active.scope) for active in self._active):
                continue
            if all(at_s + idle_s(repaired, candidate.scope) <= now_s for at_s, repaired in recent):
                free.append(candidate)
        return free

    def _recently_repaired(self, now_s: float) -> list[tuple[float, FaultScope]]:
        """Return the repairs so recent that they may still exclude a fault."""
        return [(at_s, scope) for at_s, scope in self._repaired if at_s + REPAIRED_IDLE_S > now_s]

    def _repair(self, due: Sequence[_Candidate], now_s: float) -> Iterator[Timed]:
        self._active = [candidate for candidate in self._active if candidate not in due]
        self._repaired = self._recently_repaired(now_s)
        for candidate in due:
            self._repaired.append((now_s, candidate.scope))
            yield Timed(candidate.fault, candidate.at_s, round(now_s - candidate.at_s, 3))
