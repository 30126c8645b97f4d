"""Random faults: a script of many faults, several at a time, drawn from a seed. Pure: the same seed, the same script.

Actions (injections and repairs) follow one another: with enough idle time after each for a connectivity check, or with
injections as often as asked for. Some faults are injected in groups at one moment: links of one rail, links of one
server, or both cables of a GPU.

Two faults of which one would hide the other are never active together: a cut cable at a crashed GPU, or a GPU at a dead
switch, which can't report it.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from railyard.failure.connectivity.check import duration_s
from railyard.failure.faults import FAULTS, Fault, FaultScope, fault_kinds
from railyard.failure.scenario.script import SETTLE_S, Script, Timed
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import Layer

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
    had their idle time. `at_once`: the maximum number of concurrent faults. ValueError for values out of range.
    """

    count: int
    mix: Mapping[str, float] = field(default_factory=default_mix)
    together: float = 0.2
    down: tuple[float, float] = (0.3, 2.5)
    every: float | None = None
    at_once: int = MAX_CONCURRENT

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.together <= 1 or not 0 < self.down[0] <= self.down[1]:
            raise ValueError(f"{self}: count 1 or more, together 0 to 1, down two times above 0, the lesser first")
        if (self.every is not None and self.every <= 0) or self.at_once < (2 if self.together else 1):
            raise ValueError(f"{self}: every above 0, at_once 1 or more, 2 where some are injected together")
        if any(weight < 0 for weight in self.mix.values()) or not any(self.mix.values()):
            raise ValueError(f"{self}: weights must be 0 or more, one above 0")


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
    drawn = _Generator(spec, plan, random.Random(seed)).draw()
    return Script(name, tuple(sorted(drawn, key=lambda timed: timed.at_s)))


@dataclass(slots=True)
class _ActiveFault:
    """An active fault: its injection, when its repair is due, and its scope."""

    fault: Fault
    at_s: float
    until_s: float
    scope: FaultScope


class _Generator:
    """Draws one script. The order of random draws is part of the format: results can be reproduced by seed."""

    def __init__(self, spec: RandomFaults, plan: Plan, rng: random.Random) -> None:
        self._spec, self._plan, self._rng = spec, plan, rng
        self._targets = {kind: FAULTS[kind].targets(plan) for kind, weight in spec.mix.items() if weight}
        if not any(self._targets.values()):
            raise ValueError(f"nothing of the mix can break on this fabric: {', '.join(sorted(self._targets))}")
        self._groups = self._group_sizes()
        self._active: list[_ActiveFault] = []
        self._repaired: list[tuple[float, FaultScope]] = []  # within the last REPAIRED_IDLE_S

    def draw(self) -> Iterator[Timed]:
        """Yield the faults in the order of their repairs."""
        now_s = FIRST_INJECTION_S
        while self._groups or self._active:
            to_repair = [one for one in self._active if one.until_s <= now_s]
            if to_repair:
                yield from self._repair(to_repair, now_s)
            elif not self._groups or not self._inject_next(now_s):
                end_times_s = [one.until_s for one in self._active]
                now_s = min(end_times_s) if end_times_s else now_s + self._next_gap_s()
                continue
            now_s = self._next_action_s(now_s)

    def _next_action_s(self, now_s: float) -> float:
        """Return the time of the next action: the drawn injection, or a repair that is due before it.

        After a repair the time to the next injection is drawn anew: an exponential distribution has no memory.
        """
        after_s = round(now_s + self._next_gap_s(), 3)
        if self._spec.every is None:
            return after_s
        repairs = (math.ceil(one.until_s * 1e3) / 1e3 for one in self._active if one.until_s > now_s)
        return min([after_s, *repairs])

    def _next_gap_s(self) -> float:
        every_s = self._spec.every
        if every_s is None:
            return quiet_gap_s(self._plan)
        return max(MIN_GAP_S, round(self._rng.expovariate(1 / every_s), 3))

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

    def _repair(self, to_repair: list[_ActiveFault], now_s: float) -> Iterator[Timed]:
        self._repaired = [(at_s, scope) for at_s, scope in self._repaired if at_s + REPAIRED_IDLE_S > now_s]
        for one in to_repair:
            self._active.remove(one)
            self._repaired.append((now_s, one.scope))
            yield Timed(one.fault, one.at_s, round(now_s - one.at_s, 3))

    def _inject_next(self, now_s: float) -> bool:
        """Inject one fault or a group; return False if none is possible now."""
        size = self._groups[-1]
        if len(self._active) + size > self._spec.at_once and self._active:
            return False
        faults = self._group(size, now_s) if size > 1 else self._single(now_s)
        if not faults and size > 1 and not self._active:
            self._groups[-1:] = [1] * size  # the fabric or the mix has no such group
            return self._inject_next(now_s)
        if not faults:
            return False
        self._groups.pop()
        lasts_s = max(self._rng.uniform(*self._spec.down), *(fault.definition.min_random_s for fault in faults))
        for fault in faults:
            self._active.append(_ActiveFault(fault, now_s, now_s + lasts_s, fault.scope(self._plan)))
        return True

    def _single(self, now_s: float) -> list[Fault]:
        free = {kind: self._free(kind, names, now_s) for kind, names in self._targets.items()}
        kinds = [kind for kind, faults in free.items() if faults]
        if not kinds:
            return []
        (kind,) = self._rng.choices(kinds, [self._spec.mix[kind] for kind in kinds])
        return [self._rng.choice(free[kind])]

    def _group(self, size: int, now_s: float) -> list[Fault]:
        """Draw faults of the rail cables of one rail or one server, or of both cables of a GPU."""
        plan, gpu_groups = self._plan, list[list[Gpu]]()
        gpu_groups += [[gpu for gpu in plan.gpus if gpu.rank == rank] for rank in range(plan.spec.rails)]
        gpu_groups += [[gpu for gpu in plan.gpus if gpu.domain == domain] for domain in range(plan.spec.domains)]
        single_gpus = [[gpu] for gpu in plan.gpus] if size == 2 and self._cable_kinds("hb") else []
        while gpu_groups or single_gpus:
            use_groups = gpu_groups and (not single_gpus or self._rng.random() < RAIL_OR_SERVER_SHARE)
            candidates = gpu_groups if use_groups else single_gpus
            chosen = candidates.pop(self._rng.randrange(len(candidates)))
            faults = self._cable_faults("rail", chosen, now_s)
            if candidates is single_gpus:
                faults += self._cable_faults("hb", chosen, now_s)
            if len(faults) >= size:
                return self._rng.sample(faults, size)
        return []

    def _cable_kinds(self, layer: Layer) -> list[str]:
        return [kind for kind in self._targets if FAULTS[kind].layer == layer]

    def _cable_faults(self, layer: Layer, gpus: list[Gpu], now_s: float) -> list[Fault]:
        """Draw a kind for the cable of each GPU; return the faults that are possible now."""
        kinds = self._cable_kinds(layer)
        if not kinds:
            return []
        weights = [self._spec.mix[kind] for kind in kinds]
        drawn = (
            kinds * len(gpus) if layer == "hb" and len(kinds) == 1 else self._rng.choices(kinds, weights, k=len(gpus))
        )
        return [f for kind, gpu in zip(drawn, gpus, strict=True) for f in self._free(kind, [gpu.name], now_s)]

    def _free(self, kind: str, names: Sequence[str], now_s: float) -> list[Fault]:
        """Return the faults of a kind that neither hide an active fault nor are hidden by one."""
        parameters = FAULTS[kind].random_parameters()
        faults = (Fault(kind, name, parameters) for name in names)
        return [fault for fault in faults if self._is_free(fault.scope(self._plan), now_s)]

    def _is_free(self, scope: FaultScope, now_s: float) -> bool:
        if any(scope.conflicts_with(one.scope) for one in self._active):
            return False
        return all(at_s + idle_s(repaired, scope) <= now_s for at_s, repaired in self._repaired)
