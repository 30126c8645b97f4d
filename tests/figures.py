"""Figures of a report without shapes: their layout and drawing take most of the time of a report."""

from html import escape

from matplotlib.figure import Figure
from matplotlib.text import Text

from railyard.experiments.predict.output import Predicted
from railyard.results.plots import style
from railyard.results.plots.style import Plot


def as_text(figure: Figure, name: str, alt: str, caption: str = "") -> Plot:
    """In place of `style.finish`."""
    return Plot(f'<svg role="img" aria-label="{escape(alt)}">{escape(words_of(figure))}</svg>', alt, caption)


def words_of(figure: Figure) -> str:
    """Return all texts of a figure that was not laid out."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def words_as_png(prediction: Predicted) -> bytes:
    """In place of `Predicted.to_png`: draw the figure without its layout, and return its words."""
    with style.styled():
        return words_of(prediction.draw()).encode()
