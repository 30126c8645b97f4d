"""Which share of a buffer each rail gets: the load balancer, with a table by size class.

Source: Nezha section 4.3, Eq. 3 to 8. A class (sizes up to a power of two) goes through these states:

    cold ──split pays──> even ──Eq. 8──> descent ──level, or still──> settled
     ^                                      └───────── slower than cold, or one rail left ─────┐
     └──────────────────────────────────────────────────────────────────────────────────────────┘

- cold: all on the rail of least latency (Eq. 4). Its first window is what a split is compared with, and tells how much
  slower than nominal this machine makes everything at such sizes: rails that were never measured there are taken to be
  slower alike. Another rail, or a split, is tried only where it should gain `GAIN`: less is lost in trying.
- even: one window with equal shares, from which Eq. 8 takes the first coefficients.
- descent: Eq. 7. Plain descent on the maximum of Eq. 5 would move one rail at a time by a step that fits no other; here
  each rail's step is its distance from the common level over its own slope dT/dalpha = S / B, so the shares keep adding
  up to one, and where the slopes are right one step is enough. The slope comes from the measured line, and is held
  between a fifth of T/alpha and all of it (set-up times are never negative), so that it errs on the slow side.
  A rail that ended last, and whose set-up alone takes longer than the others need, gets nothing.
  From the third step on steps get shorter, `2 / steps` of the whole, so that neither a slope that is too small nor
  times that scatter keep shares moving to and fro.
  A descent that is no faster than cold after `TRIES` windows has lost. One that has only made things slower for as
  long goes back to the best shares it has seen and holds them: where what binds is this machine, a smaller share
  doesn't end sooner, and rails can't end together. So does one that is still on its way after `MOST_STEPS` windows:
  its times scatter too much for rails to be seen to end together.
- settled: in two windows running the rails ended within `SETTLED` of each other, or the next step, as short as it is
  by then, would move no more than `STILL`. More than `DISTURBED` apart it begins a new descent.

A class that is settled, or has stayed cold, is at rest: its windows are long, and it is no single one that sets it
going again but `AGREED` in a row, and to leave one rail a gain of `GAIN_LATER` is asked for. Times scatter from window
to window on a machine that does other things too, and of many windows one finds a gain where none is.

Slips in the paper: Eq. 8 divides by the nodes less one, which adds up to one only for the rails less one. Windows of
100 operations can't converge "within the first 100 iterations": they have 5 until settled or left cold, then 100.

Nothing here is random and nothing looks at a clock: given the same windows, every node gets the same table.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from workloads.multirail.estimate import Estimate, slowed
from workloads.multirail.predict import Cost, cold_rail, ideal_shares, worth_splitting

LEARNING_WINDOW: Final = 5
LONG_WINDOW: Final = 100
SETTLED: Final = 0.05
STILL: Final = 0.01
"""A step that moves no share by more than this part of the buffer is none, and a share that is less is none."""
DISTURBED: Final = 0.093
"""Section 5.3.2: the average scheduling error stays within 9.3%; a settled class beyond it descends again."""
AGREED: Final = 2
"""So many long windows in a row must say the same before a class at rest tries something else."""
GAIN: Final = 0.1
GAIN_LATER: Final = 0.2
TRIES: Final = 3
MOST_STEPS: Final = 14
"""Windows of a descent: with those before it fewer than 100 operations."""

State = Literal["cold", "even", "descent", "settled"]


def size_class(size: int) -> int:
    """0 for empty; k + 1 for sizes from 2^(k-1) + 1 to 2^k bytes."""
    return 0 if size <= 0 else (size - 1).bit_length() + 1


def spread(seconds: Iterable[float]) -> float:
    """By what part of the slowest the fastest was earlier; 0 for fewer than two."""
    times = list(seconds)
    longest = max(times, default=0.0)
    return (longest - min(times)) / longest if longest > 0 else 0.0


def initial_shares(seconds: Sequence[float]) -> tuple[float, ...]:
    """Eq. 8, from the times that even shares took; N read as the number of rails."""
    total = sum(seconds)
    if len(seconds) == 1 or total <= 0:
        return tuple(1 / len(seconds) for _ in seconds)
    return tuple((total - time) / (total * (len(seconds) - 1)) for time in seconds)


def descend(shares: Sequence[float], seconds: Sequence[float], slopes: Sequence[float]) -> tuple[float, ...]:
    """Eq. 7, one step: towards the level at which all rails end together. A rail whose share runs out gets none."""
    weights = [1 / slope for slope in slopes]
    level = sum(w * t for w, t in zip(weights, seconds, strict=True)) / sum(weights)
    moved = [a - (t - level) * w for a, t, w in zip(shares, seconds, weights, strict=True)]
    kept = [share if share >= STILL else 0.0 for share in moved]
    return tuple(share / sum(kept) for share in kept)


@dataclass
class _Entry:
    """A class of the table. `shares` by rail, 0 for those that take no part."""

    state: State
    shares: tuple[float, ...]
    cold_s: float | None = None  # a window's on one rail, and which one it was
    cold_on: int = 0
    split_lost: bool = False
    calm: int = 0
    windows: int = 0  # of this split
    steps: int = 0
    tries: int = 0
    best_s: float = math.inf  # of this split's windows the fastest, and its shares
    best_shares: tuple[float, ...] = ()
    worse: int = 0
    held: bool = False
    unrest: int = 0  # windows in a row that would end a rest


class Balancer:
    """`shares(size)` before an operation, `learn(...)` with each full window's means, `down` and `up` as rails go."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        if not costs:
            raise ValueError("costs: a balancer needs at least one rail")
        self._estimates = [Estimate(cost) for cost in costs]
        self._alive = set(range(len(costs)))
        self._table: dict[int, _Entry] = {}

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The rails' lines as they are known now."""
        return tuple(estimate.cost for estimate in self._estimates)

    def shares(self, size: int) -> tuple[float, ...]:
        """By rail; they sum to one, and a dead rail's is 0."""
        return self._entry(size).shares

    def state(self, size: int) -> State:
        return self._entry(size).state

    def window(self, size: int) -> int:
        """Over how many operations of this size the next `learn` wants its means."""
        entry = self._entry(size)
        reference_taken = entry.state == "cold" and entry.cold_s is not None
        return LONG_WINDOW if entry.state == "settled" or reference_taken else LEARNING_WINDOW

    def learn(self, size: int, seconds: Sequence[float]) -> None:
        """A window's means: `size` in bytes, and for each rail the seconds that its share took (of others: ignored)."""
        entry = self._entry(size)
        used = [rail for rail in self._alive if entry.shares[rail] > 0]
        for rail in used:
            self._estimates[rail].measured(entry.shares[rail] * size, seconds[rail])
        if entry.state == "cold":
            self._after_cold(entry, size, max(seconds[rail] for rail in used))
        else:
            self._after_split(entry, size, sorted(used), seconds)

    def down(self, rail: int) -> None:
        """A rail died: the others take its share, in proportion to theirs. ValueError if it was the last."""
        if not self._alive - {rail}:
            raise ValueError(f"rail {rail}: the last one can't be taken away")
        self._alive.discard(rail)
        for key, entry in list(self._table.items()):
            left = [0.0 if other == rail else share for other, share in enumerate(entry.shares)]
            rest = sum(left)
            if sum(share > 0 for share in left) < 2:
                del self._table[key]  # cold again, on the best that is left
            elif left != list(entry.shares):
                entry.shares = tuple(share / rest for share in left)
                entry.calm = 0
                if entry.cold_on == rail:
                    entry.cold_s = None  # nothing to compare a split of the others with
                self._begin_split(entry, "descent")

    def up(self, rail: int) -> None:
        """A rail is back: a cold restart. What was known of it is nominal again, and every class starts anew."""
        self._alive.add(rail)
        self._estimates[rail] = Estimate(self._estimates[rail].nominal)
        self._table.clear()

    def _entry(self, size: int) -> _Entry:
        return self._table.setdefault(size_class(size), _Entry("cold", self._all_on_best(size)))

    def _all_on_best(self, size: float) -> tuple[float, ...]:
        best = cold_rail(self._lines(size), size, sorted(self._alive))
        return tuple(float(rail == best) for rail in range(len(self.costs)))

    def _lines(self, size: float) -> list[Cost]:
        """What is known or to be expected of all rails at `size`. Those never measured at such sizes are as slow as
        elsewhere, or as much slower than nominal as the best of those that were: whichever takes longer."""
        known = [each for each in self._estimates if each.known(size)]
        slower = min((each.cost.seconds(size) / each.nominal.seconds(size) for each in known), default=1.0)
        return [
            each.cost
            if each.known(size)
            else max(each.cost, slowed(each.nominal, size, slower), key=lambda cost: cost.seconds(size))
            for each in self._estimates
        ]

    def _after_cold(self, entry: _Entry, size: int, seconds: float) -> None:
        first, entry.cold_s, entry.cold_on = entry.cold_s is None, seconds, entry.shares.index(1.0)
        alive, costs = sorted(self._alive), self._lines(size)
        gain, windows = (GAIN, 1) if first else (GAIN_LATER, AGREED)
        near = worth_splitting([costs[rail] for rail in alive], size, gain)
        best = cold_rail(costs, size, alive)
        split = len(near) > 0 and not entry.split_lost
        faster = costs[best].seconds(size) * (1 + gain) < seconds
        if not _agreed(entry, split or faster, windows):
            return
        if split:
            chosen = {alive[place] for place in near}
            self._begin_split(entry, "even")
            entry.shares = tuple(float(rail in chosen) / len(chosen) for rail in range(len(costs)))
        else:
            entry.shares = tuple(float(rail == best) for rail in range(len(costs)))
            entry.cold_s, entry.unrest = None, 0

    def _after_split(self, entry: _Entry, size: int, used: list[int], seconds: Sequence[float]) -> None:
        entry.windows += 1
        times = [seconds[rail] for rail in used]
        apart, target = spread(times), self._step(entry, size, used, times)
        still = entry.state == "descent" and _moved(entry.shares, target) <= STILL
        entry.calm = entry.calm + 1 if apart <= SETTLED or still else 0
        if entry.state == "settled":
            if entry.held and math.isinf(entry.best_s):
                entry.best_s = max(times)  # of a long window: the fastest of many short ones was luck, too
            as_held = entry.held and max(times) <= entry.best_s * (1 + DISTURBED)
            if not _agreed(entry, apart > DISTURBED and not as_held, AGREED):
                return
            self._begin_split(entry, "descent")
            entry.best_s, entry.best_shares = max(times), entry.shares
            target = self._step(entry, size, used, times)
        elif self._goes_wrong(entry, max(times)):
            self._hold(entry, size)
            return
        elif self._has_lost(entry, max(times)):
            self._back_to_cold(entry, size)
            return
        elif entry.calm >= 2:
            if entry.cold_s is not None and max(times) >= entry.cold_s:
                self._back_to_cold(entry, size)
                return
            entry.state = "settled"
        elif entry.windows >= MOST_STEPS:
            self._hold(entry, size)
            return
        elif entry.state == "even":
            entry.state = "descent"
            entry.shares = self._spread_out(used, initial_shares(times))
            return
        if apart > SETTLED:
            entry.steps += 1
            entry.shares = target
            if sum(share > 0 for share in entry.shares) < 2:
                self._hold(entry, size)

    def _begin_split(self, entry: _Entry, state: State) -> None:
        entry.state, entry.windows, entry.steps, entry.tries, entry.worse = state, 0, 0, 0, 0
        entry.best_s, entry.held, entry.unrest = math.inf, False, 0

    def _goes_wrong(self, entry: _Entry, seconds: float) -> bool:
        """A split that got slower, and has stayed so for `TRIES` windows."""
        if seconds < entry.best_s:
            entry.best_s, entry.best_shares = seconds, entry.shares
        entry.worse = entry.worse + 1 if seconds > entry.best_s * (1 + SETTLED) else 0
        return entry.worse >= TRIES

    def _hold(self, entry: _Entry, size: int) -> None:
        """Stay with the best shares that were seen, if they beat one rail."""
        alone = [line.seconds(size) for line in self._lines(size)]
        if entry.cold_s is not None:
            alone[entry.cold_on] = entry.cold_s  # seen at this very size
        if entry.best_s < min(alone[rail] for rail in self._alive) / (1 + SETTLED):
            entry.state, entry.shares, entry.held, entry.calm = "settled", entry.best_shares, True, 0
            entry.best_s = math.inf
        else:
            self._back_to_cold(entry, size)

    def _has_lost(self, entry: _Entry, seconds: float) -> bool:
        """A split that was no faster than one rail in `TRIES` windows of its descent."""
        if entry.state == "descent" and entry.cold_s is not None and seconds >= entry.cold_s:
            entry.tries += 1
        return entry.tries >= TRIES

    def _slopes(self, entry: _Entry, size: int, used: list[int], times: Sequence[float]) -> list[float]:
        """dT/dalpha of each rail, in seconds for the whole buffer."""
        slopes = []
        for rail, time in zip(used, times, strict=True):
            secant = max(time, 1e-9) / entry.shares[rail]
            slopes.append(min(secant, max(secant / 5, self.costs[rail].s_per_byte * size)))
        return slopes

    def _back_to_cold(self, entry: _Entry, size: int) -> None:
        entry.state, entry.shares, entry.split_lost = "cold", self._all_on_best(size), True
        entry.calm = entry.unrest = 0

    def _step(self, entry: _Entry, size: int, used: list[int], times: Sequence[float]) -> tuple[float, ...]:
        """Where the next step of the descent leads."""
        shares = [entry.shares[rail] for rail in used]
        gain = min(1.0, 2 / (entry.steps + 1))
        slopes = [slope / gain for slope in self._slopes(entry, size, used, times)]
        moved = descend(shares, times, slopes)
        last = max(range(len(used)), key=times.__getitem__)
        if ideal_shares([self.costs[rail] for rail in used], size)[last] == 0:
            moved = tuple(0.0 if place == last else share for place, share in enumerate(moved))
        return self._spread_out(used, [share / sum(moved) for share in moved])

    def _spread_out(self, used: list[int], shares: Sequence[float]) -> tuple[float, ...]:
        given = dict(zip(used, shares, strict=True))
        return tuple(given.get(rail, 0.0) for rail in range(len(self.costs)))


def _agreed(entry: _Entry, moves: bool, windows: int) -> bool:
    """Whether so many windows in a row, this one the last, say that a class should move."""
    entry.unrest = entry.unrest + 1 if moves else 0
    return entry.unrest >= windows


def _moved(shares: Sequence[float], target: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(shares, target, strict=True))
