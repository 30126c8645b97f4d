"""Which share of a buffer each rail gets: the load balancer, with a table by size class.

Source: Nezha section 4.3, Eq. 3 to 8. A class (sizes up to a power of two) goes through these states:

    cold ──split pays──> even ──Eq. 8──> descent ──level, still, or no better──> settled
     ^                                      └──── no faster than one rail, or one rail left ────┐
     └──────────────────────────────────────────────────────────────────────────────────────────┘

- cold: all on the rail of least latency (Eq. 4). Another rail, or a split, is tried only where it should gain `GAIN`:
  less is lost in trying.
- even: one window with equal shares, from which Eq. 8 takes the first coefficients.
- descent: Eq. 7 (descent.py). A rail that ended last, and whose set-up alone takes longer than the others need, gets
  nothing. From the third step on steps get shorter, `2 / steps` of the whole, so that neither a slope that is too small
  nor times that scatter keep shares moving to and fro.
  A descent that is no faster than one rail in `TRIES` windows has lost. One that has only made things slower for as
  long goes back to the best shares it has seen and holds them: where what binds is this machine, a smaller share
  doesn't end sooner, and rails can't end together. So does one that is still on its way after `MOST_STEPS` windows:
  its times scatter too much for rails to be seen to end together.
- settled: in two windows running the rails ended within `SETTLED` of each other, or the next step, as short as it is
  by then, would move no more than `STILL`. More than `DISTURBED` apart it begins a new descent; shares that are held
  do so only if they have become slower by as much, too.

A class that is settled, or has stayed cold, is at rest: its windows are long, and it is no single one that sets it
going again but `AGREED` in a row that say the same, and to leave one rail a gain of `GAIN_LATER` is asked for. Times
scatter from window to window on a machine that does other things too, and of many windows one finds a gain where none
is.

What kept a class from a rail or from better shares may have been the machine's doing, and over since. So one at rest
that leaves out a live rail, or holds shares, looks again after `PATIENCE` long windows, then after twice as many, and
so on: what was measured of the rails left out is doubted, and where by their names they should gain, they are tried.

The paper's windows of 100 operations can't converge "within the first 100 iterations": here they have 5 until a class
is at rest, then 100. Nothing is random and nothing looks at a clock: given the same windows, every node gets the same
table.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from railyard.workloads.allreduce.balancing.cost_estimator import Lines
from railyard.workloads.allreduce.balancing.predict import Cost, cold_rail, ideal_shares, level, worth_splitting
from railyard.workloads.allreduce.balancing.share_update import (
    STILL,
    descend,
    initial_shares,
    moved,
    slope,
    spread,
    without,
)

LEARNING_WINDOW: Final = 5
LONG_WINDOW: Final = 100
SETTLED: Final = 0.05
DISTURBED: Final = 0.093
"""Section 5.3.2: the average scheduling error stays within 9.3%; a settled class beyond it descends again."""
AGREED: Final = 2
GAIN: Final = 0.1
GAIN_LATER: Final = 0.2
TRIES: Final = 3
MOST_STEPS: Final = 14
"""Windows of a split: with those before it fewer than 100 operations."""
PATIENCE: Final = 5

State = Literal["cold", "even", "descent", "settled"]


def size_class(size: int) -> int:
    """0 for empty; k + 1 for sizes from 2^(k-1) + 1 to 2^k bytes."""
    return 0 if size <= 0 else (size - 1).bit_length() + 1


@dataclass(frozen=True, slots=True)
class _Seen:
    """What operations of a window took until the last rail was through, and with which shares."""

    seconds: float
    size: int
    shares: tuple[float, ...]


@dataclass
class _Entry:
    """A class of the table. `shares` by rail, 0 for those that take no part."""

    state: State
    shares: tuple[float, ...]
    alone: dict[int, _Seen] = field(default_factory=dict)  # by rail, the latest window in which it had all
    best: _Seen | None = None  # the fastest of this split's; where shares are held, the first long one's
    held: bool = False
    again: bool = False  # it was settled before
    looks: bool = False  # from its rest, whether there is anything better
    split_lost: bool = False
    windows: int = 0  # of this split
    steps: int = 0
    calm: int = 0  # windows in a row of rails that end together
    worse: int = 0  # ... that were slower than the best
    tries: int = 0  # windows that were no faster than one rail
    wish: tuple[int, ...] = ()  # the rails to which a class at rest would move, or the one that was last
    wishes: int = 0  # windows in a row with the same one
    rested: int = 0  # long windows since it last looked again
    patience: int = PATIENCE


class Balancer:
    """`shares(size)` before an operation, `learn(...)` with each full window's medians, `down` and `up` as rails go."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        if not costs:
            raise ValueError("costs: a balancer needs at least one rail")
        self._lines = Lines(costs)
        self._alive = set(range(len(costs)))
        self._table: dict[int, _Entry] = {}

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The rails' lines as they are known now."""
        return self._lines.known

    def shares(self, size: int) -> tuple[float, ...]:
        """By rail; they sum to one, and a dead rail's is 0."""
        return self._entry(size).shares

    def state(self, size: int) -> State:
        return self._entry(size).state

    def best(self, size: int, among: Collection[int]) -> int:
        """Which of these rails takes the least time for all."""
        return self._lines.best(size, among)

    def window(self, size: int) -> int:
        """Over how many operations of this size the next `learn` wants medians."""
        entry = self._entry(size)
        return LONG_WINDOW if entry.state == "settled" or _stays_cold(entry) else LEARNING_WINDOW

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """A window's medians: `size` in bytes, and by rail the seconds that its share took (of others: ignored)."""
        entry = self._entry(size)
        used = sorted(rail for rail in self._alive if entry.shares[rail] > 0)
        for rail in used:
            self._lines.measured(rail, entry.shares[rail] * size, seconds[rail])
        seen = _Seen(max(seconds[rail] for rail in used), size, entry.shares)
        if entry.state == "cold":
            self._after_cold(entry, seen)
        else:
            self._after_split(entry, seen, used, [seconds[rail] for rail in used])

    def down(self, rail: int) -> None:
        """A rail died: the others take its share, in proportion to theirs. ValueError if it was the last."""
        if not self._alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._alive.discard(rail)
        for key, entry in list(self._table.items()):
            if sum(share > 0 for other, share in enumerate(entry.shares) if other != rail) < min(2, _rails(entry)):
                del self._table[key]  # cold again, on the best that is left
                continue
            entry.alone.pop(rail, None)
            if entry.shares[rail] > 0 or (entry.best is not None and entry.best.shares[rail] > 0):
                entry.shares = without(entry.shares, rail)
                _begin_split(entry, "descent")

    def up(self, rail: int) -> None:
        """A rail is back: a cold restart. What was known of it is nominal again, and every class starts anew."""
        self._alive.add(rail)
        self._lines.forget(rail)
        self._table.clear()

    def _entry(self, size: int) -> _Entry:
        found = self._table.get(size_class(size))
        if found is None:
            best = self._lines.best(size, self._alive)
            found = self._table[size_class(size)] = _Entry("cold", self._all_on([best]))
        return found

    def _all_on(self, rails: Sequence[int]) -> tuple[float, ...]:
        return tuple(float(rail in rails) / len(rails) for rail in range(len(self.costs)))

    def _after_cold(self, entry: _Entry, seen: _Seen) -> None:
        resting = _stays_cold(entry)
        gain, windows = (GAIN_LATER, AGREED) if resting else (GAIN, 1)
        entry.alone[_rail_of(entry)] = seen
        if resting and self._looks_again(entry, seen):
            return
        alive, costs = sorted(self._alive), self._lines.at(seen.size)
        near = [alive[place] for place in worth_splitting([costs[rail] for rail in alive], seen.size, gain)]
        alone = self._alone(entry, seen.size)
        best = min(alone, key=alone.__getitem__)
        if near and not entry.split_lost:
            if _agreed(entry, near, windows):
                _begin_split(entry, "even")
                entry.shares = self._all_on(near)
        elif alone[best] * (1 + (gain if resting or best not in entry.alone else 0)) < seen.seconds:
            if _agreed(entry, [best], windows):
                self._to_rail(entry, best)
        else:
            _agreed(entry, [], windows)

    def _after_split(self, entry: _Entry, seen: _Seen, used: list[int], times: list[float]) -> None:
        entry.windows += 1
        apart, target = spread(times), self._step(entry, seen.size, used, times)
        still = entry.state == "descent" and moved(entry.shares, target) <= STILL
        entry.calm = entry.calm + 1 if apart <= SETTLED or still else 0
        if entry.state == "settled":
            if self._looks_again(entry, seen):
                return
            disturbed = self._slower_than_held(entry, seen) and apart > DISTURBED
            if not _agreed(entry, [used[times.index(seen.seconds)]] if disturbed else [], AGREED):
                return
            _begin_split(entry, "descent", rested=seen)
            for rail, time in zip(used, times, strict=True):
                self._lines.restart(rail, entry.shares[rail] * seen.size, time)
            target = self._step(entry, seen.size, used, times)
        elif self._goes_wrong(entry, seen) or (entry.windows >= MOST_STEPS and entry.calm < 2) or _found_worse(entry):
            self._hold(entry, seen.size)
            return
        elif self._has_lost(entry, seen):
            self._to_one(entry, seen.size)
            return
        elif entry.calm >= 2:
            _rest(entry)
            return
        elif entry.state == "even":
            entry.state, entry.shares = "descent", self._spread_out(used, initial_shares(times))
            return
        if apart > SETTLED:
            entry.steps += 1
            entry.shares = target
            if _rails(entry) < 2:
                self._hold(entry, seen.size)

    def _looks_again(self, entry: _Entry, seen: _Seen) -> bool:
        """Whether a class at rest leaves it, after this long window, for what may be better."""
        used = {rail for rail in self._alive if entry.shares[rail] > 0}
        idle = self._alive - used
        if not ((idle or entry.held) and _is_due(entry)):
            return False
        wanted = self._wanted(entry, seen.size, used)
        fresh = idle & set(wanted)
        if not (fresh or entry.held):
            return False
        entry.patience *= 2
        for rail in fresh:
            entry.alone.pop(rail, None)
            self._lines.forget(rail)
        if len(wanted) == 1:
            self._to_rail(entry, wanted[0])
            return True
        _begin_split(entry, "even" if fresh else "descent", rested=None if entry.state == "cold" else seen)
        entry.looks = entry.again
        if fresh:
            entry.shares = self._all_on(wanted)
        return True

    def _wanted(self, entry: _Entry, size: int, used: set[int]) -> list[int]:
        """The rails that the class should be on instead, if those that it leaves out are what their names say."""
        alive, costs = sorted(self._alive), self._lines.at(size, doubted=self._alive - used)
        near = [alive[place] for place in worth_splitting([costs[rail] for rail in alive], size, GAIN)]
        now = level([costs[rail] for rail in used], size)
        if near and level([costs[rail] for rail in near], size) * (1 + GAIN) < now:
            return near
        best = cold_rail(costs, size, alive)
        return [best] if entry.state == "cold" and costs[best].seconds(size) * (1 + GAIN) < now else []

    def _slower_than_held(self, entry: _Entry, seen: _Seen) -> bool:
        """Than in the first long window, if shares are held. (The fastest of many short ones was luck, too.)"""
        if not entry.held:
            return True
        entry.best = entry.best or seen
        return seen.seconds > self._now(entry.best, seen.size) * (1 + DISTURBED)

    def _goes_wrong(self, entry: _Entry, seen: _Seen) -> bool:
        """A split that got slower, and has stayed so for `TRIES` windows."""
        if entry.best is None or seen.seconds < self._now(entry.best, seen.size):
            entry.best = seen
        entry.worse = entry.worse + 1 if seen.seconds > self._now(entry.best, seen.size) * (1 + SETTLED) else 0
        return entry.worse >= TRIES

    def _has_lost(self, entry: _Entry, seen: _Seen) -> bool:
        """A split that was no faster than one rail in `TRIES` windows of its descent, or would settle so."""
        no_faster = seen.seconds >= min(self._alone(entry, seen.size).values())
        entry.tries += entry.state == "descent" and no_faster
        return entry.tries >= TRIES or (entry.calm >= 2 and no_faster)

    def _hold(self, entry: _Entry, size: int) -> None:
        """Stay with the best shares that were seen, if they beat one rail."""
        alone = min(self._alone(entry, size).values())
        if entry.best is not None and self._now(entry.best, size) < alone / (1 + SETTLED):
            entry.shares = entry.best.shares
            _rest(entry)
            entry.held = True
        else:
            self._to_one(entry, size)

    def _to_one(self, entry: _Entry, size: int) -> None:
        """A split is given up."""
        entry.split_lost = True
        alone = self._alone(entry, size)
        self._to_rail(entry, min(alone, key=alone.__getitem__))

    def _to_rail(self, entry: _Entry, rail: int) -> None:
        entry.state, entry.shares, entry.again = "cold", self._all_on([rail]), False
        entry.wish, entry.wishes = (), 0

    def _alone(self, entry: _Entry, size: int) -> dict[int, float]:
        """By live rail, the seconds that it takes for all: as was seen, or else as its line says. (Where the machine
        binds, what a rail does beside others tells nothing of what it does alone.) Once a class has settled that was
        long ago, so it's what takes longer of both.
        """
        costs = self._lines.at(size)
        times = {rail: costs[rail].seconds(size) for rail in sorted(self._alive)}
        for rail, seen in entry.alone.items():
            then = self._now(seen, size)
            times[rail] = max(times[rail], then) if entry.again else then
        return times

    def _now(self, seen: _Seen, size: int) -> float:
        """What was seen, for `size` bytes: a class has sizes from one power of two to the next."""
        if seen.size == size:
            return seen.seconds
        share = max(seen.shares)
        line = self._lines.at(size)[seen.shares.index(share)]
        return seen.seconds * line.seconds(share * size) / line.seconds(share * seen.size)

    def _step(self, entry: _Entry, size: int, used: list[int], times: Sequence[float]) -> tuple[float, ...]:
        """Where the next step of the descent leads."""
        shares, lines = [entry.shares[rail] for rail in used], [self.costs[rail] for rail in used]
        gain = min(1.0, 2 / (entry.steps + 1))
        slopes = [slope(a, t, line.s_per_byte * size) / gain for a, t, line in zip(shares, times, lines, strict=True)]
        target = descend(shares, times, slopes)
        last = max(range(len(used)), key=times.__getitem__)
        if ideal_shares(lines, size)[last] == 0:
            target = without(target, last)
        return self._spread_out(used, target)

    def _spread_out(self, used: list[int], shares: Sequence[float]) -> tuple[float, ...]:
        given = dict(zip(used, shares, strict=True))
        return tuple(given.get(rail, 0.0) for rail in range(len(self.costs)))


def _rails(entry: _Entry) -> int:
    return sum(share > 0 for share in entry.shares)


def _rail_of(entry: _Entry) -> int:
    return entry.shares.index(1.0)


def _stays_cold(entry: _Entry) -> bool:
    """On one rail of which a window was seen."""
    return entry.state == "cold" and _rail_of(entry) in entry.alone


def _begin_split(entry: _Entry, state: State, rested: _Seen | None = None) -> None:
    """`rested`: what was seen last with the shares that it leaves, if it was settled with them."""
    entry.state, entry.best, entry.held, entry.again, entry.looks = state, rested, False, rested is not None, False
    entry.windows = entry.steps = entry.calm = entry.worse = entry.tries = entry.rested = 0
    entry.wish, entry.wishes = (), 0


def _found_worse(entry: _Entry) -> bool:
    """Rails end together, but later than with the shares that were left for a look."""
    return entry.looks and entry.calm >= 2 and entry.worse > 0


def _is_due(entry: _Entry) -> bool:
    """Whether it has been at rest for long enough, this window included, to look whether there is anything better."""
    entry.rested += 1
    if entry.rested < entry.patience:
        return False
    entry.rested = 0
    return True


def _rest(entry: _Entry) -> None:
    entry.state, entry.best = "settled", None
    entry.wish, entry.wishes = (), 0


def _agreed(entry: _Entry, wish: Sequence[int], windows: int) -> bool:
    """Whether so many windows in a row, this one the last, say that the class should move, and where to."""
    same = tuple(wish) == entry.wish
    entry.wish, entry.wishes = tuple(wish), entry.wishes + 1 if same else 1
    return bool(wish) and entry.wishes >= windows
