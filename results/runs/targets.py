"""Targets for what a run measures, and whether it met them: each is met, missed, or was not measured."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from railyard.core.records import IntervalId
from railyard.results.views import format as fmt

Comparison = Literal["at least", "at most"]
AT_LEAST: Final = "at least"
AT_MOST: Final = "at most"


@dataclass(frozen=True, slots=True)
class Target:
    """A quantity of `at least` or `at most` the limit, in `unit`. `source`: who states it.

    A run that misses a `required` one has failed; the others are of speed, which a slower machine may miss. `goal`:
    what we want beyond the limit; nothing is judged by it.
    """

    quantity: str
    comparison: Comparison
    limit: float
    unit: str
    required: bool = False
    source: str = ""
    goal: float | None = None

    def allows(self, value: float | None) -> bool:
        """Return if a value meets it; None never came, and meets none."""
        if value is None:
            return False
        return value >= self.limit if self.comparison == AT_LEAST else value <= self.limit

    def text(self, value: float | None) -> str:
        """Return a value in its unit as people read it."""
        if value is None:
            return "never"
        if self.unit == "share":
            return fmt.percent(value, 1 if value >= 0.005 else 3)
        shown = {"times": fmt.times, "ms": fmt.milliseconds}.get(self.unit)
        return shown(value) if shown else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target, and what was measured of it in an interval (None: nothing). `of`: of what the value is."""

    target: Target
    interval: IntervalId | None = None
    value: float | None = None
    of: str = ""

    @property
    def measured(self) -> bool:
        """Presence of a measurement, though its value may never have come."""
        return self.interval is not None

    @property
    def fabric(self) -> str:
        """The fabric, and the fault if there was one."""
        parts = (self.interval.fabric, self.interval.part) if self.interval else ()
        return ": ".join(filter(None, parts)) or "all" * self.measured

    @property
    def met(self) -> bool | None:
        """Its result; None where nothing was measured."""
        return self.target.allows(self.value) if self.measured else None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        interval = {"interval": self.interval.as_dict()} if self.interval else {}
        return {**asdict(self.target), "value": self.value, **interval, "of": self.of, "met": self.met}
