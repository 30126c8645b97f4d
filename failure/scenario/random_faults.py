"""Random storms: many faults, several at a time, drawn from a seed. Pure: the same seed gives the same script.

Acts (injections and repairs) come one after the other: with so much quiet after each that a census can be taken, or
injections as often as asked for. Some faults come in groups that strike as one: links of one rail, links of one server,
or both cables of a GPU.

Never are two there at once of which one would hide the other: a cable that is cut at a GPU that has crashed, a GPU at a
switch that is dead and can't tell of it.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from railyard.failure.connectivity.check import duration_s
from railyard.failure.scenario.kinds import DOWN_S, Fault, FaultKind
from railyard.failure.scenario.reach import FaultScope, fault_scope, targets
from railyard.failure.scenario.script import Script, Timed
from railyard.failure.scenario.timeline import SETTLE_S
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan

FIRST_INJECTION_S: Final = 0.8
MARGIN_S: Final = 0.2  # an act takes some time itself
REPAIRED_IDLE_S: Final = 1.5  # what was mended is left alone so long: the next fault there is prepared and looked for
REQUIRED_IDLE_S: Final = 0.5  # what a repair needs is left alone so long
MIN_GAP_S: Final = 0.001  # to an injection that is drawn: times are whole ms, and acts come one after the other
MAX_CONCURRENT: Final = 4
REBOOT_S: Final = DOWN_S + 0.3  # after which a switch that reboots is there again, with its controller
RAIL_OR_SERVER_SHARE: Final = 2 / 3  # of the groups are of a rail or a server
SLOW_RATE: Final = 0.5  # lower, a queue would hold probes for longer than a census asks
LINKS: Final[tuple[FaultKind, ...]] = ("link-down", "link-silent", "link-gray", "link-slow", "link-flapping")
DEFAULT_MIX: Final[Mapping[FaultKind, float]] = {
    kind: 1.0 for kind in get_args(FaultKind) if kind not in ("controller-crash", "registry-crash")
}


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """`count` faults, of kinds by their weights in `mix`; those that a fabric has no target for are left out.

    `together`: the share of them that strike in groups. `down`: how long each lasts, s: at least and at most.
    `every`: the mean time from an act to the next injection, s, each drawn by itself (exponentially, so that injections
    are a Poisson process as long as something may strike); each repair comes when its fault has lasted. None: acts are
    as far apart as a census needs, and a fault lasts until the acts before its repair have had their quiet. `at_once`:
    the most faults at a time. ValueError for what can't be.
    """

    count: int
    mix: Mapping[FaultKind, float] = field(default_factory=lambda: DEFAULT_MIX)
    together: float = 0.2
    down: tuple[float, float] = (0.3, 2.5)
    every: float | None = None
    at_once: int = MAX_CONCURRENT

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.together <= 1 or not 0 < self.down[0] <= self.down[1]:
            raise ValueError(f"{self}: count 1 or more, together 0 to 1, down two times above 0, the lesser first")
        if (self.every is not None and self.every <= 0) or self.at_once < (2 if self.together else 1):
            raise ValueError(f"{self}: every above 0, at_once 1 or more, 2 where some strike together")
        if any(weight < 0 for weight in self.mix.values()) or not any(self.mix.values()):
            raise ValueError(f"{self}: weights must be 0 or more, one above 0")


def quiet_gap_s(plan: Plan) -> float:
    """From one act to the next, at least."""
    return SETTLE_S + duration_s(plan) + MARGIN_S


def idle_s(repaired: FaultScope, following: FaultScope) -> float:
    """From the repair of a fault to another one, at least; 0 if they have nothing to do with each other."""
    if repaired.affected & (following.affected | following.required):
        return REPAIRED_IDLE_S
    return REQUIRED_IDLE_S if repaired.required & following.affected else 0.0


def storm(spec: RandomFaults, plan: Plan, seed: int, name: str = "storm") -> Script:
    """Draw it. ValueError if nothing of the mix can break on this fabric."""
    drawn = _Generator(spec, plan, random.Random(seed)).draw()
    return Script(name, tuple(sorted(drawn, key=lambda timed: timed.at_s)))


@dataclass(slots=True)
class _ActiveFault:
    """A fault that is there: since when, until when it shall be, and what it takes."""

    fault: Fault
    at_s: float
    until_s: float
    reach: FaultScope


class _Generator:
    """One storm while it is drawn."""

    def __init__(self, spec: RandomFaults, plan: Plan, rng: random.Random) -> None:
        self._spec, self._plan, self._rng = spec, plan, rng
        self._targets = {kind: targets(kind, plan) for kind, weight in spec.mix.items() if weight}
        if not any(self._targets.values()):
            raise ValueError(f"nothing of the mix can break on this fabric: {', '.join(sorted(self._targets))}")
        self._groups = self._group_sizes()
        self._active: list[_ActiveFault] = []
        self._repaired: list[tuple[float, FaultScope]] = []  # of late

    def draw(self) -> Iterator[Timed]:
        """The faults, by the time of their repair."""
        now_s = FIRST_INJECTION_S
        while self._groups or self._active:
            to_repair = [one for one in self._active if one.until_s <= now_s]
            if to_repair:
                yield from self._repair(to_repair, now_s)
            elif not self._groups or not self._inject_next(now_s):
                end_times_s = [one.until_s for one in self._active]
                now_s = min(end_times_s) if end_times_s else now_s + self._next_gap_s()
                continue
            now_s = self._next_s(now_s)

    def _next_s(self, now_s: float) -> float:
        """When the act after one comes: the drawn injection, or a repair that is due before it. Then the time to the
        next injection is drawn anew, which an exponential distribution takes no notice of.
        """
        after_s = round(now_s + self._next_gap_s(), 3)
        if self._spec.every is None:
            return after_s
        repairs = (_ceil_ms(one.until_s) for one in self._active if one.until_s > now_s)
        return min([after_s, *repairs])

    def _next_gap_s(self) -> float:
        """From one act to the next."""
        every_s = self._spec.every
        if every_s is None:
            return quiet_gap_s(self._plan)
        return max(MIN_GAP_S, round(self._rng.expovariate(1 / every_s), 3))

    def _group_sizes(self) -> list[int]:
        """How many strike at each injection: groups of two or three, and single ones, in any order."""
        left, sizes = round(self._spec.count * self._spec.together), list[int]()
        while left >= 2:
            size = self._rng.choice((2, 3)) if left > 3 else left
            sizes.append(min(size, self._spec.at_once))
            left -= sizes[-1]
        sizes += [1] * (self._spec.count - sum(sizes))
        self._rng.shuffle(sizes)
        return sizes

    def _repair(self, to_repair: list[_ActiveFault], now_s: float) -> Iterator[Timed]:
        self._repaired = [
            (at_s, repaired_scope) for at_s, repaired_scope in self._repaired if at_s + REPAIRED_IDLE_S > now_s
        ]
        for one in to_repair:
            self._active.remove(one)
            self._repaired.append((now_s, one.reach))
            yield Timed(one.fault, one.at_s, round(now_s - one.at_s, 3))

    def _inject_next(self, now_s: float) -> bool:
        """Strike one or a group; False if nothing can now."""
        size = self._groups[-1]
        if len(self._active) + size > self._spec.at_once and self._active:
            return False
        faults = self._group(size, now_s) if size > 1 else self._single(now_s)
        if not faults and size > 1 and not self._active:
            self._groups[-1:] = [1] * size  # no such group on this fabric, or not of this mix
            return self._inject_next(now_s)
        if not faults:
            return False
        self._groups.pop()
        lasts_s = self._rng.uniform(*self._spec.down)
        if any(fault.kind == "rail-switch-reboot" for fault in faults):
            lasts_s = max(lasts_s, REBOOT_S)
        for fault in faults:
            self._active.append(_ActiveFault(fault, now_s, now_s + lasts_s, fault_scope(fault, self._plan)))
        return True

    def _single(self, now_s: float) -> list[Fault]:
        free = {kind: self._free_faults(kind, names, now_s) for kind, names in self._targets.items()}
        kinds = [kind for kind, faults in free.items() if faults]
        if not kinds:
            return []
        (kind,) = self._rng.choices(kinds, [self._spec.mix[kind] for kind in kinds])
        return [self._rng.choice(free[kind])]

    def _group(self, size: int, now_s: float) -> list[Fault]:
        """Links of one rail or one server, or both cables of a GPU."""
        plan, gpu_groups = self._plan, list[list[Gpu]]()
        gpu_groups += [[gpu for gpu in plan.gpus if gpu.rank == rank] for rank in range(plan.spec.rails)]
        gpu_groups += [[gpu for gpu in plan.gpus if gpu.domain == domain] for domain in range(plan.spec.domains)]
        pairs = [[gpu] for gpu in plan.gpus] if size == 2 and "hb-port-down" in self._targets else []
        while gpu_groups or pairs:
            candidates = (
                gpu_groups if gpu_groups and (not pairs or self._rng.random() < RAIL_OR_SERVER_SHARE) else pairs
            )
            chosen = candidates.pop(self._rng.randrange(len(candidates)))
            faults = self._links(chosen, now_s)
            if candidates is pairs:
                faults += self._free_faults("hb-port-down", [chosen[0].name], now_s)
            if len(faults) >= size:
                return self._rng.sample(faults, size)
        return []

    def _links(self, gpus: list[Gpu], now_s: float) -> list[Fault]:
        """A fault of some kind at each of these rail links where one can strike."""
        kinds = [kind for kind in LINKS if kind in self._targets]
        if not kinds:
            return []
        drawn = self._rng.choices(kinds, [self._spec.mix[kind] for kind in kinds], k=len(gpus))
        return [f for kind, gpu in zip(drawn, gpus, strict=True) for f in self._free_faults(kind, [gpu.name], now_s)]

    def _free_faults(self, kind: FaultKind, names: list[str], now_s: float) -> list[Fault]:
        """The faults of this kind that nothing that is there hides, or is hidden by."""
        faults = (_fault(kind, name) for name in names)
        return [fault for fault in faults if self._is_free(fault_scope(fault, self._plan), now_s)]

    def _is_free(self, reach: FaultScope, now_s: float) -> bool:
        if any(reach.conflicts_with(one.reach) for one in self._active):
            return False
        return all(at_s + idle_s(repaired_scope, reach) <= now_s for at_s, repaired_scope in self._repaired)


def _ceil_ms(seconds: float) -> float:
    """Not before it."""
    return math.ceil(seconds * 1e3) / 1e3


def _fault(kind: FaultKind, target: str) -> Fault:
    return Fault(kind, target, rate=SLOW_RATE) if kind == "link-slow" else Fault(kind, target, down=DOWN_S)
