"""What both the terminal's and the report's tables of recovery say in a cell, and which lines a fault has. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from railyard.results.analysis.recovery import SIDES, Figure, Interval, RecoveryRow, Side, has_goodput_evidence
from railyard.results.runs.recovery_targets import REQUIRED_TARGETS, Outcome, RecoveryTarget, first_packet_target
from railyard.results.views import format as fmt

NOT_AFFECTED: Final = "– (no other GPU affected)"
NOT_PROBED: Final = "– (no pair probed)"
_MS: Final = "\u00a0ms"
NOT_MEASURED: Final = "not measured"
_MET_TEXT: Final = {True: "met", False: "not met", None: NOT_MEASURED}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: a fault's first packets on a side (None: either), and their target."""

    row: RecoveryRow
    side: Side | None
    first: Figure
    recovery_target: RecoveryTarget | None
    is_met: bool | None
    is_first_line: bool  # the first of its row's lines

    @property
    def met(self) -> str:
        """Empty where there is no target."""
        return "" if self.recovery_target is None else _MET_TEXT[self.is_met]


def lines_of(row: RecoveryRow, both_sides: bool) -> list[Line]:
    """A line a side, if asked for `both_sides` or each has a target of its own; else a line for the slower."""
    has_target_by_side = (
        first_packet_target(row.fault, None) is None and first_packet_target(row.fault, "far") is not None
    )
    probed_sides: Sequence[Side | None] = [side for side in SIDES if side in row.sides]
    shown = probed_sides if has_target_by_side or (both_sides and len(probed_sides) > 1) else []
    lines = []
    for number, side in enumerate(shown or [None]):
        first = row.sides[side] if side else row.steps["first_packet_ms"]
        recovery_target = (
            first_packet_target(row.fault, side) if row.reroute == "on" and not missing_reason(row) else None
        )
        met = recovery_target.allows(first) if recovery_target else None
        lines.append(Line(row, side, first, recovery_target, met, number == 0))
    return lines


def missing_reason(row: RecoveryRow) -> str:
    """Why it has no first packets to speak of; empty if it has."""
    return NOT_PROBED if row.unprobed else NOT_AFFECTED if row.unaffected else ""


def recovered(row: RecoveryRow) -> str:
    """`20 of 20`; a dash where no pair was probed and no goodput ever left."""
    if row.unprobed and not any(map(has_goodput_evidence, row.repeats)):
        return fmt.NOTHING
    return f"{row.recovered} of {len(row.repeats)}"


def median_p95_text(found: Figure) -> str:
    """`12.3 / 45.6 ms`: median and 95th percentile. Where the repeats tell nothing of the latter: `12.3 ms (n=5)`."""
    if not found.has_p95 and found.median is not None:
        return f"{fmt.milliseconds(found.median)} (n={found.n})"
    text = median_p95_ms(found)
    return text if text.endswith("never") else f"{text}{_MS}"


def median_p95_ms(found: Figure) -> str:
    """The same without the unit."""
    if found.median is None:
        return "never"
    return (
        f"{_without_unit(found.median)} / {_without_unit(found.p95)}"
        if found.has_p95
        else f"{_without_unit(found.median)} (n={found.n})"
    )


def median_and_p95(found: Figure) -> tuple[str, str]:
    """In a cell each, with their intervals; a dash where the repeats tell nothing of the latter."""
    p95 = with_interval(found.p95, found.p95_interval) if found.has_p95 else fmt.NOTHING
    return with_interval(found.median, found.median_interval), p95


def with_interval(value: float | None, interval: Interval | None) -> str:
    """`12.3 ms [11.0, 14.2]`; without an interval the value alone."""
    if interval is None:
        return fmt.milliseconds(value)
    return f"{fmt.milliseconds(value)} [{_without_unit(interval.low)}, {_without_unit(interval.high)}]"


def _without_unit(ms: float | None) -> str:
    """Without its unit."""
    return fmt.milliseconds(ms).removesuffix(_MS)


def target_text(recovery_target: RecoveryTarget | None) -> str:
    """`5 / 20 ms`, `1,000 ms`, `0 probes`."""
    if recovery_target is None:
        return fmt.NOTHING
    return f"{limits_text(recovery_target)}{chr(0xA0)}{recovery_target.unit}"


def limits_text(recovery_target: RecoveryTarget | None) -> str:
    """The same without the unit."""
    if recovery_target is None:
        return fmt.NOTHING
    return " / ".join(
        f"{limit:,.0f}"
        for limit in (recovery_target.median, recovery_target.p95, recovery_target.most)
        if isfinite(limit)
    )


def measured_text(outcome: Outcome) -> str:
    """In the target's own terms: median and 95th percentile (of few repeats the former alone), or the worst."""
    found = outcome.figure
    if found is None:
        return fmt.NOTHING
    if isfinite(outcome.recovery_target.median):
        return median_p95_text(found) if found.has_p95 else fmt.milliseconds(found.median)
    return (
        f"{found.most or 0:,.0f}{chr(0xA0)}probes"
        if outcome.recovery_target.unit == "probes"
        else fmt.milliseconds(found.most)
    )


def met(outcome: Outcome) -> str:
    """In words."""
    return _MET_TEXT[outcome.met]


def missed_targets(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the recovery targets that were missed, by name and fabric; those that are checks aren't among them."""
    return [
        f"{o.name}, on {o.fabric}" for o in outcomes if o.met is False and o.recovery_target not in REQUIRED_TARGETS
    ]
