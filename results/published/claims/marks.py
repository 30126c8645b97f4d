"""The mark of each claim: whether what is computed and what is measured agree with the paper.

A measurement is judged by its spread too, in both directions, so that noise makes no claim agree and none differ. It
agrees if its median is within the tolerance and no repeat is off by more than twice the tolerance. It differs if
neither the median nor the least and the most are within the tolerance. Anything between is unclear.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any, Final, Literal

from railyard.results.format import digits
from railyard.results.published.claims.computed import ComputedClaim, numbers_of
from railyard.results.published.claims.definition import Measured, Paper, PublishedClaim
from railyard.results.published.claims.measured import INVALID, MeasuredClaim

Mark = Literal["reproduced", "differs", "unclear", "not reproducible", "not measured"]
MARKS: tuple[Mark, ...] = ("reproduced", "differs", "unclear", "not reproducible", "not measured")
SYMBOLS: Mapping[Mark, str] = {
    "reproduced": "✓",
    "differs": "≠",
    "unclear": "±",
    "not reproducible": "–",
    "not measured": "?",
}

COUNTED: Final = frozenset(
    (
        "allreduces",
        "clusters",
        "comparisons",
        "grids",
        "layouts",
        "numbers",
        "pairs",
        "sets",
        "splits",
        "steps",
        "switches",
        "tiers",
        "trainings",
    )
)
"""Last words of units of which there are whole numbers."""


def mark_of(measured: Measured, measurement: MeasuredClaim) -> Mark:
    """Return whether a measurement agrees with the paper, by its median and its spread."""
    median_difference = measured.difference(measurement.median)
    differences = (median_difference, measured.difference(measurement.least), measured.difference(measurement.most))
    if median_difference <= measured.within and max(differences) <= 2 * measured.within:
        return "reproduced"
    if measured.is_exact or min(differences) > measured.within:
        return "differs"
    return "unclear"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, what was computed and measured of it, and its mark.

    `measurement`: None if it was not measured, or isn't to be.
    """

    paper: str
    claim: PublishedClaim
    numbers: tuple[ComputedClaim, ...]
    measurement: MeasuredClaim | None

    @property
    def measured_mark(self) -> Mark:
        """The mark of what was measured alone."""
        if self.claim.measured is None or self.measurement is None:
            return "not measured"
        return mark_of(self.claim.measured, self.measurement)

    @property
    def mark(self) -> Mark:
        """The mark: that of the part that agrees least. One part is enough to differ."""
        if self.claim.not_reproducible:
            return "not reproducible"
        marks: set[Mark] = {self.measured_mark}
        for number in self.numbers:
            marks.add("reproduced" if number.agrees else "differs")
        worst_first: tuple[Mark, ...] = ("differs", "unclear", "reproduced")
        for mark in worst_first:
            if mark in marks:
                return mark
        return "not measured"

    @property
    def computed_text(self) -> str:
        """The computed numbers, or of more than three how many agree; "" without any."""
        if not self.numbers:
            return ""
        if len(self.numbers) == 1:
            return _number(self.numbers[0].ours, self.numbers[0].unit)
        if len(self.numbers) <= 3:
            return ", ".join(_number(number.ours, number.unit) for number in self.numbers)
        # numbers in a row are no longer read beside those of the paper
        agreeing = sum(number.agrees for number in self.numbers)
        return f"{agreeing} of {len(self.numbers)} agree"

    @property
    def measured_text(self) -> str:
        """The median and its spread, its verdict unless that is ok, date and commit; "" if it isn't to be measured."""
        if self.claim.measured is None:
            return ""
        if self.measurement is None:
            # a claim may be marked for what is computed of it alone, which must not read as if it had been measured
            return "" if self.claim.not_reproducible else "no stored run"
        measurement = self.measurement
        text = _number(measurement.median, self.claim.measured.unit)
        if measurement.rows > 1:
            text += f" ({_spread(measurement)}, n={measurement.rows})"
        if measurement.verdict != "ok":
            text += f", {measurement.verdict}"
        return f"{text}; {measurement.date}, {measurement.version}"

    @property
    def reason(self) -> str:
        """The reason why it isn't reproducible, or what is known of a difference, and its note; "" without any."""
        if self.claim.not_reproducible:
            reasons = [self.claim.not_reproducible]
        else:
            # several numbers mostly differ for the same reason
            reasons = [number.note for number in self.numbers if not number.agrees and number.note][:1]
        measured = self.claim.measured
        if measured and self.measurement and self.measured_mark != "reproduced":
            text = "the measurement differs"
            if self.measured_mark == "unclear":
                text = f"the measurement is unclear with {_spread(self.measurement)}"
            reasons.append(f"{text}, expected {measured.limits}: {measured.why}")
        if self.claim.note:
            reasons.append(self.claim.note)
        return "; ".join(reasons)

    @property
    def _expected(self) -> dict[str, str] | None:
        """The values of a measurement that agree, with the reason; None if it isn't to be measured."""
        measured = self.claim.measured
        if measured is None:
            return None
        return {"values": measured.limits, "why": measured.why}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "paper": self.paper,
            "id": self.claim.id,
            "claim": self.claim.claim,
            "where": self.claim.where,
            "published": self.claim.published,
            "computed": [number._asdict() for number in self.numbers],
            "measured": self.measurement.as_dict() if self.measurement else None,
            "expected": self._expected,
            "mark": self.mark,
            "reason": self.reason,
            "commands": list(self.claim.commands),
        }


def _spread(measurement: MeasuredClaim) -> str:
    """Return the least and the most, as `1.840 to 1.910`."""
    return f"{_digits(measurement.least)} to {_digits(measurement.most)}"


def _number(value: float, unit: str) -> str:
    words = unit.split()
    text = _digits(value)
    if words and words[-1] in COUNTED and value.is_integer():
        text = f"{value:,.0f}"
    if isinf(value):
        return text
    if unit.startswith("%"):
        return f"{text}{unit}"
    return f"{text} {unit}".strip()


def _digits(value: float) -> str:
    """Return a number; infinite is what never came."""
    if isinf(value):
        return "never"
    return digits(value, 4)


def _counts(measured: Measured, measurement: MeasuredClaim) -> bool:
    """Return whether a measurement says something of a claim as it is now. An invalid run never changes a mark."""
    return measurement.verdict != INVALID and measurement.quantity == measured.quantity


def judged(papers: Mapping[str, Paper], measurements: Mapping[str, MeasuredClaim]) -> Iterator[JudgedClaim]:
    """Yield each claim with its numbers and the valid measurement, if there is one."""
    for name, paper in papers.items():
        for claim in paper.claims:
            numbers = numbers_of(claim.computed) if claim.computed else ()
            measurement = None
            if claim.measured:
                measurement = measurements.get(claim.id) or measurements.get(claim.same_as)
                if measurement and not _counts(claim.measured, measurement):
                    measurement = None
            yield JudgedClaim(name, claim, numbers, measurement)
