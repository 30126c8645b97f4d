"""Look of every figure, and its SVG inside the report.

Colours are Okabe and Ito's, which colour-blind readers can distinguish. Text and axes are drawn in a colour that is
replaced by `currentColor`, and gaps between shapes in one replaced by `var(--card)`: so a figure follows the page
into the dark.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure

from railyard.results.format import rate, seconds, short
from railyard.results.plots.svg import compact

# Matplotlib has read a matplotlibrc in the working folder, which may be anybody's, as in /tmp
mpl.rcdefaults()
INK: Final = "#101112"
PAPER: Final = "#fdfdfe"
# visible on white and on black as lines and shapes; too pale for text
MUTED: Final = "#7f8385"
GRID: Final = "#9a9ea155"
BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW, GREY = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#d9c400", "#8a8f94",
)  # fmt: skip
SERIES: Final = (BLUE, ORANGE, PINK, SKY, YELLOW, GREY, GREEN, VERMILION)
"""Colours of fabrics. Green and vermilion are last: they also stand for repair and fault, for ok and invalid."""
HATCHES: Final = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "oo", "++")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: Final = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (9, 3)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)))
KINDS: Final = {"TP": "#6a5ed0", "PP": "#44aa99", "DP": "#ddcc77", "EP": "#cc6677", "collective": "#88ccee"}
"""Colours of kinds of traffic (`Phase.kind`), after Paul Tol, whose indigo is too dark on dark paper; any other kind
takes a free one, see kind_colours.
"""
_OTHER_KINDS: Final = ("#999933", "#882255", "#aa4499", "#117733", "#dddddd")
# from the first rail to the last; their contrast is 3:1 on dark paper too
RAIL_SHADES: Final = ("#8ec6ea", "#2b7bb0")
DOMAIN: Final = "#b0741a"  # outlines of HB domains
RAIL_PAIRS: Final = "#a8329e"  # outlines of pairs of one rail
WIDTH: Final = 10.0  # inches; the page scales it

_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    # a name with dollar signs is no formula
    "text.parse_math": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "railyard",
}
_FONTS: Final = "'DejaVu Sans', Verdana, 'Segoe UI', sans-serif"


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure as the page takes it: `alt` says in words what it shows, for those who don't see it."""

    svg: str
    alt: str
    caption: str = ""


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Return a colour for each kind of traffic, in the order in which figures show them: known ones first."""
    distinct_kinds = dict.fromkeys(kinds)
    colours: dict[str, str] = {}
    for kind, colour in KINDS.items():
        if kind in distinct_kinds:
            colours[kind] = colour
    free_colours = cycle(_OTHER_KINDS)
    for kind in distinct_kinds:
        if kind not in KINDS:
            colours[kind] = next(free_colours)
    return colours


def ink_on(colour: str) -> str:
    """Return black or white, whichever has the higher contrast on a colour (WCAG 2.2, relative luminance)."""
    luminance = 0.0
    for weight, value in zip((0.2126, 0.7152, 0.0722), to_rgb(colour), strict=True):
        linear = value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        luminance += weight * linear
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def shade(ends: tuple[str, str], number: int, count: int) -> str:
    """Return the colour of one of `count` like elements, between two ends."""
    return to_hex(LinearSegmentedColormap.from_list("shades", ends)(number / max(1, count - 1)))


def styled() -> AbstractContextManager[None]:
    """Give figures made and written inside the common style; nothing else is changed."""
    return mpl.rc_context(_STYLE)


@contextmanager
def drawing(height: float, width: float = WIDTH) -> Iterator[Figure]:
    """Yield an empty figure of the common style, in inches."""
    with styled():
        yield new_figure(width, height)


def new_figure(width: float, height: float) -> Figure:
    """Return a figure, in inches, without global state or a window."""
    return Figure(figsize=(width, height), layout="constrained")


def finish(figure: Figure, name: str, alt: str, caption: str = "") -> Plot:
    """Return the figure as SVG to stand inside an HTML page; `name` keeps its ids apart from other figures'."""
    # Lay out once, and round: the solver's last bits differ from time to time, and ids are hashes of positions.
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    for axes in figure.axes:
        x, bottom, width, height = (round(float(v), 6) for v in axes.get_position(original=True).bounds)
        axes.set_position((x, bottom, width, height), which="original")
    sink = io.StringIO()
    # not savefig, which draws twice: the first time to lay out
    FigureCanvasSVG(figure).print_svg(sink, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": alt, "font-family": _FONTS}
    text = compact(sink.getvalue(), prefix, attributes)
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--card, #fff)")
    return Plot(text, alt, caption)


def top_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Draw a legend in one line above a figure, at its right."""
    figure.legend(handles=handles, loc="outside upper right", ncols=max(1, len(handles)))


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each fabric, the same in every figure."""
    return dict(zip(names, cycle(SERIES), strict=False))


def hatches(names: Sequence[str]) -> dict[str, str]:
    """Return a hatch for each fabric, a second channel beside its colour."""
    return dict(zip(names, cycle(HATCHES), strict=False))


def markers(names: Sequence[str]) -> dict[str, str]:
    """Return a marker for each fabric, a second channel beside its colour."""
    return dict(zip(names, cycle(MARKERS), strict=False))


def dashes(names: Sequence[str]) -> dict[str, Any]:
    """Return a line style for each line, a second channel beside its colour."""
    return dict(zip(names, cycle(DASHES), strict=False))


def quiet(axes: Axes, grid: Literal["", "x", "y"] = "", **properties: Any) -> None:
    """No ticks, and a grid only along `grid` ("x", "y" or neither); and properties of the axes, such as `xlabel`."""
    axes.set(**properties)
    axes.tick_params(length=0)
    if grid:
        axes.grid(axis=grid)


def seconds_tick(value: float, _: float = 0) -> str:
    """Return the label of a tick in seconds."""
    if not value:
        return "0"
    return short(seconds(value))


def rate_tick(value: float, _: float = 0) -> str:
    """Return the label of a tick in bit/s."""
    if not value:
        return "0"
    return short(rate(value))


def log2_ticks(axes: Axes, ticks: Sequence[int]) -> None:
    """Scale the horizontal axis by powers of two, with these ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, list(map("{:,}".format, ticks)))
