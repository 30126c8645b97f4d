"""Faults over time: steps of recovery and goodput around a fault, whole failure scripts."""

import re
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from railyard.core.records import ConnectivityCheck, Recovery
from railyard.experiments.measures.faults.analysis import (
    FROM_REPAIR,
    GOODPUT_STEPS,
    STEP_NAMES,
    RecoveryRow,
    ScriptRow,
    checks_text,
    side_values,
)
from railyard.experiments.measures.faults.texts import first_packets_text
from railyard.failure.faults import definition_of
from railyard.results.format import milliseconds, rate
from railyard.results.plots import style
from railyard.results.plots.svg import mark
from railyard.results.runs.records import GoodputTrace

COLOUR: Final = {"on": style.INK, "off": style.MUTED}
"""Colours by rerouting. Neither is a fabric's; lines are also dashed with rerouting off."""
_DASHES: Final[dict[str, Any]] = {"on": "-", "off": (0, (4, 2))}
_SHIFT: Final = {"on": -0.2, "off": 0.2}  # from the line of a step, in lines, where both are drawn
_CONTROLLER_STEPS: Final = ("decided_ms", "reroute_ms", "primary_path_ms")
STEP_LINE: Final = 0.25  # inches a step
_SPAN: Final = (0.1, 3000.0)  # ms: what is sooner stands at the left edge, what never came beyond the right one
_NEVER: Final = 5500.0
_LATE_MS: Final = 200.0  # times above stand left of their dots
REPEAT_MARKS: Final[dict[str, Any]] = {"ls": "none", "marker": "|", "ms": 9, "mew": 0.8, "alpha": 0.45}


def steps_shown(rows: Sequence[RecoveryRow]) -> tuple[str, ...]:
    """Columns of recovery.csv, top to bottom. The source side, if it was probed too, first: it needs no controller."""
    sides = [all(side_values(row.repeats, side) for row in rows) for side in ("source", "far")]
    first = ("source_side_ms", "far_side_ms") if rows and all(sides) else ("first_packet_ms",)
    return (*first[:-1], "detect_ms", "decided_ms", "reroute_ms", first[-1], "goodput_ms", *FROM_REPAIR)


def median_repeat(row: RecoveryRow) -> Recovery:
    """Return the repeat in the middle by its first packet, then by its goodput."""

    def order(r: Recovery) -> tuple[float, float, int]:
        first, goodput = (inf if ms is None else ms for ms in (r.first_packet_ms, r.goodput_ms))
        return first, goodput, r.repeat

    return sorted(row.repeats, key=order)[(len(row.repeats) - 1) // 2]


def _steps(axes: Axes, rows: Sequence[RecoveryRow], names: bool) -> None:
    """Draw all repeats as thin marks, the median repeat as dots that a line joins, its times at the right."""
    steps = steps_shown(rows)
    both = len({row.reroute for row in rows}) > 1
    for row in rows:
        shift = _SHIFT[row.reroute] if both else 0.0
        _draw_repeats(axes, row, steps, shift)
        _draw_median_repeat(axes, row, steps, shift)
    axes.axhline(len(steps) - len(FROM_REPAIR) - 0.5, color=style.GREEN, lw=1.0, ls="--")  # the repair
    axes.axvline(_SPAN[1], color=style.GRID, lw=0.7)
    axes.set_xlim(_SPAN[0] * 0.85, _NEVER * 1.5)
    ticks = {0.1: "≤ 0.1", 1: "1", 10: "10", 100: "100", 1000: "1000", _NEVER: "never"}
    step_axes(axes, [STEP_NAMES[s] for s in steps], names, ticks)
    axes.set_xlabel("ms after the fault; below the dashed line: after the repair")


def _draw_repeats(axes: Axes, row: RecoveryRow, steps: Sequence[str], shift: float) -> None:
    """Draw a thin mark for each step of each repeat. `shift`: of the marks from the line of the step, in lines."""
    colour = COLOUR[row.reroute]
    series = f"reroute {row.reroute}"
    for number, step in enumerate(steps):
        times = [(repeat.repeat, getattr(repeat, step)) for repeat in row.repeats if _is_known(repeat, step)]
        places = [_place(ms) for _, ms in times]
        marks = axes.plot(places, [number + shift] * len(places), color=colour, **REPEAT_MARKS)
        title = f"{STEP_NAMES[step]}, {series}"
        mark(marks, series, *(f"{title}, repeat {repeat}: {milliseconds(ms)}" for repeat, ms in times))


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
        if ms is not None and _is_known(middle, step):
            line_x.append(_place(ms))
            line_y.append(number + shift)
    path = axes.plot(line_x, line_y, color=colour, lw=1.1, ls=_DASHES[row.reroute])
    mark(path, series)
    for number, step in enumerate(steps):
        if not _is_known(middle, step):
            continue
        ms = getattr(middle, step)
        x = _place(ms)
        y = number + shift
        marker = "o" if ms is not None else "x"
        dot = axes.plot([x], [y], ls="none", marker=marker, ms=5, mew=1.4, color=colour)
        label = annotate_time(axes, x, y, ms, is_left=x > _LATE_MS)
        mark([*dot, label], series, f"{STEP_NAMES[step]}, {series}, median repeat: {milliseconds(ms)}")


def step_axes(axes: Axes, steps: Sequence[str], names: bool, ticks: Mapping[float, str]) -> None:
    """Set up a logarithmic axis of ms over a line for each step, named or not."""
    axes.set_xscale("log")
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.set_yticks(range(len(steps)), steps if names else [""] * len(steps))
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: ticks.get(ms, f"{ms:g}")))
    style.quiet(axes, grid="x")


def annotate_time(axes: Axes, x: float, y: float, ms: float | None, is_left: bool) -> Annotation:
    """Write a time beside its dot, left of it where there is no room at the right."""
    place = {"xytext": (-6, 0), "ha": "right"} if is_left else {"xytext": (6, 0), "ha": "left"}
    look: dict[str, Any] = {**place, "textcoords": "offset points", "va": "center", "fontsize": 9, "zorder": 5}
    return axes.annotate(milliseconds(ms), (x, y), bbox={"fc": style.PAPER, "ec": "none", "pad": 0.6}, **look)


def steps_text(row: RecoveryRow) -> str:
    """Return the steps of the median repeat in words."""
    middle = median_repeat(row)
    known = (s for s in steps_shown([row]) if _is_known(middle, s))
    steps = ", ".join(f"{STEP_NAMES[s]} {milliseconds(getattr(middle, s))}" for s in known)
    return f"median repeat on {row.fabric}, reroute {row.reroute}: {steps}"


def _is_known(recovery: Recovery, step: str) -> bool:
    """Return whether a step belongs to the fault: what can't happen, or had no reason to, is not drawn."""
    if step in GOODPUT_STEPS:
        return bool(getattr(recovery, step) != 0)  # 0: goodput never fell
    if step in _CONTROLLER_STEPS:  # 0: there was no detour to withdraw
        return recovery.reroute == "on" and getattr(recovery, step) != 0
    return step != "first_packet_ms" or recovery.is_probed  # without probed pairs nothing is known of first packets


def _place(ms: float | None) -> float:
    return _NEVER if ms is None else min(max(ms, _SPAN[0]), _SPAN[1])


_CAPTION: Final = (
    "Above, all repeats are thin marks; dots joined by a line are the repeat with the median first packet, with its "
    "times. Dashed: rerouting off. Below, bits delivered in bins of 20 ms: a thin line a repeat (of more than 8, a "
    "band from the least to the most), the bold one their median. A flow ends with its last byte: late in the run few "
    "are left, and those that stood still wait for TCP's next try after the repair."
)
_MAX_LINES: Final = 8  # repeats: of more, thin lines are a thicket, and megabytes of it
_GOODPUT: Final = 1.6  # inches each


def recovery(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace], fault: str) -> style.Plot:
    """A column a fabric; `rows` and `traces` of this fault, rerouting on and off. Either may be empty, not both."""
    fabrics = list(dict.fromkeys([*(row.repeats[0].fabric for row in rows), *(t.fabric for t in traces)]))
    line = STEP_LINE if len({row.reroute for row in rows}) < 2 else 0.34
    steps_height = line * (len(steps_shown(rows)) + 1)
    heights = [steps_height] * bool(rows) + [_GOODPUT, _GOODPUT] * bool(traces)
    with style.drawing(sum(heights) + 1.1) as figure:
        grid = figure.subplots(len(heights), len(fabrics), squeeze=False, height_ratios=heights)
        for column, fabric in enumerate(fabrics):
            panels = [grid[line][column] for line in range(len(heights))]
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
    if not any(any(trace.affected_bps) for trace in traces):
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
        matching = [t for t in traces if t.reroute == reroute]
        bins = list(zip(*(getattr(t, field) for t in matching), strict=False))  # as many as every repeat has
        times = matching[0].t_ms[: len(bins)] if matching else ()
        drawn: list[Artist] = []
        for trace in matching if 1 < len(matching) <= _MAX_LINES else ():
            drawn += axes.plot(
                trace.t_ms, getattr(trace, field), color=colour, lw=0.6, alpha=0.35, drawstyle="steps-post"
            )
        if len(matching) > _MAX_LINES:
            ends = [*map(min, bins)], [*map(max, bins)]
            drawn.append(axes.fill_between(times, *ends, step="post", color=colour, alpha=0.22, lw=0))
        if matching:
            looks: dict[str, Any] = {"color": colour, "lw": 1.7, "ls": _DASHES[reroute], "drawstyle": "steps-post"}
            drawn += axes.plot(times, [*map(median, bins)], **looks)
        mark(drawn, f"reroute {reroute}")
    axes.axvline(0, color=style.VERMILION, lw=1.4)
    repairs = (round(median(t.repair_ms for t in traces if t.reroute == r), 1) for r in {t.reroute for t in traces})
    for repair in sorted(set(repairs)):
        axes.axvline(repair, color=style.GREEN, lw=1.4, ls="--")
    axes.yaxis.set_major_formatter(style.rate_tick)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.margins(x=0, y=0.08)
    style.quiet(axes, grid="y")
    axes.tick_params(axis="x", pad=7)


def _alt(rows: Sequence[RecoveryRow], traces: Sequence[GoodputTrace], fabrics: Sequence[str], fault: str) -> str:
    alt_text = [steps_text(row) for row in rows]
    for fabric in fabrics:
        for reroute in COLOUR:
            matching = [t for t in traces if (t.fabric, t.reroute) == (fabric, reroute)]
            while_failed = ([b for t, b in zip(x.t_ms, x.bps, strict=True) if 0 <= t < x.repair_ms] for x in matching)
            if low := [min(rates, default=0.0) for rates in while_failed]:
                alt_text.append(f"{fabric}, reroute {reroute}: goodput falls to {rate(median(low))} before the repair")
    return f"Steps of recovery, and goodput around {fault}. {'; '.join(alt_text)}"


_PART_COLOUR: Final = {
    "link": style.BLUE,
    "hb port": style.SKY,
    "rail switch": style.PINK,
    "spine": style.ORANGE,
    "GPU": style.YELLOW,
    "server": style.VERMILION,
    "controller": style.GREY,
    "other": style.MUTED,
}
_PART_HATCH: Final = style.hatches(tuple(_PART_COLOUR))
_PREFIX: Final = {"hb-port": "hb port", "rail-switch": "rail switch", "gpu": "GPU"}
_CHECK_STYLES: Final = {
    "check matches": (style.GREEN, "|", 9),
    "check differs": (style.VERMILION, "x", 7),
    "not done": (style.MUTED, ".", 4),
}
_FAULT_LINE: Final = 0.17  # inches a fault
_SCRIPT_CAPTION: Final = (
    "A bar is a fault, from its injection to its repair; the dark part is until packets flowed again between the "
    "probed pairs that it had cut off. A connectivity check probes every pair of GPUs: it matches if all that the "
    "oracle calls reachable answered, and nothing else did."
)


def script_timeline(script: ScriptRow) -> style.Plot:
    """One repeat of a script. Seconds count from the first thing that is known of it."""
    zero = min((*(r.t_fault for r in script.faults), *(c.monotonic_ns for c in script.connectivity_checks)), default=0)
    # the longest trace, with the injection of the fault (ns) from which it counts; none while a workload ran instead
    injected = {(r.fault, r.target): r.t_fault for r in reversed(script.faults)}
    known = [(injected[t.fault, t.target], t) for t in script.goodput if (t.fault, t.target) in injected]
    traces = max(known, key=lambda found: len(found[1].t_ms), default=None)
    fault_height = max(4, len(script.faults)) * _FAULT_LINE
    heights = [fault_height, *[0.3] * bool(script.connectivity_checks), *[1.3] * bool(traces)]
    with style.drawing(sum(heights) + 1.0) as figure:
        panels = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
        panels[-1].set_xlabel("s after the first fault")
        _faults(panels.pop(0), script.faults, zero)
        if script.connectivity_checks:
            _connectivity_checks(panels.pop(0), script.connectivity_checks, zero)
        if traces:
            start_ns, trace = traces
            at = [(start_ns - zero) / 1e9 + ms / 1e3 for ms in trace.t_ms]
            panels[0].plot(at, trace.bps, color=style.BLUE, lw=1.0, drawstyle="steps-post")
            panels[0].margins(x=0)
            panels[0].yaxis.set_major_formatter(style.rate_tick)
            style.quiet(panels[0], grid="y", ylim=(0, None), ylabel="goodput")
        figure.legend(handles=_legend(script), loc="outside upper right", ncols=9, fontsize=8)
        begin_ns = min((r.t_fault for r in script.faults), default=0)
        duration_s = (max((r.t_repair for r in script.faults), default=0) - begin_ns) / 1e9
        alt = (
            f"{script.script} on {script.fabric} over time: {len(script.faults)} faults in {duration_s:.1f} s, "
            f"connectivity checks: {checks_text(script.connectivity_checks)}"
        )
        name = f"script-{script.script}-{script.fabric}-{script.reroute}-{script.repeat}"
        return style.finish(figure, name, alt, _SCRIPT_CAPTION)


def _legend(script: ScriptRow) -> list[Patch | Line2D]:
    """Return the keys of the kinds of components that broke, and of the outcomes of connectivity checks."""
    keys: list[Patch | Line2D] = []
    component_kinds = {component_kind(fault.fault) for fault in script.faults}
    for kind, colour in _PART_COLOUR.items():
        if kind in component_kinds:
            title = component_title(kind, script.faults)
            hatch = _PART_HATCH[kind]
            keys.append(Patch(facecolor=colour, edgecolor=style.PAPER, linewidth=0, hatch=hatch, label=title))
    outcomes = {_outcome(check) for check in script.connectivity_checks}
    for outcome, (colour, marker, size) in _CHECK_STYLES.items():
        if outcome in outcomes:
            keys.append(Line2D([], [], ls="none", marker=marker, ms=size, mew=1.6, color=colour, label=outcome))
    return keys


def _faults(axes: Axes, faults: Sequence[Recovery], zero: int) -> None:
    """In the order of time, one below the other. The name stands right of its bar; left of it where that is late."""
    end = max((r.t_repair for r in faults), default=zero)
    for y, r in enumerate(faults):
        start = (r.t_fault - zero) / 1e9
        stop = (r.t_repair - zero) / 1e9
        colour = _PART_COLOUR[component_kind(r.fault)]
        outage_s = min(stop - start if r.first_packet_ms is None else r.first_packet_ms / 1e3, stop - start)
        outage_s = outage_s if r.is_probed else 0.0
        name = f"{r.fault} {r.target}"
        bar = axes.barh(y, stop - start, left=start, height=0.72, color=colour, alpha=0.4)
        mark(bar, component_kind(r.fault), f"{name}: {start:.2f} s to {stop:.2f} s")
        hatch = _PART_HATCH[component_kind(r.fault)]
        look: dict[str, Any] = {"facecolor": colour, "edgecolor": style.PAPER, "hatch": hatch, "lw": 0}
        bar = axes.barh(y, outage_s, left=start, height=0.72, **look)
        mark(bar, component_kind(r.fault), f"{name}: {first_packets_text([r])}")
        is_late = r.t_fault - zero > 0.75 * (end - zero)
        x, shift, side = (start, -4, "right") if is_late else (stop, 4, "left")
        where: dict[str, Any] = {"xytext": (shift, 0), "textcoords": "offset points", "va": "center", "ha": side}
        axes.annotate(name, (x, y), fontsize=8, **where)
    style.quiet(axes, grid="x", ylim=(max(4, len(faults)) - 0.4, -0.6), yticks=[], ylabel="faults")


def _connectivity_checks(axes: Axes, connectivity_checks: Sequence[ConnectivityCheck], zero: int) -> None:
    for outcome, (colour, marker, size) in _CHECK_STYLES.items():
        at = [(c.monotonic_ns - zero) / 1e9 for c in connectivity_checks if _outcome(c) == outcome]
        ticks = axes.plot(at, [0] * len(at), ls="none", marker=marker, ms=size, mew=1.6, color=colour)
        mark(ticks, outcome, *(f"{outcome}: {second:.2f} s" for second in at))
    axes.set_ylabel("connectivity", rotation=0, ha="right", va="center")
    style.quiet(axes, grid="x", ylim=(-1, 1), yticks=[])


def component_kind(fault: str) -> str:
    """Return the kind of component that fails, for colours: "other" where neither name nor definition tells it."""
    prefixes = {**{name: name for name in _PART_COLOUR}, **_PREFIX}
    by_name = next((name for prefix, name in prefixes.items() if fault.startswith(prefix)), "other")
    return "controller" if definition_of(fault).is_control_plane else by_name


def component_title(kind: str, faults: Sequence[Recovery]) -> str:
    """Return what a legend calls the failed components of a kind: switches by what the fabric calls them."""
    if kind not in ("rail switch", "spine"):
        return kind
    targets = [fault.target for fault in faults if component_kind(fault.fault) == kind]
    stems = dict.fromkeys(re.split("[0-9]", target)[0] for target in targets)
    return ", ".join("rail switch" if stem == "rail" else stem for stem in stems)


def _outcome(connectivity_check: ConnectivityCheck) -> str:
    result = "check differs" if connectivity_check.mismatch_count else "check matches"
    return result if connectivity_check.done else "not done"
