"""States of a size class in the load balancer: which rails share its buffers, and what moves their shares.

Source: Nezha section 4.3, Eq. 3 to 8. A size class is in one of these states:

    SingleRail --a split pays--> EvenSplit --Eq. 8--> AdjustedSplit --rails end together, or best shares held--> Settled
        ^                            |                     |    ^                                                 |
        +------ no faster than one rail, or one rail left -+    +-------------------- rails end apart ------------+

docs/multirail.md describes the rules. balancer.py keeps the states of all classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from railyard.workloads.allreduce.balancing import costs as model
from railyard.workloads.allreduce.balancing.costs import Cost, CostEstimator, spread, without_rail

# Operations: with the paper's windows of 100 shares can't converge "within the first 100 iterations".
LEARNING_WINDOW: Final = 5
LONG_WINDOW: Final = 100
SETTLED_SPREAD: Final = 0.05
# Section 5.3.2: the average scheduling error stays within 9.3%; a settled class beyond it is adjusted again.
DISTURBED_SPREAD: Final = 0.093
# A class at rest moves only if so many windows in a row say the same: on a busy machine times scatter, and of many
# windows one shows a gain where there is none.
AGREEING_WINDOWS: Final = 2
MIN_GAIN: Final = 0.1
MIN_GAIN_AT_REST: Final = 0.2
MAX_TRIES: Final = 3
# windows of a split: with those before it fewer than 100 operations
MAX_STEPS: Final = 14
RECHECK_WINDOWS: Final = 5

Shares = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A window: seconds until its last rail was through, bytes of an operation, shares by rail."""

    seconds: float
    size: int
    shares: Shares


class Rails:
    """Live rails of a group, and what each costs by its estimator."""

    def __init__(self, costs: Sequence[Cost], alive: set[int]) -> None:
        self.estimators = [CostEstimator(cost) for cost in costs]
        self.alive = alive

    def forget(self, rail: int) -> None:
        """Make a rail's cost nominal again."""
        self.estimators[rail] = CostEstimator(self.estimators[rail].nominal)

    def at(self, size: float, untrusted: Collection[int] = ()) -> tuple[Cost, ...]:
        """Return by rail the cost at `size`. What was measured of `untrusted` rails is ignored."""
        estimators = list(self.estimators)
        for rail in untrusted:
            estimators[rail] = CostEstimator(estimators[rail].nominal)
        slowdowns: list[float] = []
        for estimator in estimators:
            if estimator.covers(size):
                slowdowns.append(estimator.cost.seconds(size) / estimator.nominal.seconds(size))
        slowdown = min(slowdowns, default=1.0)
        costs: list[Cost] = []
        for estimator in estimators:
            cost = estimator.cost
            # A rail never measured at such sizes is as slow as at others, or as much slower than nominal as the best of
            # those that were measured: else all rails but the one in use would look fast on a slow machine.
            if not estimator.covers(size):
                slowed = model.slowed_cost(estimator.nominal, size, slowdown)
                cost = max(cost, slowed, key=lambda cost: cost.seconds(size))
            costs.append(cost)
        return tuple(costs)

    def evenly(self, rails: Collection[int]) -> Shares:
        """Return equal shares on these rails."""
        shares = [0.0] * len(self.estimators)
        for rail in rails:
            shares[rail] = 1 / len(rails)
        return tuple(shares)

    def worth_splitting(self, size: int, gain: float, untrusted: Iterable[int] = ()) -> list[int]:
        """Return the rails to split `size` bytes over, if that gains at least `gain`; else none.

        What was measured of `untrusted` rails is ignored.
        """
        alive = sorted(self.alive)
        costs = self.at(size, untrusted=set(untrusted))
        chosen = model.rails_to_split([costs[rail] for rail in alive], size, gain)
        return [alive[index] for index in chosen]

    def scaled_s(self, measured: Measurement, size: int) -> float:
        """Return a measured time for `size` bytes, another size of the same class."""
        if measured.size == size:
            return measured.seconds
        # a class has sizes from one power of two to the next, so windows of the same class differ in size
        share = max(measured.shares)
        cost = self.at(size)[measured.shares.index(share)]
        return measured.seconds * cost.seconds(share * size) / cost.seconds(share * measured.size)


@dataclass
class Memory:
    """Memory of a size class from state to state.

    `single_rail`: by rail, the latest window in which it had all.
    """

    rails: Rails
    single_rail: dict[int, Measurement] = field(default_factory=dict)
    split_failed: bool = False
    recheck_windows: int = RECHECK_WINDOWS

    def single_rail_s(self, size: int, is_old: bool = False) -> dict[int, float]:
        """Return by live rail the seconds that it takes for all: as measured alone, or else as its estimate says.

        `is_old`: the windows are from before the class settled.
        """
        costs = self.rails.at(size)
        times = {rail: costs[rail].seconds(size) for rail in sorted(self.rails.alive)}
        for rail, measured in self.single_rail.items():
            scaled_s = self.rails.scaled_s(measured, size)
            # the machine may have become slower since an old window
            if is_old:
                scaled_s = max(times[rail], scaled_s)
            times[rail] = scaled_s
        return times


@dataclass
class State(ABC):
    """State of a size class.

    `shares`: by rail, 0 for those without a part.
    `window`: operations until the next window ends.
    """

    memory: Memory
    shares: Shares
    name: ClassVar[str]
    window: ClassVar[int] = LEARNING_WINDOW

    @abstractmethod
    def on_window(self, measured: Measurement, times: Mapping[int, float]) -> "State":
        """Return the state after a window. `times`: median seconds of each rail that had a share."""

    def on_rail_down(self, rail: int) -> "State | None":
        """Return the state without a rail that died; None to start anew, where at most one rail is left."""
        used = {number for number, share in enumerate(self.shares) if share > 0}
        if len(used - {rail}) < min(2, len(used)):
            return None
        self.memory.single_rail.pop(rail, None)
        if not self._depends_on(rail):
            return self
        return AdjustedSplit(self.memory, without_rail(self.shares, rail))

    def _depends_on(self, rail: int) -> bool:
        return self.shares[rail] > 0


@dataclass
class _Resting(State):
    """State at rest: it is left only when windows in a row agree, or when a recheck finds better rails.

    `proposed`: the rails that the last window would move to, in `agreeing` windows in a row.
    """

    rested: int = 0
    proposed: tuple[int, ...] = ()
    agreeing: int = 0

    def _confirmed(self, proposed: Sequence[int], windows: int) -> bool:
        """Whether so many windows in a row, this one included, propose the same rails."""
        if tuple(proposed) != self.proposed:
            self.agreeing = 0
        self.agreeing += 1
        self.proposed = tuple(proposed)
        return bool(proposed) and self.agreeing >= windows

    def _recheck(self, measured: Measurement, is_held: bool) -> "State | None":
        """Return a state on better rails, if it is time to look for some and there are any."""
        # A busy machine may have kept a class from a rail or from better shares. So a class that leaves out a live
        # rail, or holds shares, rechecks after `RECHECK_WINDOWS` long windows, then after twice as many, and so on.
        memory = self.memory
        rails = self.memory.rails
        used = {rail for rail in rails.alive if self.shares[rail] > 0}
        idle = rails.alive - used
        if not (idle or is_held):
            return None
        self.rested += 1
        if self.rested < memory.recheck_windows:
            return None
        self.rested = 0
        better = self._better_rails(measured.size, used)
        added = idle & set(better)
        if not (added or is_held):
            return None
        memory.recheck_windows *= 2
        # what kept these rails idle would otherwise keep them idle again
        for rail in added:
            memory.single_rail.pop(rail, None)
            rails.forget(rail)
        if len(better) == 1:
            return SingleRail(memory, rails.evenly(better), rested=self.rested)
        if isinstance(self, SingleRail):
            return EvenSplit(memory, rails.evenly(better))
        if added:
            return EvenSplit(memory, rails.evenly(better), best=measured, is_old=True, is_recheck=True)
        return AdjustedSplit(memory, self.shares, best=measured, is_old=True, is_recheck=True)

    def _better_rails(self, size: int, used: set[int]) -> list[int]:
        """Return the rails to be on instead, if those that are left out are as their nominal costs say."""
        rails = self.memory.rails
        costs = rails.at(size, untrusted=rails.alive - used)
        candidates = rails.worth_splitting(size, MIN_GAIN, untrusted=rails.alive - used)
        current_s = model.equal_finish_s([costs[rail] for rail in used], size)
        if candidates and model.equal_finish_s([costs[rail] for rail in candidates], size) * (1 + MIN_GAIN) < current_s:
            return candidates
        best = model.fastest_rail(costs, size, sorted(rails.alive))
        is_faster = costs[best].seconds(size) * (1 + MIN_GAIN) < current_s
        if isinstance(self, SingleRail) and is_faster:
            return [best]
        return []


@dataclass
class SingleRail(_Resting):
    """All on one rail, at first the one of least latency (Eq. 4), until another or a split should gain enough."""

    name = "cold"

    @property
    def rail(self) -> int:
        """The rail that has all."""
        return self.shares.index(1.0)

    @property
    def window(self) -> int:  # type: ignore[override]  # long once a window was measured
        """Operations until the next window: more once one was measured."""
        return LONG_WINDOW if self.rail in self.memory.single_rail else LEARNING_WINDOW

    def on_window(self, measured: Measurement, times: Mapping[int, float]) -> State:
        """Move to a split or to another rail that should gain enough."""
        memory = self.memory
        size = measured.size
        is_at_rest = self.rail in memory.single_rail
        memory.single_rail[self.rail] = measured
        gain = MIN_GAIN
        windows = 1
        if is_at_rest:
            gain = MIN_GAIN_AT_REST
            windows = AGREEING_WINDOWS
            better = self._recheck(measured, is_held=False)
            if better:
                return better
        candidates = memory.rails.worth_splitting(size, gain)
        alone_s = memory.single_rail_s(size)
        best = min(alone_s, key=alone_s.__getitem__)
        if candidates and not memory.split_failed:
            if self._confirmed(candidates, windows):
                return EvenSplit(memory, memory.rails.evenly(candidates))
            return self
        # a time that was measured alone is certain enough without a margin, unless the class is at rest
        margin = gain if is_at_rest or best not in memory.single_rail else 0
        is_better = alone_s[best] * (1 + margin) < measured.seconds
        proposed = [best] if is_better else []
        if self._confirmed(proposed, windows):
            return SingleRail(memory, memory.rails.evenly([best]), rested=self.rested)
        return self


@dataclass
class AdjustedSplit(State):
    """A split whose shares move until rails end together (Eq. 7, `update_shares`).

    `best`: the fastest window.
    `is_old`: it began from a settled class.
    `is_recheck`: it began to look for better rails.
    `windows`, `steps`: how many windows there were, and changes of shares.
    `balanced`: windows in a row in which rails ended together.
    `slower`: windows in a row that took longer than the best.
    `no_gain`: windows no faster than one rail.
    """

    name: ClassVar[str] = "adjusting"
    best: Measurement | None = None
    is_old: bool = False
    is_recheck: bool = False
    windows: int = 0
    steps: int = 0
    balanced: int = 0
    slower: int = 0
    no_gain: int = 0

    def on_window(self, measured: Measurement, times: Mapping[int, float]) -> State:
        """Settle, give up, or move shares."""
        rails = self.memory.rails
        size = measured.size
        self.windows += 1
        self.balanced = self.balanced + 1 if self._ends_together(size, times) else 0
        if self.best is None or measured.seconds < rails.scaled_s(self.best, size):
            self.best = measured
        is_slower = measured.seconds > rails.scaled_s(self.best, size) * (1 + SETTLED_SPREAD)
        self.slower = self.slower + 1 if is_slower else 0
        if self._must_hold_best():
            return self._hold_best(size)
        no_faster = measured.seconds >= min(self.memory.single_rail_s(size, self.is_old).values())
        if no_faster and self.name == "adjusting":
            self.no_gain += 1
        is_balanced = self.balanced >= 2
        if self.no_gain >= MAX_TRIES or (is_balanced and no_faster):
            return self._give_up(size)
        if is_balanced:
            return Settled(self.memory, self.shares)
        return self.step(size, times)

    def _ends_together(self, size: int, times: Mapping[int, float]) -> bool:
        """Return whether rails end together, or the next step, as short as steps are by then, hardly moves shares."""
        if spread(times.values()) <= SETTLED_SPREAD:
            return True
        if self.name != "adjusting":
            return False
        changes = zip(self.shares, self._next_shares(size, times), strict=True)
        return max(abs(before - after) for before, after in changes) <= model.MIN_SHARE_CHANGE

    def _must_hold_best(self) -> bool:
        """Return whether shares got slower, don't settle, or were rechecked in vain."""
        is_scattered = self.windows >= MAX_STEPS and self.balanced < 2
        recheck_failed = self.is_recheck and self.balanced >= 2 and self.slower > 0
        return self.slower >= MAX_TRIES or is_scattered or recheck_failed

    def step(self, size: int, times: Mapping[int, float]) -> State:
        """Move shares towards rails that end together."""
        if spread(times.values()) <= SETTLED_SPREAD:
            return self
        self.shares = self._next_shares(size, times)
        self.steps += 1
        used_rails = sum(share > 0 for share in self.shares)
        return self if used_rails > 1 else self._hold_best(size)

    def _next_shares(self, size: int, times: Mapping[int, float]) -> Shares:
        used = list(times)
        ends = list(times.values())
        shares = [self.shares[rail] for rail in used]
        # from the third step on steps get shorter: whole steps would follow every chance slow window
        gain = min(1.0, 2 / (self.steps + 1))
        costs = [self.memory.rails.estimators[rail].cost for rail in used]
        # dT/dalpha by each rail's line, held between a fifth of T/alpha and all: set-ups are positive
        slopes = []
        for share, seconds, cost in zip(shares, ends, costs, strict=True):
            secant = max(seconds, 1e-9) / share
            slopes.append(min(secant, max(secant / 5, cost.s_per_byte * size)) / gain)
        target = model.update_shares(shares, ends, slopes)
        # a rail that ends last, and whose set-up alone takes longer than the others need, gets nothing
        last = max(range(len(used)), key=ends.__getitem__)
        if model.ideal_shares(costs, size)[last] == 0:
            target = without_rail(target, last)
        return self._by_rail(used, target)

    def _by_rail(self, used: Sequence[int], shares: Sequence[float]) -> Shares:
        share_of = dict(zip(used, shares, strict=True))
        return tuple(share_of.get(rail, 0.0) for rail in range(len(self.shares)))

    def _hold_best(self, size: int) -> State:
        """Stay with the best shares that were measured, if they beat one rail."""
        # where the CPU is the bottleneck, a smaller share doesn't end sooner, and rails can't end together
        alone_s = min(self.memory.single_rail_s(size, self.is_old).values())
        if self.best is not None and self.memory.rails.scaled_s(self.best, size) < alone_s / (1 + SETTLED_SPREAD):
            return Settled(self.memory, self.best.shares, is_held=True)
        return self._give_up(size)

    def _give_up(self, size: int) -> State:
        self.memory.split_failed = True
        alone_s = self.memory.single_rail_s(size, self.is_old)
        fastest = min(alone_s, key=alone_s.__getitem__)
        return SingleRail(self.memory, self.memory.rails.evenly([fastest]))

    def _depends_on(self, rail: int) -> bool:
        return super()._depends_on(rail) or (self.best is not None and self.best.shares[rail] > 0)


@dataclass
class EvenSplit(AdjustedSplit):
    """One window with equal shares, from which Eq. 8 computes the first coefficients."""

    name = "even"

    def step(self, size: int, times: Mapping[int, float]) -> State:
        """Move to the first coefficients."""
        shares = self._by_rail(list(times), model.initial_shares(list(times.values())))
        return AdjustedSplit(**vars(self) | {"shares": shares})


@dataclass
class Settled(_Resting):
    """Shares with which rails end together, or `is_held` ones, that were the fastest of a split.

    It is adjusted again when rails end more than `DISTURBED_SPREAD` apart; held shares only if they also got slower by
    as much than in `first`, their first long window.
    """

    name = "settled"
    window = LONG_WINDOW
    is_held: bool = False
    first: Measurement | None = None

    def on_window(self, measured: Measurement, times: Mapping[int, float]) -> State:
        """Adjust the shares again if rails end apart, or move to better rails."""
        rails = self.memory.rails
        size = measured.size
        better = self._recheck(measured, self.is_held)
        if better:
            return better
        limit_s = 0.0
        if self.is_held:
            # not the window for which shares are held: as the fastest of many short ones it was luck, too
            self.first = self.first or measured
            limit_s = rails.scaled_s(self.first, size) * (1 + DISTURBED_SPREAD)
        is_disturbed = measured.seconds > limit_s and spread(times.values()) > DISTURBED_SPREAD
        last = max(times, key=times.__getitem__)
        proposed = [last] if is_disturbed else []
        if not self._confirmed(proposed, AGREEING_WINDOWS):
            return self
        # what was measured before the disturbance no longer holds
        for rail, time in times.items():
            rails.forget(rail)
            rails.estimators[rail].measured(self.shares[rail] * size, time)
        return AdjustedSplit(self.memory, self.shares, best=measured, is_old=True).step(size, times)
