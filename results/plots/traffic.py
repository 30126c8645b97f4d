"""Matrices of bytes between pairs of GPUs, as images (Rail-only Fig. 2 to 5)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from railyard.results.format import size


def byte_limits(*matrices: NDArray[np.float64]) -> tuple[float, float]:
    """Return the least and the most bytes of any pair that has some."""
    sent = np.concatenate([total[total > 0] for total in matrices])
    return float(sent.min()), float(sent.max())


def byte_image(
    axes: Axes,
    total: NDArray[np.float64],
    ramp: Sequence[str],
    shrink: float,
    fontsize: float,
    limits: tuple[float, float] | None = None,
) -> Colorbar:
    """Draw a matrix of bytes, not all of them 0, in colours of a logarithmic scale; return its colour bar."""
    low, high = limits or byte_limits(total)
    # a single value still needs a scale with two ends
    norm = LogNorm(low / 2, high * 2) if low == high else LogNorm(low, high)
    colours = LinearSegmentedColormap.from_list("traffic", ramp)
    image = axes.imshow(np.ma.masked_equal(total, 0), cmap=colours, norm=norm, interpolation="none")
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, shrink=shrink, pad=0.02)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.tick_params(labelsize=fontsize)
    return bar
