"""Agreement of measured times with their formulas: how many are as faithful runs have them, and the others."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Any, Final, NamedTuple

from railyard.results.analysis.aggregate import Row, Spread
from railyard.results.format import ratio
from railyard.results.runs.records import Verdict

FAITHFUL_RATIO: Final = (0.97, 1.05)
"""Measured over predicted, as faithful runs reach it."""


class Outlier(NamedTuple):
    """A median outside FAITHFUL_RATIO: its row and fabric in words, measured over predicted, and the known reason."""

    time: str
    ratio: float
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        return {"what": self.time, "ratio": self.ratio, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Number of medians of times that were compared with a formula, and those outside FAITHFUL_RATIO, worst first.

    `invalid`: how many more have a formula and were not compared, since the machine was measured, and not the fabric.
    """

    compared: int
    outliers: tuple[Outlier, ...]
    invalid: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst of: invalid times, which were not compared, and outliers; ok if there are none."""
        if self.invalid:
            return "invalid"
        if self.outliers:
            return "degraded"
        return "ok"

    @property
    def text(self) -> str:
        """`6 of 8 within 0.97-1.05, worst 1.080 (moe moe-a2a on rail-optimized)`; invalid times are among the 8."""
        number = self.compared + self.invalid
        if not number:
            return "no time has a formula to compare with"
        if not self.compared and number == 1:
            return "not compared: the time is invalid"
        if not self.compared:
            return f"not compared: all {number} times are invalid"
        low, high = FAITHFUL_RATIO
        text = f"{self.compared - len(self.outliers)} of {number} within {low:g}-{high:g}"
        if self.outliers:
            worst = self.outliers[0]
            text += f", worst {ratio(worst.ratio)} ({worst.time})"
        if self.invalid:
            text += f"; {self.invalid} invalid, not compared"
        return text

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        outliers = [outlier.as_dict() for outlier in self.outliers]
        within = self.compared - len(outliers)
        return {"compared": self.compared, "within": within, "outliers": outliers, "invalid": self.invalid}


def agreement_of(timed: Iterable[Row]) -> Agreement:
    """Compare every time that has a prediction with it, unless it is invalid."""
    low, high = FAITHFUL_RATIO
    compared = 0
    invalid = 0
    outliers: list[Outlier] = []
    for row in timed:
        for fabric, spread in row.by_fabric.items():
            if not spread.ratio:
                continue
            if spread.verdict == "invalid":
                invalid += 1
                continue
            compared += 1
            if not low <= spread.ratio <= high:
                time = f"{row.workload} {row.phase}".strip()
                outliers.append(Outlier(f"{time} on {fabric}", spread.ratio, _known_reason(spread)))
    # half and twice the prediction are equally far off
    outliers.sort(key=lambda outlier: abs(log(outlier.ratio)), reverse=True)
    return Agreement(compared, tuple(outliers), invalid)


def _known_reason(spread: Spread) -> str:
    """Return why a median may be off its prediction, as far as that is known: a busy machine, or latency."""
    low, high = FAITHFUL_RATIO
    reasons: list[str] = []
    if spread.verdict != "ok":
        reasons.append(f"its interval is {spread.verdict}: the machine was busy")
    if spread.with_latency:
        with_latency = spread.median / spread.with_latency
        if low <= with_latency <= high:
            reasons.append(f"{ratio(with_latency)} with the latency of its sequential steps")
    return "; ".join(reasons)
