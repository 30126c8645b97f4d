"""Iteration time of Korthikanti Table 5, row by row."""

from railyard.results.published.catalogue import Figure
from railyard.results.published.iteration_figures import Bar, table_figure


def figure() -> Figure:
    """Eight rows. The bars are ours, calculon's on the same table (Isaev et al. 2023), and Spine-free's (Fig. 7)."""
    bars = (Bar("our bar", 3.5, 8.0), Bar("calculon's", 3.65, 8.87), Bar("Spine-free's", 10.0))
    return table_figure("korthikanti", "Iteration time of four models on A100s", "Korthikanti Table 5", bars)
