"""Part 2's comparison as small multiples: HB domain by rail, a panel for each load of the spines."""

from collections.abc import Sequence
from math import log2
from typing import Final

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from railyard.results.plots import style
from railyard.results.theory.spine_condition import Cell
from railyard.results.views.format import percent
from railyard.workloads.background.grid import GridSpec

_NEUTRAL_COLOUR: Final = "#f2f3f4"  # light in the dark too: even is neither
_RAMP: Final = LinearSegmentedColormap.from_list("ways", (style.VERMILION, _NEUTRAL_COLOUR, style.GREEN))
_TEXT_COLOUR: Final = "#111111"
_MAX_LOG2_RATIO: Final = 3.0  # factors of two at which the colour is full


def draw(cells: Sequence[Cell], name: str) -> style.Plot:
    """One pair's cells. Green: rail-only's way is sooner there; red: the spine's. A cross: the papers say otherwise."""
    grid = cells[0].scene.grid
    spines = grid.loads if grid.spine else (0.0,)
    with style.styled():
        figure = style.new_figure(style.WIDTH, 0.9 + style.WIDTH / max(3, len(spines)))
        panels = figure.subplots(1, max(3, len(spines)), squeeze=False, sharey=True)[0]
        for axes in panels[len(spines) :]:
            axes.set_visible(False)
        for axes, spine in zip(panels, spines, strict=False):
            _panel(axes, [c for c in cells if c.scene.spine == spine], grid)
            axes.set_title(f"spines {percent(spine, 0)}" if grid.spine else "")
        panels[0].set_ylabel("HB domain of the source")
        handles = [
            Patch(color=style.GREEN, label="rail-only's way is sooner"),
            Patch(color=style.VERMILION, label="the spine's is"),
            Line2D(
                [], [], ls="none", marker="x", ms=8, mew=2, color=style.INK, label="the papers' condition disagrees"
            ),
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=3)
        caption = "In each cell: the slower way's latency over the other's."
        return style.finish(figure, f"rail-only-{name}", _alt(cells, name), caption)


def _panel(axes: Axes, cells: Sequence[Cell], grid: GridSpec) -> None:
    rails, domains = (grid.loads if is_varied else (0.0,) for is_varied in (grid.rails, grid.domains))
    norm = Normalize(-_MAX_LOG2_RATIO, _MAX_LOG2_RATIO, clip=True)
    for cell in cells:
        x, y = rails.index(cell.scene.rail), domains.index(cell.scene.domain)
        factor = cell.latency["spine"] / cell.latency["rail-only"]
        axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=_RAMP(norm(log2(factor))), lw=0))
        axes.text(x, y, f"× {max(factor, 1 / factor):.2f}", ha="center", va="center", color=_TEXT_COLOUR, fontsize=10)
        if not cell.agrees:
            axes.plot(x + 0.34, y - 0.34, "x", ms=8, mew=2, color=_TEXT_COLOUR)
    axes.set(xlim=(-0.5, len(rails) - 0.5), ylim=(len(domains) - 0.5, -0.5), aspect="equal")
    axes.set_xticks(range(len(rails)), [percent(load, 0) for load in rails])
    axes.set_yticks(range(len(domains)), [percent(load, 0) for load in domains])
    axes.set_xlabel("rail of the source")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    style.quiet(axes)


def _alt(cells: Sequence[Cell], name: str) -> str:
    alt_text = "; ".join(
        f"{c.scene.name}: {c.measured}{'' if c.agrees else f', but the papers say {c.predicted}'}" for c in cells
    )
    return f"Which way has the lower latency, {name}. {alt_text}"
