"""Faults that came alone, over time: the steps of their recovery, and goodput around them."""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf
from statistics import median
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from railyard.core.records import Recovery
from railyard.experiments.measures.faults.analysis import (
    FROM_REPAIR,
    GOODPUT_STEPS,
    SIDES,
    STEP_NAMES,
    RecoveryRow,
    side_values,
)
from railyard.results.analysis.aggregate import grouped
from railyard.results.format import milliseconds, rate
from railyard.results.plots import style
from railyard.results.plots.svg import mark
from railyard.results.runs.records import GoodputTrace

COLOUR: Final = {"on": style.INK, "off": style.MUTED}
"""Colours by rerouting. Neither is a fabric's; lines are also dashed with rerouting off."""
_DASHES: Final[dict[str, Any]] = {"on": "-", "off": (0, (4, 2))}
# Distance from the line of a step, in lines, where both modes are drawn.
_SHIFT: Final = {"on": -0.2, "off": 0.2}
_CONTROLLER_STEPS: Final = ("decided_ms", "reroute_ms", "primary_path_ms")
STEP_LINE: Final = 0.25  # inches a step
_LINE_OF_BOTH_MODES: Final = 0.34  # inches a step with marks of both modes of rerouting
# Shown times, ms: shorter ones stand at the left edge, those that never came beyond the right edge.
_SPAN: Final = (0.1, 3000.0)
_NEVER: Final = 5500.0
# Longer times, ms, stand left of their dots: there is no room at the right edge.
_LATE_MS: Final = 200.0
REPEAT_MARKS: Final[dict[str, Any]] = {"ls": "none", "marker": "|", "ms": 9, "mew": 0.8, "alpha": 0.45}


def steps_shown(rows: Sequence[RecoveryRow]) -> tuple[str, ...]:
    """Columns of recovery.csv, top to bottom."""
    controller_steps = ("detect_ms", "decided_ms", "reroute_ms")
    if rows and all(map(_are_both_sides_probed, rows)):
        # the source side recovers first: it needs no controller
        return ("source_side_ms", *controller_steps, "far_side_ms", "goodput_ms", *FROM_REPAIR)
    return (*controller_steps, "first_packet_ms", "goodput_ms", *FROM_REPAIR)


def _are_both_sides_probed(row: RecoveryRow) -> bool:
    return all(side_values(row.repeats, side) for side in SIDES)


def median_repeat(row: RecoveryRow) -> Recovery:
    """Return the repeat in the middle by its first packet, then by its goodput."""

    def order(recovery: Recovery) -> tuple[float, float, int]:
        return _or_infinite(recovery.first_packet_ms), _or_infinite(recovery.goodput_ms), recovery.repeat

    return sorted(row.repeats, key=order)[(len(row.repeats) - 1) // 2]


def _or_infinite(ms: float | None) -> float:
    """Return a time; infinite for what never came."""
    if ms is None:
        return inf
    return ms


def _steps(axes: Axes, rows: Sequence[RecoveryRow], names: bool) -> None:
    """Draw all repeats as thin marks, the median repeat as dots that a line joins, its times at the right."""
    steps = steps_shown(rows)
    has_both_modes = _has_both_modes(rows)
    for row in rows:
        # marks of both modes would hide each other on the line of a step
        shift = _SHIFT[row.reroute] if has_both_modes else 0.0
        _draw_repeats(axes, row, steps, shift)
        _draw_median_repeat(axes, row, steps, shift)
    # the line of the repair
    axes.axhline(len(steps) - len(FROM_REPAIR) - 0.5, color=style.GREEN, lw=1.0, ls="--")
    axes.axvline(_SPAN[1], color=style.GRID, lw=0.7)
    axes.set_xlim(_SPAN[0] * 0.85, _NEVER * 1.5)
    ticks = {0.1: "≤ 0.1", 1: "1", 10: "10", 100: "100", 1000: "1000", _NEVER: "never"}
    step_axes(axes, [STEP_NAMES[s] for s in steps], names, ticks)
    axes.set_xlabel("ms after the fault; below the dashed line: after the repair")


def _has_both_modes(rows: Sequence[RecoveryRow]) -> bool:
    """Return whether faults came with rerouting and without."""
    return len({row.reroute for row in rows}) > 1


def _draw_repeats(axes: Axes, row: RecoveryRow, steps: Sequence[str], shift: float) -> None:
    """Draw a thin mark for each step of each repeat. `shift`: of the marks from the line of the step, in lines."""
    colour = COLOUR[row.reroute]
    series = f"reroute {row.reroute}"
    for number, step in enumerate(steps):
        places: list[float] = []
        tooltips: list[str] = []
        for recovery in row.repeats:
            if _has_step(recovery, step):
                ms = getattr(recovery, step)
                places.append(_place(ms))
                tooltips.append(f"{STEP_NAMES[step]}, {series}, repeat {recovery.repeat}: {milliseconds(ms)}")
        marks = axes.plot(places, [number + shift] * len(places), color=colour, **REPEAT_MARKS)
        mark(marks, series, *tooltips)


def _draw_median_repeat(axes: Axes, row: RecoveryRow, steps: Sequence[str], shift: float) -> None:
    """Draw the dots of the median repeat with their times, and a line that joins those before the repair."""
    colour = COLOUR[row.reroute]
    series = f"reroute {row.reroute}"
    middle = median_repeat(row)
    line_x: list[float] = []
    line_y: list[float] = []
    # the last count from the repair: no line leads there
    for number, step in enumerate(steps[: -len(FROM_REPAIR)]):
        ms = getattr(middle, step)
        if ms is not None and _has_step(middle, step):
            line_x.append(_place(ms))
            line_y.append(number + shift)
    path = axes.plot(line_x, line_y, color=colour, lw=1.1, ls=_DASHES[row.reroute])
    mark(path, series)
    for number, step in enumerate(steps):
        if not _has_step(middle, step):
            continue
        ms = getattr(middle, step)
        x = _place(ms)
        y = number + shift
        marker = "x" if ms is None else "o"
        dot = axes.plot([x], [y], ls="none", marker=marker, ms=5, mew=1.4, color=colour)
        label = annotate_time(axes, x, y, ms, is_left=x > _LATE_MS)
        mark([*dot, label], series, f"{STEP_NAMES[step]}, {series}, median repeat: {milliseconds(ms)}")


def step_axes(axes: Axes, steps: Sequence[str], names: bool, ticks: Mapping[float, str]) -> None:
    """Set up a logarithmic axis of ms over a line for each step, named or not."""
    axes.set_xscale("log")
    axes.set_ylim(len(steps) - 0.5, -0.5)
    labels = steps if names else [""] * len(steps)
    axes.set_yticks(range(len(steps)), labels)
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: ticks.get(ms, f"{ms:g}")))
    style.quiet(axes, grid="x")


def annotate_time(axes: Axes, x: float, y: float, ms: float | None, is_left: bool) -> Annotation:
    """Write a time beside its dot, left of it where there is no room at the right."""
    place: dict[str, Any] = {"xytext": (6, 0), "ha": "left"}
    if is_left:
        place = {"xytext": (-6, 0), "ha": "right"}
    look: dict[str, Any] = {**place, "textcoords": "offset points", "va": "center", "fontsize": 9, "zorder": 5}
    return axes.annotate(milliseconds(ms), (x, y), bbox={"fc": style.PAPER, "ec": "none", "pad": 0.6}, **look)


def steps_text(row: RecoveryRow) -> str:
    """Return the steps of the median repeat in words."""
    middle = median_repeat(row)
    steps: list[str] = []
    for step in steps_shown([row]):
        if _has_step(middle, step):
            steps.append(f"{STEP_NAMES[step]} {milliseconds(getattr(middle, step))}")
    return f"median repeat on {row.fabric}, reroute {row.reroute}: {', '.join(steps)}"


def _has_step(recovery: Recovery, step: str) -> bool:
    """Return whether a step belongs to the fault: what can't happen, or had no reason to, is not drawn."""
    # 0: goodput never fell
    if step in GOODPUT_STEPS:
        return bool(getattr(recovery, step) != 0)
    # 0: there was no detour to withdraw
    if step in _CONTROLLER_STEPS:
        return recovery.reroute == "on" and getattr(recovery, step) != 0
    # without probed pairs nothing is known of first packets
    return step != "first_packet_ms" or recovery.is_probed


def _place(ms: float | None) -> float:
    """Return where a time stands on the axis."""
    if ms is None:
        return _NEVER
    return min(max(ms, _SPAN[0]), _SPAN[1])


_CAPTION: Final = (
    "Above, all repeats are thin marks; dots joined by a line are the repeat with the median first packet, with its "
    "times. Dashed: rerouting off. Below, bits delivered in bins of 20 ms: a thin line a repeat (of more than 8, a "
    "band from the least to the most), the bold one their median. A flow ends with its last byte: late in the run few "
    "are left, and those that stood still wait for TCP's next try after the repair."
)
# More thin lines hide each other, and make an SVG of megabytes.
_MAX_LINES: Final = 8
_GOODPUT: Final = 1.6  # inches each


def recovery(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace], fault: str) -> style.Plot:
    """A column a fabric; `rows` and `traces` of this fault, rerouting on and off. Either may be empty, not both."""
    fabrics_of_rows = [row.repeats[0].fabric for row in rows]
    fabrics_of_traces = [trace.fabric for trace in traces]
    fabrics = list(dict.fromkeys(fabrics_of_rows + fabrics_of_traces))
    line_height = _LINE_OF_BOTH_MODES if _has_both_modes(rows) else STEP_LINE
    steps_height = line_height * (len(steps_shown(rows)) + 1)
    heights = [steps_height] * bool(rows) + [_GOODPUT, _GOODPUT] * bool(traces)
    with style.drawing(sum(heights) + 1.1) as figure:
        grid = figure.subplots(len(heights), len(fabrics), squeeze=False, height_ratios=heights)
        for column, fabric in enumerate(fabrics):
            panels = list(grid[:, column])
            panels[0].set_title(fabric)
            if rows:
                fabric_rows = [row for row in rows if row.repeats[0].fabric == fabric]
                _steps(panels.pop(0), fabric_rows, names=column == 0)
            if traces:
                above, below = panels
                _goodputs(above, below, [trace for trace in traces if trace.fabric == fabric])
        if traces:
            _share_scale(grid[-2], "all flows")
            _share_scale(grid[-1], "flows that\ncrossed it")
        figure.legend(handles=_handles(rows, traces), loc="outside upper right", ncols=4)
        return style.finish(figure, f"recovery-{fault}", _alt(rows, traces, fabrics, fault), _CAPTION)


def _goodputs(above: Axes, below: Axes, traces: Sequence[GoodputTrace]) -> None:
    """Draw the goodput of a fabric's flows above, and of those that crossed the fault below."""
    _goodput(above, traces, "bps")
    _goodput(below, traces, "affected_bps")
    affected_bps = chain.from_iterable(trace.affected_bps for trace in traces)
    if not any(affected_bps):
        below.text(0.5, 0.5, "no flow crossed it", transform=below.transAxes, ha="center", va="center")
    below.sharex(above)
    above.tick_params(labelbottom=False)
    below.set_xlabel("ms after the fault")


def _share_scale(panels: Sequence[Axes], name: str) -> None:
    """Give goodputs beside each other one scale, from 0, and write it and its name once."""
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
        axes.tick_params(labelleft=axes is panels[0])
    panels[0].set_ylabel(name)


def _handles(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace]) -> list[Line2D]:
    """Return the entries of the legend."""
    reroutes = {row.reroute for row in rows} | {trace.reroute for trace in traces}
    handles: list[Line2D] = []
    for reroute, colour in COLOUR.items():
        if reroute in reroutes:
            handles.append(Line2D([], [], color=colour, lw=2, ls=_DASHES[reroute], label=f"reroute {reroute}"))
    handles.append(Line2D([], [], color=style.VERMILION, lw=1.4, label="fault"))
    handles.append(Line2D([], [], color=style.GREEN, lw=1.4, ls="--", label="repair"))
    return handles


def _goodput(axes: Axes, traces: Sequence[GoodputTrace], field: str) -> None:
    for reroute, colour in COLOUR.items():
        matching = [trace for trace in traces if trace.reroute == reroute]
        if matching:
            mark(_draw_goodput(axes, matching, field, colour, _DASHES[reroute]), f"reroute {reroute}")
    axes.axvline(0, color=style.VERMILION, lw=1.4)
    for repair_ms in _repairs_ms(traces):
        axes.axvline(repair_ms, color=style.GREEN, lw=1.4, ls="--")
    axes.yaxis.set_major_formatter(style.rate_tick)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.margins(x=0, y=0.08)
    style.quiet(axes, grid="y")
    axes.tick_params(axis="x", pad=7)


def _draw_goodput(axes: Axes, traces: Sequence[GoodputTrace], field: str, colour: str, dashes: Any) -> list[Artist]:
    """Draw the repeats of a fault, and their median; return what was drawn. `field`: of a trace, bit/s in bins."""
    repeats = [getattr(trace, field) for trace in traces]
    # bins that every repeat has
    bins = list(zip(*repeats, strict=False))
    times = traces[0].t_ms[: len(bins)]
    drawn: list[Artist] = []
    if len(traces) > _MAX_LINES:
        least = list(map(min, bins))
        most = list(map(max, bins))
        drawn.append(axes.fill_between(times, least, most, step="post", color=colour, alpha=0.22, lw=0))
    elif len(traces) > 1:
        for trace, values in zip(traces, repeats, strict=True):
            drawn += axes.plot(trace.t_ms, values, color=colour, lw=0.6, alpha=0.35, drawstyle="steps-post")
    medians = list(map(median, bins))
    drawn += axes.plot(times, medians, color=colour, lw=1.7, ls=dashes, drawstyle="steps-post")
    return drawn


def _repairs_ms(traces: Sequence[GoodputTrace]) -> list[float]:
    """Return when faults were repaired with rerouting and without, ms after their injection, each time once."""
    medians: set[float] = set()
    for repeats in grouped(traces, "reroute").values():
        medians.add(round(median(trace.repair_ms for trace in repeats), 1))
    return sorted(medians)


def _alt(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace], fabrics: Sequence[str], fault: str) -> str:
    alt_text = [steps_text(row) for row in rows]
    for fabric in fabrics:
        for reroute in COLOUR:
            lowest: list[float] = []
            for trace in traces:
                if (trace.fabric, trace.reroute) == (fabric, reroute):
                    lowest.append(_lowest_before_repair(trace))
            if lowest:
                lowest_text = rate(median(lowest))
                alt_text.append(f"{fabric}, reroute {reroute}: goodput falls to {lowest_text} before the repair")
    return f"Steps of recovery, and goodput around {fault}. {'; '.join(alt_text)}"


def _lowest_before_repair(trace: GoodputTrace) -> float:
    """Return the least goodput of a bin between the fault and its repair, bit/s; 0 without a bin."""
    rates: list[float] = []
    for ms, bps in zip(trace.t_ms, trace.bps, strict=True):
        if 0 <= ms < trace.repair_ms:
            rates.append(bps)
    return min(rates, default=0.0)
