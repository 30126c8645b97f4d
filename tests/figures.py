"""Figures of a report without shapes: their layout and drawing take most of the time of a report."""

from html import escape

from matplotlib.figure import Figure
from matplotlib.text import Text

from railyard.results.plots.style import Plot


def as_text(figure: Figure, name: str, alt: str, caption: str = "") -> Plot:
    """In place of `style.finish`."""
    words = " ".join(escape(text.get_text()) for text in figure.findobj(Text))
    return Plot(f'<svg role="img" aria-label="{escape(alt)}">{words}</svg>', alt, caption)
