"""The mark of each claim: whether what is computed and what is measured agree with the paper."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from railyard.results.format import digits
from railyard.results.published.claims.computed import ComputedClaim, numbers_of
from railyard.results.published.claims.definition import Paper, PublishedClaim
from railyard.results.published.claims.measured import INVALID, Measurement

Mark = Literal["reproduced", "differs", "not reproducible", "not measured"]
MARKS: tuple[Mark, ...] = ("reproduced", "differs", "not reproducible", "not measured")
SYMBOLS: Mapping[Mark, str] = {"reproduced": "✓", "differs": "≠", "not reproducible": "–", "not measured": "?"}


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, what was computed and measured of it, and its mark.

    `measurement`: None if it was not measured, or isn't to be.
    """

    paper: str
    claim: PublishedClaim
    numbers: tuple[ComputedClaim, ...]
    measurement: Measurement | None

    @property
    def mark(self) -> Mark:
        """The mark: that of the part that agrees least. One part is enough to differ."""
        if self.claim.not_reproducible:
            return "not reproducible"
        agreements = [number.agrees for number in self.numbers]
        if self.claim.measured and self.measurement:
            agreements.append(self.claim.measured.agrees(self.measurement.median))
        if not agreements:
            return "not measured"
        return "reproduced" if all(agreements) else "differs"

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
            return "" if self.claim.not_reproducible else "not yet"
        measurement = self.measurement
        unit = self.claim.measured.unit
        text = _number(measurement.median, unit)
        if measurement.rows > 1:
            text += f" ({digits(measurement.least, 4)} to {digits(measurement.most, 4)}, n={measurement.rows})"
        if measurement.verdict != "ok":
            text += f", {measurement.verdict}"
        return f"{text}; {measurement.date}, {measurement.version}"

    @property
    def reason(self) -> str:
        """The reason why it isn't reproducible, or what is known of a difference; "" without one."""
        if self.claim.not_reproducible:
            return self.claim.not_reproducible
        # several numbers mostly differ for the same reason
        notes = [number.note for number in self.numbers if not number.agrees and number.note][:1]
        measured = self.claim.measured
        if measured and self.measurement and not measured.agrees(self.measurement.median):
            notes.append(f"measured, to be {measured.limits}: {measured.why}")
        return "; ".join(notes)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "paper": self.paper,
            "id": self.claim.id,
            "claim": self.claim.claim,
            "where": self.claim.where,
            "published": self.claim.published,
            "computed": [number._asdict() for number in self.numbers],
            "measured": self.measurement._asdict() if self.measurement else None,
            "mark": self.mark,
            "reason": self.reason,
            "commands": list(self.claim.commands),
        }


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{digits(value, 4)}%"
    return f"{digits(value, 4)} {unit}".strip()


def judged(papers: Mapping[str, Paper], measurements: Mapping[str, Measurement]) -> Iterator[JudgedClaim]:
    """Yield each claim with its numbers and the valid measurement, if there is one."""
    for name, paper in papers.items():
        for claim in paper.claims:
            numbers = numbers_of(claim.computed) if claim.computed else ()
            measurement = measurements.get(claim.id) if claim.measured else None
            if measurement and measurement.verdict == INVALID:
                # an invalid run never changes a mark
                measurement = None
            yield JudgedClaim(name, claim, numbers, measurement)
