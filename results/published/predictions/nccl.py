"""Times of NCCL's AllReduce, measured and predicted, by platform (public outputs of nccl-tests)."""

from typing import Final

import matplotlib.figure
import numpy as np

from railyard.results.plots.style import SERIES, log2_ticks, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.collectives.fit import MeasuredCollective, errors, measured

BAR_PCT: Final = 6.0
TICKS: Final = (2**20, 2**23, 2**26, 2**29, 2**32)
NOTES: Final = {
    "2": "by trees below 1 GiB, and by rings from there on",
    "7": "its fitted row of 16 MiB took longer than the one of 32 MiB",
}
"""What sets the rows of a source, by its number, apart."""


def figure() -> Figure:
    """A row for each row of measured.csv."""
    rows = measured()
    errors_pct = 100 * errors(rows)
    table: list[tuple[Cell, ...]] = []
    for row, error_pct in zip(rows, errors_pct.tolist(), strict=True):
        predicted_s = row.seconds * (1 + error_pct / 100)
        place = (row.source, row.platform, row.x * row.y, row.y, row.size)
        table.append((*place, 1e6 * row.seconds, 1e6 * predicted_s, error_pct, row.use))
    return Figure(
        title="NCCL's AllReduce, measured and predicted",
        source="public outputs of nccl-tests",
        columns=("source", "platform", "gpus", "domains", "bytes", "measured_us", "predicted_us", "error_pct", "use"),
        rows=table,
        draw=lambda drawn: _draw(drawn, rows, errors_pct),
        claims=_claims(rows, errors_pct),
        notes=(
            "sources, by number: results/theory/collectives/measured.csv",
            "half of the rows of each source are fitted, the other half is held out",
            "out of place, float, from 1 MiB on; `predict busbw` prints the prediction in nccl-tests' columns",
        ),
        inches=(9.0, 4.5),
    )


def _claims(rows: tuple[MeasuredCollective, ...], errors_pct: np.ndarray) -> tuple[Claim, ...]:
    """Return the mean error of the rows that aren't fitted, of each source and of all."""
    claims: list[Claim] = []
    for source in dict.fromkeys(row.source for row in rows):
        tested = [number for number, row in enumerate(rows) if row.source == source and row.use != "fit"]
        first = rows[tested[0]]
        gpus = sorted({rows[number].x * rows[number].y for number in tested})
        sizes = ", ".join(map(str, gpus))
        label = f"mean error of {len(tested)} rows not fitted, {first.platform}, {sizes} GPUs (source {source})"
        mean_pct = float(np.mean(np.abs(errors_pct[tested])))
        note = NOTES.get(source, "")
        claims.append(Claim(label, BAR_PCT, mean_pct, "%", bound="at most", note=note, stated="our bar"))
    held_out = [number for number, row in enumerate(rows) if row.use != "fit"]
    label = f"mean error of all {len(held_out)} rows not fitted"
    mean_pct = float(np.mean(np.abs(errors_pct[held_out])))
    claims.append(Claim(label, BAR_PCT, mean_pct, "%", bound="at most", stated="our bar"))
    return tuple(claims)


def _draw(drawn: matplotlib.figure.Figure, rows: tuple[MeasuredCollective, ...], errors_pct: np.ndarray) -> None:
    axes = drawn.subplots()
    for colour, source in zip(SERIES * 2, dict.fromkeys(row.source for row in rows), strict=False):
        numbers = [number for number, row in enumerate(rows) if row.source == source and row.use != "fit"]
        first = rows[numbers[0]]
        label = f"{first.platform}, {first.y} HB domain{'s' * (first.y > 1)} (source {source})"
        axes.plot([rows[number].size for number in numbers], errors_pct[numbers], ".", color=colour, label=label)
    log2_ticks(axes, TICKS)
    axes.axhspan(-BAR_PCT, BAR_PCT, color=SERIES[0], alpha=0.1)
    axes.legend(fontsize=8)
    quiet(axes, "y", xlabel="size, bytes", ylabel="predicted over measured, rows not fitted, %")
