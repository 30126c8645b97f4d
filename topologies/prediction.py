"""Predictions that a definition states itself, where the bound of the busiest link is not what it takes.

A workload, a collective algorithm and a forwarding policy may state one (docs/extending.md).
"""

from dataclasses import dataclass
from typing import Final

WHOLE: Final = ""  # the phase name under which a whole workload is predicted and reported


@dataclass(frozen=True, slots=True)
class StatedTime:
    """The predicted `seconds` of one run of a phase, or of a whole workload.

    `equation`: its name in tables, such as "max of send and compute".
    `is_exact`: a time more than 5% off is unexplained; else the prediction is a lower bound, and only a shorter time
    is.
    """

    seconds: float
    equation: str
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class NotCompared:
    """No prediction applies: times are reported beside this reason, and not judged."""

    reason: str


Stated = StatedTime | NotCompared
