"""Completion times by policy: what there is to gain lies between dr's line and the oracle's."""

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from railyard.results.analysis.steering import BASELINE_POLICY, ORACLE_POLICY, FabricWorkload, PolicyRow
from railyard.results.plots import style
from railyard.results.views.format import seconds, short
from railyard.results.views.labels import workload_label

_COLOUR: Final = {BASELINE_POLICY: style.ORANGE, ORACLE_POLICY: style.GREEN}
_OTHER: Final = style.SKY


def policies(rows: Sequence[PolicyRow], fabric_workload: FabricWorkload) -> style.Plot:
    """A bar a policy, its length the median; dots are the repeats, the upright mark is predicted."""
    name = f"{workload_label(fabric_workload[1])} on {fabric_workload[0]}"
    with style.styled():
        figure = style.new_figure(style.WIDTH, 1.0 + 0.36 * len(rows))
        axes = figure.subplots()
        for y, row in enumerate(rows):
            _bar(axes, y, row)
        for row in rows:
            if row.policy in _COLOUR:
                axes.axvline(row.median, color=_COLOUR[row.policy], lw=1.2, ls=(0, (4, 3)), zorder=0.5)
        axes.set_yticks(range(len(rows)), [row.policy for row in rows])
        for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_fontweight("bold" if row.policy in _COLOUR else "normal")
        axes.set(ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlim(0, axes.get_xlim()[1] * 1.16)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(seconds(value)) if value else "0"))
        style.quiet(axes, grid="x")
        handles = _keys(rows)
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        alt_text = "; ".join(_alt_text(row) for row in rows)
        return style.finish(figure, f"policies-{name}", f"Times of {name} by policy. {alt_text}")


def _bar(axes: Axes, y: int, row: PolicyRow) -> None:
    axes.barh(y, row.median, height=0.62, color=_COLOUR.get(row.policy, _OTHER), alpha=0.85)
    if len(row.times) > 1:
        axes.plot(row.times, [y] * len(row.times), "o", ms=3.6, mfc=style.PAPER, mec=style.INK, mew=0.7)
    if row.predicted:
        axes.plot([row.predicted] * 2, [y - 0.31, y + 0.31], color=style.INK, lw=2, solid_capstyle="butt")
    end = max(*row.times, row.predicted or 0.0)
    faster = (
        "" if row.over_dr is None or row.policy == BASELINE_POLICY else f" · {BASELINE_POLICY} / this {row.over_dr:.2f}"
    )
    background = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}  # of the lines behind it
    annotation: dict[str, Any] = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(seconds(row.median) + faster, (end, y), **annotation, fontsize=9, bbox=background)


def _keys(rows: Sequence[PolicyRow]) -> list[Patch | Line2D]:
    highlighted = [row.policy for row in rows if row.policy in _COLOUR]
    keys: list[Patch | Line2D] = [Patch(color=_COLOUR[n], label=n) for n in highlighted]
    if any(len(row.times) > 1 for row in rows):
        keys.append(Line2D([], [], ls="none", marker="o", ms=4, mfc=style.PAPER, mec=style.INK, label="a repeat"))
    if any(row.predicted for row in rows):
        keys.append(Line2D([], [], ls="none", marker="|", ms=12, mew=2, color=style.INK, label="predicted"))
    return keys


def _alt_text(row: PolicyRow) -> str:
    expected = f", predicted {seconds(row.predicted)}" if row.predicted else ""
    faster = (
        f", {BASELINE_POLICY} takes {row.over_dr:.2f} times as long"
        if row.over_dr and row.policy != BASELINE_POLICY
        else ""
    )
    return f"{row.policy} {seconds(row.median)}{expected}{faster}"
