"""Targets of what a run measures, and whether it met them: each is met, missed, or was not measured.

Each measure states its targets beside the functions that measure them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

from railyard.core.records import IntervalId
from railyard.results import format as fmt
from railyard.results.analysis import repeats as stats
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.repeats import Figure
from railyard.results.runs.records import Verdict, worst_verdict


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
        limits = {"median": self.median, "p95": self.p95, "most": self.most, "least": self.least}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def missed(self, figure: Figure) -> list[str]:
        """Return the statistics that don't keep their limits; of few repeats the 95th percentile isn't judged."""
        missed: list[str] = []
        for name, limit in self.limits.items():
            if name == "p95" and not figure.has_p95:
                continue
            value = getattr(figure, name)
            if value is None or (value < limit and name == "least") or (value > limit and name != "least"):
                missed.append(name)
        return missed

    def text(self, value: float | None) -> str:
        """Return a value in its unit as people read it."""
        if value is None:
            return "never"
        match self.unit:
            case "share" if value < 0.005:
                return fmt.percent(value, 3)
            case "share":
                return fmt.percent(value)
            case "times":
                return fmt.times(value)
            case "ms":
                return fmt.milliseconds(value)
            case "probes":
                return f"{value:,.0f}\u00a0probes"
        return f"{value:,.0f}"

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
        if self.part:
            return f"{self.target.quantity}, {self.part}"
        return self.target.quantity

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
        if not self.figure:
            return None
        return not self.target.missed(self.figure)

    @property
    def statistic(self) -> str:
        """The first statistic that misses its limit, or else the first one that has a limit."""
        missed = self.target.missed(self.figure) if self.figure else []
        return next(iter(missed or self.target.limits))

    @property
    def value(self) -> float | None:
        """The value of `statistic`; None where it never came, or nothing was measured."""
        if not self.figure:
            return None
        return getattr(self.figure, self.statistic)  # type: ignore[no-any-return]

    @property
    def worst(self) -> Sample:
        """The sample that is furthest from the target; one of nothing where nothing was measured."""
        # the largest: what has a lower limit has one sample
        return max(self.samples, key=_value_or_never, default=Sample(None, "", IntervalId()))

    @property
    def text(self) -> str:
        """The measured value: median and 95th percentile (of few repeats the former alone), or the only statistic."""
        if self.figure is None and self.not_judged:
            return f"not judged ({self.not_judged}), the machine was disturbed"
        if self.figure is None:
            return fmt.NOTHING
        if self.target.median is not None and self.figure.has_p95:
            return stats.median_p95_ms(self.figure, "\u00a0ms")
        return self.target.text(getattr(self.figure, next(iter(self.target.limits))))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json: `value` and `limit` are of `statistic`."""
        target = self.target
        interval = None
        measured = None
        if self.figure:
            interval = self.worst.interval.as_dict()
            measured = self.figure.as_dict() | {"most": self.figure.most}
        return {
            "quantity": target.quantity,
            "comparison": "at most" if target.least is None else "at least",
            "value": self.value,
            "limit": target.limits[self.statistic],
            "unit": target.unit,
            "interval": interval,
            "what": target.quantity,
            "fabric": self.fabric or None,
            "target": self.part or None,
            "limits": target.limits,
            "measured": measured,
            "worst": self.worst.of or None,
            "of": self.worst.of,
            "required": bool(target.claim),
            "source": target.source,
            "goal": target.goal,
            "met": self.met,
            "not_judged": self.not_judged,
            "verdict": self.verdict,
        }


def _value_or_never(sample: Sample) -> float:
    """Return the value of a sample, to compare it with others: never is later than any time."""
    if sample.value is None:
        return inf
    return sample.value


PlacedSamples = Iterable[tuple[str, str, Sample]]
"""Samples with their fabric, and the fault's target where the fabric had several of that kind."""


def outcomes_of(target: Target, samples: PlacedSamples, judgement: Judgement) -> list[Outcome]:
    """Return a target for each fabric, and part of it, on which it was measured; else once, without samples.

    Samples of disturbed intervals are not judged; the others have the verdicts of theirs.
    """
    places: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
    for fabric, part, sample in samples:
        places[fabric, part].append(sample)
    outcomes: list[Outcome] = []
    for (fabric, part), in_place in places.items():
        judged = tuple(sample for sample in in_place if sample.interval not in judgement.disturbed)
        verdict = worst_verdict(judgement.of_interval(sample.interval) for sample in judged)
        outcomes.append(Outcome(target, fabric, part, judged, len(in_place) - len(judged), verdict))
    return outcomes or [Outcome(target)]


def outcomes_by_fabric(target: Target, samples: Iterable[Sample], judgement: Judgement) -> list[Outcome]:
    """Return a target for each fabric that its samples are of, by the samples' intervals."""
    placed = [(sample.interval.fabric, "", sample) for sample in samples if sample.interval.fabric]
    if not placed:
        return []
    return outcomes_of(target, placed, judgement)


def measured_targets(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the targets of which anything was measured: the rows of tables, and those that are counted."""
    return [outcome for outcome in outcomes if outcome.samples or outcome.not_judged]


def missed_targets(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the targets that were missed, by name and fabric; those with a claim are checks, and not among them."""
    missed: list[str] = []
    for outcome in outcomes:
        if outcome.met is False and not outcome.target.claim:
            missed.append(f"{outcome.name}, on {outcome.fabric}")
    return missed
