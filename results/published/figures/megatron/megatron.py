"""Iteration time of Megatron-LM Table 1, row by row."""

from railyard.results.published.catalogue import Figure
from railyard.results.published.iteration_figures import Bar, table_figure


def figure() -> Figure:
    """Ten rows; times follow from the published FLOP/s. The bar is ours, there is no other's."""
    bars = (Bar("our bar", mean=6.0),)
    return table_figure("megatron", "Iteration time of ten models on A100s", "Megatron-LM Table 1", bars)
