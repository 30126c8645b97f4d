"""Times by policy, and latency of rail-only's path beside the spine's, in figures."""

from collections.abc import Sequence
from math import log2
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from railyard.experiments.measures.steering.analysis import BASELINE_POLICY, ORACLE_POLICY, FabricWorkload, PolicyRow
from railyard.experiments.measures.steering.spine_condition import Cell
from railyard.experiments.measures.workloads.report.plots import PREDICTED_MARK, draw_times, time_text
from railyard.results.analysis.aggregate import Spread
from railyard.results.format import percent, workload_label
from railyard.results.plots import style
from railyard.workloads.background.spec import GridSpec

POLICY_COLOURS: Final = {BASELINE_POLICY: style.GREY, ORACLE_POLICY: style.YELLOW}


def policies(rows: Sequence[PolicyRow], fabric_workload: FabricWorkload) -> style.Plot:
    """A bar a policy, its length the median; dots are the repeats, the upright mark is predicted."""
    fabric, work = fabric_workload
    name = f"{workload_label(work)} on {fabric}"
    with style.drawing(1.0 + 0.36 * len(rows)) as figure:
        axes = figure.subplots()
        axes.set_yticks(range(len(rows)), [row.policy for row in rows])
        handles: list[Patch | Line2D] = []
        for y, row in enumerate(rows):
            look = {"color": POLICY_COLOURS.get(row.policy, style.SKY)}
            note = ""
            if _is_compared(row):
                note = f" · {BASELINE_POLICY} / this {row.over_dr:.2f}"
            draw_times(axes, y, 0.62, look, Spread(row.times, row.predicted), ("", row.policy), note)
            if row.policy in POLICY_COLOURS:
                colour = POLICY_COLOURS[row.policy]
                axes.axvline(row.median, color=colour, lw=1.2, ls=(0, (4, 3)), zorder=0.5)
                axes.get_yticklabels()[y].set_fontweight("bold")
                handles.append(Patch(color=colour, label=row.policy))
        if any(len(row.times) > 1 for row in rows):
            repeat: dict[str, Any] = {"marker": "o", "ms": 4, "mfc": style.PAPER, "mec": style.INK}
            handles.append(Line2D([], [], ls="none", label="a repeat", **repeat))
        if any(row.predicted for row in rows):
            handles.append(PREDICTED_MARK)
        style.top_legend(figure, handles)
        axes.set(ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlim(0, axes.get_xlim()[1] * 1.16)
        axes.xaxis.set_major_formatter(style.seconds_tick)
        style.quiet(axes, grid="x")
        alt_text = "; ".join(map(_row_text, rows))
        return style.finish(figure, f"policies-{name}", f"Times of {name} by policy. {alt_text}")


def _is_compared(row: PolicyRow) -> bool:
    """Return whether a row shows how much longer dr takes."""
    return row.over_dr is not None and row.policy != BASELINE_POLICY


def _row_text(row: PolicyRow) -> str:
    """Return the times of a policy in words."""
    text = f"{row.policy} {time_text(row.median, row.predicted)}"
    if _is_compared(row):
        text += f", {BASELINE_POLICY} takes {row.over_dr:.2f} times as long"
    return text


# the middle colour stays light on a dark page: there neither way is better
_RAMP: Final = LinearSegmentedColormap.from_list("ways", (style.VERMILION, "#f2f3f4", style.GREEN))
_TEXT_COLOUR: Final = "#111111"
_MAX_LOG2_RATIO: Final = 3.0  # factors of two at which the colour is full


def spine_condition(cells: Sequence[Cell], name: str) -> style.Plot:
    """One pair's cells. Green: rail-only's way is sooner there; red: the spine's. A cross: the papers say otherwise."""
    grid = cells[0].scene.grid
    alt_text = f"Which way has the lower latency, {name}. {'; '.join(map(_cell_text, cells))}"
    spines = _loads(grid, grid.spine)
    columns = max(3, len(spines))
    with style.drawing(0.9 + style.WIDTH / columns) as figure:
        panels = figure.subplots(1, columns, squeeze=False, sharey=True)[0]
        for axes in panels[len(spines) :]:
            axes.set_visible(False)
        for axes, spine in zip(panels, spines, strict=False):
            spine_cells = [cell for cell in cells if cell.scene.spine == spine]
            _draw_scenes(axes, grid, spine_cells)
            title = ""
            if grid.spine:
                title = f"spines {percent(spine, 0)}"
            style.quiet(axes, xlabel="rail of the source", title=title)
        panels[0].set_ylabel("HB domain of the source")
        cross: dict[str, Any] = {"ls": "none", "marker": "x", "ms": 8, "mew": 2, "color": style.INK}
        handles = [
            Patch(color=style.GREEN, label="rail-only's way is sooner"),
            Patch(color=style.VERMILION, label="the spine's is"),
            Line2D([], [], **cross, label="the papers' condition disagrees"),
        ]
        style.top_legend(figure, handles)
        caption = "In each cell: the slower way's latency over the other's."
        return style.finish(figure, f"rail-only-{name}", alt_text, caption)


def _loads(grid: GridSpec, is_varied: object) -> tuple[float, ...]:
    """Return the loads of an element over the scenes of a grid; 0 alone if the grid doesn't load it."""
    return grid.loads if is_varied else (0.0,)


def _load_texts(loads: Sequence[float]) -> list[str]:
    """Return loads as percentages."""
    return [percent(load, 0) for load in loads]


def _cell_text(cell: Cell) -> str:
    """Return the faster way in a scene in words."""
    text = f"{cell.scene.name}: {cell.measured}"
    if not cell.agrees:
        text += f", but the papers say {cell.predicted}"
    return text


def _draw_scenes(axes: Axes, grid: GridSpec, cells: Sequence[Cell]) -> None:
    """Draw the cells of one load of the spines: rails across, HB domains down."""
    rails = _loads(grid, grid.rails)
    domains = _loads(grid, grid.domains)
    norm = Normalize(-_MAX_LOG2_RATIO, _MAX_LOG2_RATIO, clip=True)
    for cell in cells:
        x = rails.index(cell.scene.rail)
        y = domains.index(cell.scene.domain)
        factor = cell.latency["spine"] / cell.latency["rail-only"]
        # factors, so that half and twice as long are equally far from even
        axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=_RAMP(norm(log2(factor))), lw=0))
        text = f"× {max(factor, 1 / factor):.2f}"
        axes.text(x, y, text, ha="center", va="center", color=_TEXT_COLOUR, fontsize=10)
        if not cell.agrees:
            axes.plot(x + 0.34, y - 0.34, "x", ms=8, mew=2, color=_TEXT_COLOUR)
    axes.set(xlim=(-0.5, len(rails) - 0.5), ylim=(len(domains) - 0.5, -0.5), aspect="equal")
    axes.set_xticks(range(len(rails)), _load_texts(rails))
    axes.set_yticks(range(len(domains)), _load_texts(domains))
    axes.spines[["left", "bottom"]].set_visible(False)
