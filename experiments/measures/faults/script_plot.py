"""Failure scripts over time: their faults, connectivity checks and goodput, drawn."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from railyard.core.records import ConnectivityCheck, Recovery
from railyard.experiments.measures.faults.analysis import (
    ScriptRow,
    checks_text,
)
from railyard.experiments.measures.faults.texts import first_packets_text
from railyard.failure.faults import definition_of
from railyard.results.plots import style
from railyard.results.plots.svg import mark
from railyard.results.runs.records import GoodputTrace

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
_KINDS_BY_PREFIX: Final = {
    **dict(zip(_PART_COLOUR, _PART_COLOUR, strict=True)),
    "hb-port": "hb port",
    "rail-switch": "rail switch",
    "gpu": "GPU",
}
"""How the name of a fault begins -> the kind of component that fails."""
_CHECK_STYLES: Final = {
    "check matches": (style.GREEN, "|", 9),
    "check differs": (style.VERMILION, "x", 7),
    "not done": (style.MUTED, ".", 4),
}
_FAULT_LINE: Final = 0.17  # inches a fault
_CHECKS_HEIGHT: Final = 0.3  # inches
_TRACE_HEIGHT: Final = 1.3  # inches
_SCRIPT_CAPTION: Final = (
    "A bar is a fault, from its injection to its repair; the dark part is until packets flowed again between the "
    "probed pairs that it had cut off. A connectivity check probes every pair of GPUs: it matches if all that the "
    "oracle calls reachable answered, and nothing else did."
)


def script_timeline(script: ScriptRow) -> style.Plot:
    """One repeat of a script. Seconds count from the first thing that is known of it."""
    fault_times = [fault.t_fault for fault in script.faults]
    check_times = [check.monotonic_ns for check in script.connectivity_checks]
    zero = min(fault_times + check_times, default=0)
    trace = _longest_trace(script)
    heights = [max(4, len(script.faults)) * _FAULT_LINE]
    if script.connectivity_checks:
        heights.append(_CHECKS_HEIGHT)
    if trace:
        heights.append(_TRACE_HEIGHT)
    with style.drawing(sum(heights) + 1.0) as figure:
        panels = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
        panels[-1].set_xlabel("s after the first fault")
        _faults(panels.pop(0), script.faults, zero)
        if script.connectivity_checks:
            _connectivity_checks(panels.pop(0), script.connectivity_checks, zero)
        if trace:
            _script_goodput(panels[0], trace, zero)
        figure.legend(handles=_legend(script), loc="outside upper right", ncols=9, fontsize=8)
        repair_times = [fault.t_repair for fault in script.faults]
        duration_s = (max(repair_times, default=0) - min(fault_times, default=0)) / 1e9
        alt = (
            f"{script.script} on {script.fabric} over time: {len(script.faults)} faults in {duration_s:.1f} s, "
            f"connectivity checks: {checks_text(script.connectivity_checks)}"
        )
        name = f"script-{script.script}-{script.fabric}-{script.reroute}-{script.repeat}"
        return style.finish(figure, name, alt, _SCRIPT_CAPTION)


class _Trace(NamedTuple):
    """Goodput of a script, and the injection of the fault (monotonic ns) from which its times count."""

    goodput: GoodputTrace
    from_ns: int


def _longest_trace(script: ScriptRow) -> _Trace | None:
    """Return the longest trace of a script; None if a workload ran in place of streams."""
    injected_ns: dict[tuple[str, str], int] = {}
    for fault in script.faults:
        # of a fault that came several times the first
        injected_ns.setdefault((fault.fault, fault.target), fault.t_fault)
    traces: list[_Trace] = []
    for goodput in script.goodput:
        from_ns = injected_ns.get((goodput.fault, goodput.target))
        if from_ns is not None:
            traces.append(_Trace(goodput, from_ns))
    return max(traces, key=lambda trace: len(trace.goodput.t_ms), default=None)


def _script_goodput(axes: Axes, trace: _Trace, zero: int) -> None:
    """Draw the goodput of all streams of a script. `zero`: monotonic ns from which the axis counts."""
    begin_s = (trace.from_ns - zero) / 1e9
    times_s = [begin_s + ms / 1e3 for ms in trace.goodput.t_ms]
    axes.plot(times_s, trace.goodput.bps, color=style.BLUE, lw=1.0, drawstyle="steps-post")
    axes.margins(x=0)
    axes.yaxis.set_major_formatter(style.rate_tick)
    style.quiet(axes, grid="y", ylim=(0, None), ylabel="goodput")


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
    end = max((fault.t_repair for fault in faults), default=zero)
    for y, fault in enumerate(faults):
        kind = component_kind(fault.fault)
        name = f"{fault.fault} {fault.target}"
        start = (fault.t_fault - zero) / 1e9
        stop = (fault.t_repair - zero) / 1e9
        bar = axes.barh(y, stop - start, left=start, height=0.72, color=_PART_COLOUR[kind], alpha=0.4)
        mark(bar, kind, f"{name}: {start:.2f} s to {stop:.2f} s")
        look: dict[str, Any] = {"edgecolor": style.PAPER, "hatch": _PART_HATCH[kind], "lw": 0}
        bar = axes.barh(y, _outage_s(fault), left=start, height=0.72, facecolor=_PART_COLOUR[kind], **look)
        mark(bar, kind, f"{name}: {first_packets_text([fault])}")
        place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        is_late = fault.t_fault - zero > 0.75 * (end - zero)
        if is_late:
            axes.annotate(name, (start, y), xytext=(-4, 0), ha="right", **place)
        else:
            axes.annotate(name, (stop, y), xytext=(4, 0), ha="left", **place)
    style.quiet(axes, grid="x", ylim=(max(4, len(faults)) - 0.4, -0.6), yticks=[], ylabel="faults")


def _outage_s(fault: Recovery) -> float:
    """Return how long packets were cut off, until the repair at most; 0 if that is unknown."""
    duration_s = (fault.t_repair - fault.t_fault) / 1e9
    if not fault.is_probed:
        return 0.0
    if fault.first_packet_ms is None:
        return duration_s
    return min(fault.first_packet_ms / 1e3, duration_s)


def _connectivity_checks(axes: Axes, connectivity_checks: Sequence[ConnectivityCheck], zero: int) -> None:
    for outcome, (colour, marker, size) in _CHECK_STYLES.items():
        times_s: list[float] = []
        for check in connectivity_checks:
            if _outcome(check) == outcome:
                times_s.append((check.monotonic_ns - zero) / 1e9)
        ticks = axes.plot(times_s, [0] * len(times_s), ls="none", marker=marker, ms=size, mew=1.6, color=colour)
        tooltips = [f"{outcome}: {seconds:.2f} s" for seconds in times_s]
        mark(ticks, outcome, *tooltips)
    axes.set_ylabel("connectivity", rotation=0, ha="right", va="center")
    style.quiet(axes, grid="x", ylim=(-1, 1), yticks=[])


def component_kind(fault: str) -> str:
    """Return the kind of component that fails, for colours: "other" where neither name nor definition tells it."""
    if definition_of(fault).is_control_plane:
        return "controller"
    for prefix, kind in _KINDS_BY_PREFIX.items():
        if fault.startswith(prefix):
            return kind
    return "other"


def component_title(kind: str, faults: Sequence[Recovery]) -> str:
    """Return what a legend calls the failed components of a kind: switches by what the fabric calls them."""
    if kind not in ("rail switch", "spine"):
        return kind
    titles: list[str] = []
    for fault in faults:
        if component_kind(fault.fault) == kind:
            stem = re.split("[0-9]", fault.target)[0]
            titles.append("rail switch" if stem == "rail" else stem)
    return ", ".join(dict.fromkeys(titles))


def _outcome(connectivity_check: ConnectivityCheck) -> str:
    if not connectivity_check.done:
        return "not done"
    if connectivity_check.mismatch_count:
        return "check differs"
    return "check matches"
