"""Korthikanti et al. 2022, Table 5: iteration times of four models with two kinds of recomputation."""

from results.published.figure import Figure
from results.published.measured_rows import table_figure


def figure() -> Figure:
    """Eight rows. The bounds are calculon's on the same table (Isaev et al. 2023): 3.65% on average, 8.87% at worst."""
    return table_figure(
        "korthikanti", "Iteration time of four models on A100s", "Korthikanti Table 5", {"mean": 3.65, "worst": 8.87}
    )
