"""Targets of what a run measures, and whether it met them: each is met, missed, or was not measured.

Each measure states its targets beside the functions that measure them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Final, NamedTuple

from railyard.core.records import IntervalId
from railyard.results import format as fmt
from railyard.results.analysis import repeats as stats
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.repeats import Figure
from railyard.results.runs.records import Verdict, worst_verdict

_STATISTICS: Final = ("median", "p95", "most", "least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A quantity and its limits, in `unit`: upper ones of `median`, `p95` and `most`, and a lower one of `least`.

    `source`: who states it, or what the time consists of. `claim`: the check that fails where a run misses the target;
    those without are of speed, which a slower machine may miss. `goal`: what we want beyond; nothing is judged by it.
    """

    quantity: str
    unit: str = "ms"
    source: str = ""
    claim: str = ""
    median: float | None = None
    p95: float | None = None
    most: float | None = None
    least: float | None = None
    goal: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Statistic over the repeats -> its limit."""
        return {name: limit for name in _STATISTICS if (limit := getattr(self, name)) is not None}

    def missed(self, found: Figure) -> list[str]:
        """Return the statistics that don't keep their limits; of few repeats the 95th percentile isn't judged."""
        values = {name: getattr(found, name) for name in self.limits if name != "p95" or found.has_p95}
        return [
            name
            for name, value in values.items()
            if value is None or (value < self.limits[name] if name == "least" else value > self.limits[name])
        ]

    def text(self, value: float | None) -> str:
        """Return a value in its unit as people read it."""
        if value is None:
            return "never"
        if self.unit == "share":
            return fmt.percent(value, 1 if value >= 0.005 else 3)
        shown = {"times": fmt.times, "ms": fmt.milliseconds, "probes": "{:,.0f}\u00a0probes".format}.get(self.unit)
        return shown(value) if shown else f"{value:,.0f}"

    @property
    def limits_text(self) -> str:
        """`5 / 20 ms`, `95.0%`, `0 probes`: all limits."""
        if self.unit != "ms":
            return " / ".join(map(self.text, self.limits.values()))
        return " / ".join(f"{limit:,g}" for limit in self.limits.values()) + "\u00a0ms"


class Sample(NamedTuple):
    """A measured value (None: never), `of` what it is, in which interval, and the number of probed pairs."""

    value: float | None
    of: str
    interval: IntervalId
    pairs: int = 0


@dataclass(frozen=True)
class Outcome:
    """A target, and what was measured of it on a fabric (by its label); no samples where nothing was.

    `part`: the target of the fault, where that fabric had several of the kind. `not_judged`: how many samples were left
    out, since the machine was disturbed in their intervals. `verdict`: the worst of the other samples' intervals.
    """

    target: Target
    fabric: str = ""
    part: str = ""
    samples: tuple[Sample, ...] = ()
    not_judged: int = 0
    verdict: Verdict = "ok"

    @property
    def name(self) -> str:
        """The quantity, and the target of the fault where there were several."""
        return f"{self.target.quantity}, {self.part}" if self.part else self.target.quantity

    @property
    def values(self) -> tuple[float | None, ...]:
        """Values of the samples."""
        return tuple(sample.value for sample in self.samples)

    @cached_property
    def figure(self) -> Figure | None:
        """Statistics of the values; None where nothing was measured."""
        return stats.figure(self.values)

    @property
    def met(self) -> bool | None:
        """Its result; None where nothing was measured."""
        return not self.target.missed(self.figure) if self.figure else None

    @property
    def statistic(self) -> str:
        """The first statistic that misses its limit, or else the first one that has a limit."""
        return next(iter((self.figure and self.target.missed(self.figure)) or self.target.limits))

    @property
    def value(self) -> float | None:
        """The value of `statistic`; None where it never came, or nothing was measured."""
        return getattr(self.figure, self.statistic) if self.figure else None

    @property
    def worst(self) -> Sample:
        """The sample that is furthest from the target; one of nothing where nothing was measured."""
        nothing = Sample(None, "", IntervalId())  # what has a lower limit has one sample
        return max(self.samples, key=lambda sample: inf if sample.value is None else sample.value, default=nothing)

    @property
    def text(self) -> str:
        """The measured value: median and 95th percentile (of few repeats the former alone), or the only statistic."""
        if self.figure is None:
            return f"not judged ({self.not_judged}), the machine was disturbed" if self.not_judged else fmt.NOTHING
        if self.target.median is not None and self.figure.has_p95:
            return stats.median_p95_ms(self.figure, "\u00a0ms")
        return self.target.text(getattr(self.figure, next(iter(self.target.limits))))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json: `value` and `limit` are of `statistic`."""
        target = self.target
        return {
            "quantity": target.quantity,
            "comparison": "at most" if target.least is None else "at least",
            "value": self.value,
            "limit": target.limits[self.statistic],
            "unit": target.unit,
            "interval": self.worst.interval.as_dict() if self.samples else None,
            "what": target.quantity,
            "fabric": self.fabric or None,
            "target": self.part or None,
            "limits": target.limits,
            "measured": {**self.figure.as_dict(), "most": self.figure.most} if self.figure else None,
            "worst": self.worst.of or None,
            "of": self.worst.of,
            "required": bool(target.claim),
            "source": target.source,
            "goal": target.goal,
            "met": self.met,
            "not_judged": self.not_judged,
            "verdict": self.verdict,
        }


Found = Iterator[tuple[str, str, Sample]]
"""Samples with their fabric, and the fault's target where the fabric had several of that kind."""


def outcomes_of(target: Target, samples: Found, judgement: Judgement) -> list[Outcome]:
    """Return a target for each fabric, and part of it, on which it was measured; else once, without samples.

    Samples of disturbed intervals are not judged; the others have the verdicts of theirs.
    """
    places: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
    for fabric, part, sample in samples:
        places[fabric, part].append(sample)
    outcomes: list[Outcome] = []
    for (fabric, part), in_place in places.items():
        judged = tuple(sample for sample in in_place if sample.interval not in judgement.disturbed)
        verdict = worst_verdict(judgement.intervals.get(sample.interval, "ok") for sample in judged)
        outcomes.append(Outcome(target, fabric, part, judged, len(in_place) - len(judged), verdict))
    return outcomes or [Outcome(target)]


def outcomes_by_fabric(target: Target, samples: Iterable[Sample], judgement: Judgement) -> list[Outcome]:
    """Return a target for each fabric that its samples are of, by the samples' intervals."""
    placed = [(sample.interval.fabric, "", sample) for sample in samples]
    return [outcome for outcome in outcomes_of(target, iter(placed), judgement) if outcome.fabric]


def measured_targets(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the targets of which anything was measured: the rows of tables, and those that are counted."""
    return [o for o in outcomes if o.samples or o.not_judged]


def missed_targets(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the targets that were missed, by name and fabric; those with a claim are checks, and not among them."""
    return [f"{o.name}, on {o.fabric}" for o in outcomes if o.met is False and not o.target.claim]
