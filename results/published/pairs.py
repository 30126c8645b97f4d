"""Shared parts of Rail-only Fig. 2 to 5: rows that sum up a traffic matrix, heatmaps, and bars of volume."""

from collections.abc import Mapping
from itertools import product
from typing import Final, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from railyard.results.format import percent, size
from railyard.results.plots import style
from railyard.results.plots.traffic import byte_image
from railyard.results.published.catalogue import Cell
from railyard.workloads.matrix.pair_traffic import SCOPES, Traffic

K = TypeVar("K", bound=str)
COLUMNS: Final = ("count", "kind", "where", "pairs", "bytes", "least_pair_bytes", "most_pair_bytes", "share_pct")
# narrower parts of a bar can't hold their percentage
_LABELLED: Final = 0.05
_RAMP: Final = ("#a9cfe8", "#6aaed6", "#2070b4", "#083471")


def rows(count: str, traffic: Traffic) -> list[tuple[Cell, ...]]:
    """Return a row for each kind and place that has any traffic; `share_pct` is of all bytes."""
    whole = sum(traffic.volumes.values())
    cells: list[tuple[Cell, ...]] = []
    for kind, where in product(traffic.pairs, SCOPES):
        pairs = traffic.at(kind, where)
        if pairs.count:
            share_pct = 100 * pairs.total / whole
            cells.append((count, kind, where, pairs.count, pairs.total, *pairs.bytes_range, share_pct))
    return cells


def volume_bars(axes: Axes, volumes: Mapping[str, Mapping[K, float]], colours: Mapping[K, str]) -> None:
    """Shares by kind, a bar for each name, with its whole volume."""
    names = list(volumes)
    totals = {name: sum(by_kind.values()) for name, by_kind in volumes.items()}
    bar_starts = np.zeros(len(names))
    for kind, colour in colours.items():
        shares = np.array([volumes[name].get(kind, 0.0) / totals[name] for name in names])
        bars = axes.barh(range(len(names)), 100 * shares, left=100 * bar_starts, height=0.6, color=colour, label=kind)
        labels = [percent(share) if share >= _LABELLED else "" for share in shares]
        axes.bar_label(bars, labels, label_type="center", fontsize=8, color=style.ink_on(colour))
        bar_starts += shares
    axes.set_yticks(range(len(names)), [f"{name}, {size(total)}" for name, total in totals.items()])
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="share of all bytes, %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(colours), fontsize=8)
    style.quiet(axes)


def heatmap(axes: Axes, matrix: NDArray[np.float64], rails: int, title: str) -> None:
    """Bytes, sender down, receiver across; HB domains of `rails` GPUs in orange, pairs of one rail on pink lines."""
    gpus = len(matrix)
    # pairs of one rail lie on diagonals, `rails` apart: thin, so that the bytes are seen
    lines: list[list[tuple[int, int]]] = []
    for offset in range(rails, gpus, rails):
        lines.append([(offset, 0), (gpus - 1, gpus - 1 - offset)])
        lines.append([(0, offset), (gpus - 1 - offset, gpus - 1)])
    axes.add_collection(LineCollection(lines, colors=style.PINK, linewidths=0.4, zorder=2))
    for first in range(0, gpus, rails):
        box = Rectangle((first - 0.5,) * 2, rails, rails, fill=False, edgecolor=style.ORANGE, linewidth=1.2, zorder=2)
        axes.add_patch(box)
    byte_image(axes, matrix, _RAMP, 0.8, 7)
    axes.set(title=title, xlabel="receiver, GPU number", ylabel="sender, GPU number", aspect="equal")
    style.quiet(axes)


def legend(drawn: Figure) -> None:
    """Draw the legend of a figure's heatmaps."""
    lines = ((style.ORANGE, "HB domain"), (style.PINK, "same rail"))
    handles = [Line2D([], [], color=colour, label=label) for colour, label in lines]
    drawn.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8)
