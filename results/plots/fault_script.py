"""A failure script over time: each fault a bar from injection to repair, then the connectivity checks, then goodput."""

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from railyard.core.records import Recovery
from railyard.failure.faults import definition_of
from railyard.results.analysis.recovery import ScriptRow, checks_text
from railyard.results.plots import style
from railyard.results.runs.records import ConnectivityCheck

_COLOUR: Final = {
    "link": style.BLUE,
    "hb port": style.SKY,
    "rail switch": style.ORANGE,
    "spine": style.YELLOW,
    "GPU": style.PINK,
    "server": style.VERMILION,
    "controller": style.GREY,
    "other": style.MUTED,
}
_PREFIX: Final = {"hb-port": "hb port", "rail-switch": "rail switch", "gpu": "GPU"}
_CHECK_STYLES: Final = {
    "check matches": (style.GREEN, "|", 9),
    "check differs": (style.VERMILION, "x", 7),
    "not done": (style.MUTED, ".", 4),
}
_LINE: Final = 0.17  # inches a fault
_CAPTION: Final = (
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
    heights = [max(4, len(script.faults)) * _LINE, *[0.3] * bool(script.connectivity_checks), *[1.3] * bool(traces)]
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
        component_kinds = {component_kind(r.fault) for r in script.faults}
        keys: list[Patch | Line2D] = [Patch(color=_COLOUR[s], label=s) for s in _COLOUR if s in component_kinds]
        outcomes = {_outcome(c) for c in script.connectivity_checks}
        for outcome, (colour, marker, size) in _CHECK_STYLES.items():
            if outcome in outcomes:
                keys.append(Line2D([], [], ls="none", marker=marker, ms=size, mew=1.6, color=colour, label=outcome))
        figure.legend(handles=keys, loc="outside upper right", ncols=9, fontsize=8)
        begin_ns = min((r.t_fault for r in script.faults), default=0)
        duration_s = (max((r.t_repair for r in script.faults), default=0) - begin_ns) / 1e9
        alt = (
            f"{script.script} on {script.fabric} over time: {len(script.faults)} faults in {duration_s:.1f} s, "
            f"connectivity checks: {checks_text(script.connectivity_checks)}"
        )
        name = f"script-{script.script}-{script.fabric}-{script.reroute}-{script.repeat}"
        return style.finish(figure, name, alt, _CAPTION)


def _faults(axes: Axes, faults: Sequence[Recovery], zero: int) -> None:
    """In the order of time, one below the other. The name stands right of its bar; left of it where that is late."""
    end = max((r.t_repair for r in faults), default=zero)
    for y, r in enumerate(faults):
        start, stop = (r.t_fault - zero) / 1e9, (r.t_repair - zero) / 1e9
        colour = _COLOUR[component_kind(r.fault)]
        outage_s = min(stop - start if r.first_packet_ms is None else r.first_packet_ms / 1e3, stop - start)
        outage_s = outage_s if r.is_probed else 0.0
        axes.barh(y, stop - start, left=start, height=0.72, color=colour, alpha=0.4)
        axes.barh(y, outage_s, left=start, height=0.72, color=colour)
        is_late = r.t_fault - zero > 0.75 * (end - zero)
        x, shift, side = (start, -4, "right") if is_late else (stop, 4, "left")
        where: dict[str, Any] = {"xytext": (shift, 0), "textcoords": "offset points", "va": "center", "ha": side}
        axes.annotate(f"{r.fault} {r.target}", (x, y), fontsize=7, **where)
    style.quiet(axes, grid="x", ylim=(max(4, len(faults)) - 0.4, -0.6), yticks=[], ylabel="faults")


def _connectivity_checks(axes: Axes, connectivity_checks: Sequence[ConnectivityCheck], zero: int) -> None:
    for outcome, (colour, marker, size) in _CHECK_STYLES.items():
        at = [(c.monotonic_ns - zero) / 1e9 for c in connectivity_checks if _outcome(c) == outcome]
        axes.plot(at, [0] * len(at), ls="none", marker=marker, ms=size, mew=1.6, color=colour)
    axes.set_ylabel("connectivity", rotation=0, ha="right", va="center")
    style.quiet(axes, grid="x", ylim=(-1, 1), yticks=[])


def component_kind(fault: str) -> str:
    """Return the kind of component that fails, for colours: "other" where neither name nor definition tells it."""
    prefixes = {**{name: name for name in _COLOUR}, **_PREFIX}
    by_name = next((name for prefix, name in prefixes.items() if fault.startswith(prefix)), "other")
    return "controller" if definition_of(fault).is_control_plane else by_name


def _outcome(connectivity_check: ConnectivityCheck) -> str:
    result = "check differs" if connectivity_check.mismatch_count else "check matches"
    return result if connectivity_check.done else "not done"
