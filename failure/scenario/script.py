"""Failure scripts as plain data: faults, possibly concurrent, with the times of their injection and repair."""

from dataclasses import dataclass

from railyard.failure.faults import Fault


@dataclass(frozen=True, slots=True)
class Timed:
    """A fault of a script: `at_s` seconds after the traffic starts, repaired `repair_s` seconds after its injection.

    `after`: a phase of the workload that runs meanwhile; `at_s` then counts from the end of that phase's first run.
    """

    fault: Fault
    at_s: float
    repair_s: float
    after: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """`name` is what records call it."""

    name: str
    faults: tuple[Timed, ...]
