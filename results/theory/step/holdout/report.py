"""Errors of the model on measured steps: by regime, platform and number format."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, median

from railyard.results.theory.step.holdout.rows import MeasuredStep, measured_steps, predicted_s
from railyard.results.theory.step.interval import class_of_row, interval_of


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A measured step with its prediction, s. The interval is from rows of other models that were held out."""

    row: MeasuredStep
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error_pct(self) -> float:
        """Percent that the prediction is above the measured time."""
        return 100 * (self.predicted_s / self.row.seconds - 1)

    @property
    def is_inside(self) -> bool:
        """True if the measured time lies in the interval."""
        return self.low_s <= self.row.seconds <= self.high_s


@dataclass(frozen=True, slots=True)
class Errors:
    """Sizes of errors of a group of rows, percent; `bias`: the mean with its sign."""

    group: str
    rows: int
    mean: float
    median: float
    worst: float
    bias: float


def predicted_steps() -> list[PredictedStep]:
    """Return every row that can be predicted."""
    predicted: list[PredictedStep] = []
    for row in measured_steps():
        if row.can_be_predicted:
            seconds = predicted_s(row)
            interval = interval_of(class_of_row(row), without_model=row["model"])
            predicted.append(PredictedStep(row, seconds, seconds * interval.low, seconds * interval.high))
    return predicted


def errors_by(steps: Iterable[PredictedStep], group_of: Callable[[MeasuredStep], str]) -> list[Errors]:
    """Return the errors of each group, in the order of their first rows."""
    groups: dict[str, list[float]] = {}
    for step in steps:
        groups.setdefault(group_of(step.row), []).append(step.error_pct)
    errors: list[Errors] = []
    for group, values in groups.items():
        sizes = [abs(value) for value in values]
        errors.append(Errors(group, len(sizes), fmean(sizes), median(sizes), max(sizes), fmean(values)))
    return errors
