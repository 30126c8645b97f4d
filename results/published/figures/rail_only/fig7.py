"""HFU, predicted and measured (Rail-only Fig. 7, Korthikanti Table 5)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import matplotlib.figure

from railyard.results.plots.style import BLUE, GREY, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.iteration.fit import Measured, hfu_pct, leave_model_out_s, measured, predicted_s

# Rail-only V-A: percent between its own model and the ground truth
CLAIMED: Final = {"gpt-1t": 1.8, "gpt-22b": 10.8}


def figure() -> Figure:
    """The four rows of Korthikanti Table 5 for which HFU is given."""
    rows = [(row, row.hfu_pct) for row in measured() if row.hfu_pct is not None]
    table: list[tuple[Cell, ...]] = []
    claims: list[Claim] = []
    errors_pct: list[float] = []  # from the smallest model to the largest
    for row, hfu in rows:
        predicted_pct = hfu_pct(row, predicted_s(row))
        error_pct = 100 * (predicted_pct / hfu - 1)
        left_out_pct = 100 * (hfu_pct(row, leave_model_out_s(row)) / hfu - 1)
        errors_pct.append(abs(left_out_pct))
        use = "fitted" if row.fitted else "held out"
        table.append((row.model, hfu, predicted_pct, error_pct, use, left_out_pct))
        if row.model in CLAIMED:
            name = f"HFU of {row.model}, off by"
            note = f"with the constants fitted on other shapes; fitted on this row among others, {error_pct:+.1f}%"
            claims.append(Claim(name, CLAIMED[row.model], abs(left_out_pct), "%", bound="at most", note=note))
    # in the order in which the paper has them: the largest model first
    claims.sort(key=lambda claim: claim.published)
    claims.append(_growing_errors(errors_pct))
    return Figure(
        title="HFU, predicted and measured",
        source="Rail-only Fig. 7, Korthikanti Table 5",
        columns=("model", "published_hfu_pct", "predicted_hfu_pct", "error_pct", "rows_use", "left_out_error_pct"),
        rows=table,
        draw=lambda drawn: _draw(drawn, rows),
        claims=tuple(claims),
        notes=(
            "errors are relative to the published HFU",
            "FLOPs as Korthikanti Eq. 8 counts them, so that HFU compare; it has 24 s^2 h for attention with selective "
            "recomputation, where the parts add up to 16, and the times use 16",
        ),
    )  # fmt: skip


def _growing_errors(errors_pct: Sequence[float]) -> Claim:
    """V-A: the error goes up as models get smaller. `errors_pct`: from the smallest model to the largest."""
    count = 0
    for smaller, larger in pairwise(errors_pct):
        count += smaller > larger
    note = "with the constants fitted on other shapes, so that the largest and the smallest model are extrapolations"
    steps = len(errors_pct) - 1
    return Claim("steps to a smaller model with a larger error", steps, count, f"of {steps} steps", note=note)


def _draw(drawn: matplotlib.figure.Figure, rows: list[tuple[Measured, float]]) -> None:
    axes = drawn.subplots()
    measured_pct = {i: hfu for i, (_, hfu) in enumerate(rows)}
    fitted: dict[int, float] = {}
    held_out: dict[int, float] = {}
    for number, (row, _) in enumerate(rows):
        heights_of_use = fitted if row.fitted else held_out
        heights_of_use[number] = hfu_pct(row, predicted_s(row))
    for shift, colour, hatch, label, heights in (
        (-0.2, GREY, "", "measured", measured_pct),
        (0.2, BLUE, "", "predicted, row held out of the fit", held_out),
        (0.2, BLUE, "//", "predicted, row fitted", fitted),
    ):
        at = [i + shift for i in heights]
        bars = axes.bar(at, list(heights.values()), 0.38, color=colour, label=label, hatch=hatch, edgecolor="white")
        axes.bar_label(bars, fmt="%.1f", padding=2)
    axes.set_xticks(range(len(rows)), [row.model for row, _ in rows])
    axes.legend(loc="upper left", ncols=3)
    # the limit leaves room for the legend
    quiet(axes, "y", ylabel="HFU, %", ylim=(0, 75))
