"""Which share of a buffer each rail gets: the load balancer, with a table by size class.

Source: Nezha section 4.3, Eq. 3 to 8. A class (sizes up to a power of two) goes through these states:

    cold ──split pays──> even ──Eq. 8──> descent ──level, still, or no better──> settled
     ^                                      └──── no faster than one rail, or one rail left ────┐
     └──────────────────────────────────────────────────────────────────────────────────────────┘

- cold: all on the rail of least latency (Eq. 4). Another rail, or a split, is tried only where it should gain
`MIN_GAIN`:
  less is lost in trying.
- even: one window with equal shares, from which Eq. 8 takes the first coefficients.
- descent: Eq. 7 (descent.py). A rail that ended last, and whose set-up alone takes longer than the others need, gets
  nothing. From the third step on steps get shorter, `2 / steps` of the whole, so that neither a slope that is too small
  nor times that scatter keep shares moving to and fro.
  A descent that is no faster than one rail in `MAX_TRIES` windows has lost. One that has only made things slower for as
  long goes back to the best shares it has seen and holds them: where what binds is this machine, a smaller share
  doesn't end sooner, and rails can't end together. So does one that is still on its way after `MAX_STEPS` windows:
  its times scatter too much for rails to be seen to end together.
- settled: in two windows running the rails ended within `SETTLED_SPREAD` of each other, or the next step, as short as
it is
  by then, would move no more than `MIN_SHARE_CHANGE`. More than `DISTURBED_SPREAD` apart it begins a new descent;
  shares that are held do so only if they have become slower by as much, too.

A class that is settled, or has stayed cold, is at rest: its windows are long, and it is no single one that sets it
going again but `AGREEING_WINDOWS` in a row that say the same, and to leave one rail a gain of `MIN_GAIN_AT_REST` is
asked for. Times scatter from window to window on a machine that does other things too, and of many windows one finds a
gain where none is.

What kept a class from a rail or from better shares may have been the machine's doing, and over since. So one at rest
that leaves out a live rail, or holds shares, looks again after `RECHECK_WINDOWS` long windows, then after twice as
many, and so on: what was measured of the rails left out is doubted, and where by their names they should gain, they
are tried.

The paper's windows of 100 operations can't converge "within the first 100 iterations": here they have 5 until a class
is at rest, then 100. Nothing is random and nothing looks at a clock: given the same windows, every node gets the same
table.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from railyard.workloads.allreduce.balancing.cost_estimator import CostEstimators
from railyard.workloads.allreduce.balancing.predict import (
    Cost,
    equal_finish_s,
    fastest_rail,
    ideal_shares,
    rails_to_split,
)
from railyard.workloads.allreduce.balancing.share_update import (
    MIN_SHARE_CHANGE,
    initial_shares,
    max_share_change,
    slope,
    spread,
    update_shares,
    without_rail,
)

LEARNING_WINDOW: Final = 5
LONG_WINDOW: Final = 100
SETTLED_SPREAD: Final = 0.05
DISTURBED_SPREAD: Final = 0.093
"""Section 5.3.2: the average scheduling error stays within 9.3%; a settled class beyond it descends again."""
AGREEING_WINDOWS: Final = 2
MIN_GAIN: Final = 0.1
MIN_GAIN_AT_REST: Final = 0.2
MAX_TRIES: Final = 3
MAX_STEPS: Final = 14
"""Windows of a split: with those before it fewer than 100 operations."""
RECHECK_WINDOWS: Final = 5

State = Literal["cold", "even", "adjusting", "settled"]


def size_class(size: int) -> int:
    """0 for empty; k + 1 for sizes from 2^(k-1) + 1 to 2^k bytes."""
    return 0 if size <= 0 else (size - 1).bit_length() + 1


@dataclass(frozen=True, slots=True)
class _Measurement:
    """What operations of a window took until the last rail was through, and with which shares."""

    seconds: float
    size: int
    shares: tuple[float, ...]


@dataclass
class _Entry:
    """A class of the table. `shares` by rail, 0 for those that take no part."""

    state: State
    shares: tuple[float, ...]
    single_rail: dict[int, _Measurement] = field(default_factory=dict)  # by rail, the latest window in which it had all
    best: _Measurement | None = None  # the fastest of this split's; where shares are held, the first long one's
    held: bool = False
    was_settled: bool = False  # it was settled before
    rechecking: bool = False  # from its rest, whether there is anything better
    split_failed: bool = False
    windows: int = 0  # of this split
    steps: int = 0
    balanced_windows: int = 0  # windows in a row of rails that end together
    slower_windows: int = 0  # ... that were slower than the best
    no_gain_windows: int = 0  # windows that were no faster than one rail
    proposed_rails: tuple[int, ...] = ()  # the rails to which a class at rest would move, or the one that was last
    proposal_count: int = 0  # windows in a row with the same one
    at_rest: int = 0  # long windows since it last looked again
    recheck_windows: int = RECHECK_WINDOWS


class Balancer:
    """`shares(size)` before an operation, `learn(...)` with each full window's medians, `down` and `up` as rails go."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        if not costs:
            raise ValueError("costs: a balancer needs at least one rail")
        self._estimators = CostEstimators(costs)
        self._alive = set(range(len(costs)))
        self._table: dict[int, _Entry] = {}

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The rails' lines as they are known now."""
        return self._estimators.known

    def shares(self, size: int) -> tuple[float, ...]:
        """By rail; they sum to one, and a dead rail's is 0."""
        return self._entry(size).shares

    def state(self, size: int) -> State:
        return self._entry(size).state

    def best(self, size: int, among: Collection[int]) -> int:
        """Which of these rails takes the least time for all."""
        return self._estimators.best(size, among)

    def window(self, size: int) -> int:
        """Over how many operations of this size the next `learn` wants medians."""
        entry = self._entry(size)
        return LONG_WINDOW if entry.state == "settled" or _is_single_rail(entry) else LEARNING_WINDOW

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """A window's medians: `size` in bytes, and by rail the seconds that its share took (of others: ignored)."""
        entry = self._entry(size)
        used = sorted(rail for rail in self._alive if entry.shares[rail] > 0)
        for rail in used:
            self._estimators.measured(rail, entry.shares[rail] * size, seconds[rail])
        measurement = _Measurement(max(seconds[rail] for rail in used), size, entry.shares)
        if entry.state == "cold":
            self._after_cold(entry, measurement)
        else:
            self._after_split(entry, measurement, used, [seconds[rail] for rail in used])

    def down(self, rail: int) -> None:
        """A rail died: the others take its share, in proportion to theirs. ValueError if it was the last."""
        if not self._alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._alive.discard(rail)
        for key, entry in list(self._table.items()):
            if sum(share > 0 for other, share in enumerate(entry.shares) if other != rail) < min(2, _rail_count(entry)):
                del self._table[key]  # cold again, on the best that is left
                continue
            entry.single_rail.pop(rail, None)
            if entry.shares[rail] > 0 or (entry.best is not None and entry.best.shares[rail] > 0):
                entry.shares = without_rail(entry.shares, rail)
                _begin_split(entry, "adjusting")

    def up(self, rail: int) -> None:
        """A rail is back: a cold restart. What was known of it is nominal again, and every class starts anew."""
        self._alive.add(rail)
        self._estimators.forget(rail)
        self._table.clear()

    def _entry(self, size: int) -> _Entry:
        found = self._table.get(size_class(size))
        if found is None:
            best = self._estimators.best(size, self._alive)
            found = self._table[size_class(size)] = _Entry("cold", self._all_on([best]))
        return found

    def _all_on(self, rails: Sequence[int]) -> tuple[float, ...]:
        return tuple(float(rail in rails) / len(rails) for rail in range(len(self.costs)))

    def _after_cold(self, entry: _Entry, measurement: _Measurement) -> None:
        is_at_rest = _is_single_rail(entry)
        gain, windows = (MIN_GAIN_AT_REST, AGREEING_WINDOWS) if is_at_rest else (MIN_GAIN, 1)
        entry.single_rail[_single_rail_of(entry)] = measurement
        if is_at_rest and self._recheck(entry, measurement):
            return
        alive, costs = sorted(self._alive), self._estimators.at(measurement.size)
        candidates = [alive[index] for index in rails_to_split([costs[rail] for rail in alive], measurement.size, gain)]
        single_rail = self._single_rail_seconds(entry, measurement.size)
        best = min(single_rail, key=single_rail.__getitem__)
        if candidates and not entry.split_failed:
            if _confirmed(entry, candidates, windows):
                _begin_split(entry, "even")
                entry.shares = self._all_on(candidates)
        elif (
            single_rail[best] * (1 + (gain if is_at_rest or best not in entry.single_rail else 0)) < measurement.seconds
        ):
            if _confirmed(entry, [best], windows):
                self._use_single_rail(entry, best)
        else:
            _confirmed(entry, [], windows)

    def _after_split(self, entry: _Entry, measurement: _Measurement, used: list[int], times: list[float]) -> None:
        entry.windows += 1
        rail_spread, target = spread(times), self._step(entry, measurement.size, used, times)
        negligible = entry.state == "adjusting" and max_share_change(entry.shares, target) <= MIN_SHARE_CHANGE
        entry.balanced_windows = entry.balanced_windows + 1 if rail_spread <= SETTLED_SPREAD or negligible else 0
        if entry.state == "settled":
            if self._recheck(entry, measurement):
                return
            disturbed = self._slower_than_held(entry, measurement) and rail_spread > DISTURBED_SPREAD
            if not _confirmed(entry, [used[times.index(measurement.seconds)]] if disturbed else [], AGREEING_WINDOWS):
                return
            _begin_split(entry, "adjusting", at_rest=measurement)
            for rail, time in zip(used, times, strict=True):
                self._estimators.restart(rail, entry.shares[rail] * measurement.size, time)
            target = self._step(entry, measurement.size, used, times)
        elif (
            self._got_slower(entry, measurement)
            or (entry.windows >= MAX_STEPS and entry.balanced_windows < 2)
            or _recheck_was_slower(entry)
        ):
            self._hold_best_shares(entry, measurement.size)
            return
        elif self._has_no_gain(entry, measurement):
            self._give_up_split(entry, measurement.size)
            return
        elif entry.balanced_windows >= 2:
            _settle(entry)
            return
        elif entry.state == "even":
            entry.state, entry.shares = "adjusting", self._shares_by_rail(used, initial_shares(times))
            return
        if rail_spread > SETTLED_SPREAD:
            entry.steps += 1
            entry.shares = target
            if _rail_count(entry) < 2:
                self._hold_best_shares(entry, measurement.size)

    def _recheck(self, entry: _Entry, measurement: _Measurement) -> bool:
        """Whether a class at rest leaves it, after this long window, for what may be better."""
        used = {rail for rail in self._alive if entry.shares[rail] > 0}
        idle = self._alive - used
        if not ((idle or entry.held) and _recheck_due(entry)):
            return False
        better_rails = self._better_rails(entry, measurement.size, used)
        added_rails = idle & set(better_rails)
        if not (added_rails or entry.held):
            return False
        entry.recheck_windows *= 2
        for rail in added_rails:
            entry.single_rail.pop(rail, None)
            self._estimators.forget(rail)
        if len(better_rails) == 1:
            self._use_single_rail(entry, better_rails[0])
            return True
        _begin_split(
            entry, "even" if added_rails else "adjusting", at_rest=None if entry.state == "cold" else measurement
        )
        entry.rechecking = entry.was_settled
        if added_rails:
            entry.shares = self._all_on(better_rails)
        return True

    def _better_rails(self, entry: _Entry, size: int, used: set[int]) -> list[int]:
        """The rails that the class should be on instead, if those that it leaves out are what their names say."""
        alive, costs = sorted(self._alive), self._estimators.at(size, untrusted=self._alive - used)
        candidates = [alive[index] for index in rails_to_split([costs[rail] for rail in alive], size, MIN_GAIN)]
        current_s = equal_finish_s([costs[rail] for rail in used], size)
        if candidates and equal_finish_s([costs[rail] for rail in candidates], size) * (1 + MIN_GAIN) < current_s:
            return candidates
        best = fastest_rail(costs, size, alive)
        return [best] if entry.state == "cold" and costs[best].seconds(size) * (1 + MIN_GAIN) < current_s else []

    def _slower_than_held(self, entry: _Entry, measurement: _Measurement) -> bool:
        """Than in the first long window, if shares are held. (The fastest of many short ones was luck, too.)"""
        if not entry.held:
            return True
        entry.best = entry.best or measurement
        return measurement.seconds > self._scaled_seconds(entry.best, measurement.size) * (1 + DISTURBED_SPREAD)

    def _got_slower(self, entry: _Entry, measurement: _Measurement) -> bool:
        """A split that got slower, and has stayed so for `MAX_TRIES` windows."""
        if entry.best is None or measurement.seconds < self._scaled_seconds(entry.best, measurement.size):
            entry.best = measurement
        entry.slower_windows = (
            entry.slower_windows + 1
            if measurement.seconds > self._scaled_seconds(entry.best, measurement.size) * (1 + SETTLED_SPREAD)
            else 0
        )
        return entry.slower_windows >= MAX_TRIES

    def _has_no_gain(self, entry: _Entry, measurement: _Measurement) -> bool:
        """A split that was no faster than one rail in `MAX_TRIES` windows of its descent, or would settle so."""
        no_faster = measurement.seconds >= min(self._single_rail_seconds(entry, measurement.size).values())
        entry.no_gain_windows += entry.state == "adjusting" and no_faster
        return entry.no_gain_windows >= MAX_TRIES or (entry.balanced_windows >= 2 and no_faster)

    def _hold_best_shares(self, entry: _Entry, size: int) -> None:
        """Stay with the best shares that were seen, if they beat one rail."""
        single_rail = min(self._single_rail_seconds(entry, size).values())
        if entry.best is not None and self._scaled_seconds(entry.best, size) < single_rail / (1 + SETTLED_SPREAD):
            entry.shares = entry.best.shares
            _settle(entry)
            entry.held = True
        else:
            self._give_up_split(entry, size)

    def _give_up_split(self, entry: _Entry, size: int) -> None:
        """A split is given up."""
        entry.split_failed = True
        single_rail = self._single_rail_seconds(entry, size)
        self._use_single_rail(entry, min(single_rail, key=single_rail.__getitem__))

    def _use_single_rail(self, entry: _Entry, rail: int) -> None:
        entry.state, entry.shares, entry.was_settled = "cold", self._all_on([rail]), False
        entry.proposed_rails, entry.proposal_count = (), 0

    def _single_rail_seconds(self, entry: _Entry, size: int) -> dict[int, float]:
        """By live rail, the seconds that it takes for all: as was seen, or else as its line says. (Where the machine
        binds, what a rail does beside others tells nothing of what it does alone.) Once a class has settled that was
        long ago, so it's what takes longer of both.
        """
        costs = self._estimators.at(size)
        times = {rail: costs[rail].seconds(size) for rail in sorted(self._alive)}
        for rail, measurement in entry.single_rail.items():
            scaled_s = self._scaled_seconds(measurement, size)
            times[rail] = max(times[rail], scaled_s) if entry.was_settled else scaled_s
        return times

    def _scaled_seconds(self, measurement: _Measurement, size: int) -> float:
        """What was seen, for `size` bytes: a class has sizes from one power of two to the next."""
        if measurement.size == size:
            return measurement.seconds
        share = max(measurement.shares)
        cost = self._estimators.at(size)[measurement.shares.index(share)]
        return measurement.seconds * cost.seconds(share * size) / cost.seconds(share * measurement.size)

    def _step(self, entry: _Entry, size: int, used: list[int], times: Sequence[float]) -> tuple[float, ...]:
        """Where the next step of the descent leads."""
        shares, used_costs = [entry.shares[rail] for rail in used], [self.costs[rail] for rail in used]
        gain = min(1.0, 2 / (entry.steps + 1))
        slopes = [
            slope(a, t, cost.s_per_byte * size) / gain for a, t, cost in zip(shares, times, used_costs, strict=True)
        ]
        target = update_shares(shares, times, slopes)
        last = max(range(len(used)), key=times.__getitem__)
        if ideal_shares(used_costs, size)[last] == 0:
            target = without_rail(target, last)
        return self._shares_by_rail(used, target)

    def _shares_by_rail(self, used: list[int], shares: Sequence[float]) -> tuple[float, ...]:
        share_of = dict(zip(used, shares, strict=True))
        return tuple(share_of.get(rail, 0.0) for rail in range(len(self.costs)))


def _rail_count(entry: _Entry) -> int:
    return sum(share > 0 for share in entry.shares)


def _single_rail_of(entry: _Entry) -> int:
    return entry.shares.index(1.0)


def _is_single_rail(entry: _Entry) -> bool:
    """On one rail of which a window was seen."""
    return entry.state == "cold" and _single_rail_of(entry) in entry.single_rail


def _begin_split(entry: _Entry, state: State, at_rest: _Measurement | None = None) -> None:
    """`at_rest`: what was seen last with the shares that it leaves, if it was settled with them."""
    entry.state, entry.best, entry.held, entry.was_settled, entry.rechecking = (
        state,
        at_rest,
        False,
        at_rest is not None,
        False,
    )
    entry.windows = entry.steps = entry.balanced_windows = entry.slower_windows = entry.no_gain_windows = (
        entry.at_rest
    ) = 0
    entry.proposed_rails, entry.proposal_count = (), 0


def _recheck_was_slower(entry: _Entry) -> bool:
    """Rails end together, but later than with the shares that were left for a look."""
    return entry.rechecking and entry.balanced_windows >= 2 and entry.slower_windows > 0


def _recheck_due(entry: _Entry) -> bool:
    """Whether it has been at rest for long enough, this window included, to look whether there is anything better."""
    entry.at_rest += 1
    if entry.at_rest < entry.recheck_windows:
        return False
    entry.at_rest = 0
    return True


def _settle(entry: _Entry) -> None:
    entry.state, entry.best = "settled", None
    entry.proposed_rails, entry.proposal_count = (), 0


def _confirmed(entry: _Entry, proposed_rails: Sequence[int], windows: int) -> bool:
    """Whether so many windows in a row, this one the last, say that the class should move, and where to."""
    same = tuple(proposed_rails) == entry.proposed_rails
    entry.proposed_rails, entry.proposal_count = tuple(proposed_rails), entry.proposal_count + 1 if same else 1
    return bool(proposed_rails) and entry.proposal_count >= windows
