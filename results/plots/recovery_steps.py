"""The steps of a recovery on one axis in ms, which is logarithmic: they are from a tenth of one to seconds apart."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from railyard.core.records import Recovery
from railyard.results.analysis.recovery_rows import FROM_REPAIR, STEP_NAMES, RecoveryRow, is_probed, side_values
from railyard.results.plots import style
from railyard.results.views.format import milliseconds

COLOUR: Final = {"on": style.BLUE, "off": style.ORANGE}
_LINE: Final = 0.25  # inches a step
_DOUBLE_LINE: Final = 0.34  # with rerouting on and off
_SPAN: Final = (0.1, 3000.0)  # ms: what is sooner stands at the left edge, what never came beyond the right one
_NEVER: Final = 5500.0
_TICKS: Final = (0.1, 1, 10, 100, 1000)
_SHIFTS: Final = {"on": -0.2, "off": 0.2}


def steps_shown(rows: Sequence[RecoveryRow]) -> tuple[str, ...]:
    """Columns of recovery.csv, top to bottom. The source side, if it was probed too, first: it needs no controller."""
    sides = [all(side_values(row.repeats, side) for row in rows) for side in ("source", "far")]
    first = ("source_ms", "far_ms") if rows and all(sides) else ("first_packet_ms",)
    return (*first[:-1], "detect_ms", "decided_ms", "reroute_ms", first[-1], "goodput_ms", *FROM_REPAIR)


def height(rows: Sequence[RecoveryRow]) -> float:
    """Inches that the panel needs for its lines."""
    line = _LINE if len({row.reroute for row in rows}) < 2 else _DOUBLE_LINE
    return line * (len(steps_shown(rows)) + 1)


def median_repeat(row: RecoveryRow) -> Recovery:
    """The one in the middle by its first packet, then by its goodput."""
    ordered = sorted(row.repeats, key=lambda r: (_never_last(r.first_packet_ms), _never_last(r.goodput_ms), r.repeat))
    return ordered[(len(ordered) - 1) // 2]


def draw(axes: Axes, rows: Sequence[RecoveryRow], names: bool) -> None:
    """All repeats as thin marks, the median repeat as dots that a line joins, its times at the right."""
    steps = steps_shown(rows)
    both = len({row.reroute for row in rows}) > 1
    for row in rows:
        shift = _SHIFTS[row.reroute] if both else 0.0
        _repeats(axes, row, steps, shift)
        _median_repeat(axes, row, steps, shift)
    axes.axhline(len(steps) - len(FROM_REPAIR) - 0.5, color=style.GREEN, lw=1.0, ls="--")  # the repair
    axes.axvline(_SPAN[1], color=style.GRID, lw=0.7)
    axes.set_xscale("log")
    axes.set(xlim=(_SPAN[0] * 0.85, _NEVER * 1.5), ylim=(len(steps) - 0.5, -0.5))
    axes.set_yticks(range(len(steps)), [STEP_NAMES[s] for s in steps] if names else [""] * len(steps))
    axes.xaxis.set_major_locator(FixedLocator([*_TICKS, _NEVER]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: _tick(ms)))
    axes.set_xlabel("ms after the fault; below the dashed line: after the repair")
    style.quiet(axes, grid="x")


def _repeats(axes: Axes, row: RecoveryRow, steps: Sequence[str], shift: float) -> None:
    for y, step in enumerate(steps):
        at = [_place(getattr(r, step)) for r in row.repeats if _is_known(r, step)]
        axes.plot(
            at, [y + shift] * len(at), ls="none", marker="|", ms=9, mew=0.8, color=COLOUR[row.reroute], alpha=0.45
        )


def _median_repeat(axes: Axes, row: RecoveryRow, steps: Sequence[str], shift: float) -> None:
    median_row = median_repeat(row)
    values = [getattr(median_row, step) for step in steps]
    colour, at = COLOUR[row.reroute], [_place(ms) for ms in values]
    steps_from_fault = len(steps) - len(FROM_REPAIR)  # the last count from the repair: no line leads there
    reached = [
        (x, y + shift)
        for y, (x, ms) in enumerate(zip(at, values, strict=True))
        if ms is not None and y < steps_from_fault
    ]
    axes.plot([x for x, _ in reached], [y for _, y in reached], color=colour, lw=1.1, alpha=0.8)
    for y, (x, ms) in enumerate(zip(at, values, strict=True)):
        if not _is_known(median_row, steps[y]):
            continue
        marker = "o" if ms is not None else "x"
        axes.plot([x], [y + shift], ls="none", marker=marker, ms=5, mew=1.4, color=colour)
        annotate_time(axes, y + shift, ms, colour)


def annotate_time(axes: Axes, y: float, ms: float | None, colour: str) -> None:
    """A time in figures, right of the axes."""
    text_style: dict[str, Any] = {
        "xytext": (4, 0),
        "textcoords": "offset points",
        "va": "center",
        "fontsize": 8,
        "color": colour,
    }
    placement: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    axes.annotate(milliseconds(ms), (1, y), **placement, **text_style)


def alt_text(row: RecoveryRow) -> str:
    """The same in words."""
    median_row = median_repeat(row)
    known = (s for s in steps_shown([row]) if _is_known(median_row, s))
    steps = ", ".join(f"{STEP_NAMES[s]} {milliseconds(getattr(median_row, s))}" for s in known)
    return f"median repeat on {row.fabric}, reroute {row.reroute}: {steps}"


def _is_known(recovery: Recovery, step: str) -> bool:
    """Without first packets where no pair was probed."""
    return step != "first_packet_ms" or is_probed(recovery)


def _tick(ms: float) -> str:
    """What is sooner than the first, 0 included, stands there too."""
    return {_SPAN[0]: f"≤ {_SPAN[0]:g}", _NEVER: "never"}.get(ms, f"{ms:g}")


def _place(ms: float | None) -> float:
    return _NEVER if ms is None else min(max(ms, _SPAN[0]), _SPAN[1])


def _never_last(ms: float | None) -> float:
    return inf if ms is None else ms
