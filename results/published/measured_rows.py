"""A table of published iteration times, row by row beside Eq. 6-11 with the constants fitted on part of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from railyard.results.plots.style import BLUE, ORANGE, quiet
from railyard.results.published.figure import Claim, Figure
from railyard.results.theory.iteration.constants import A100
from railyard.results.theory.iteration.fit import leave_model_out_s
from railyard.results.theory.iteration.measured import Measured, measured, predicted_s

if TYPE_CHECKING:
    import matplotlib.figure

COLUMNS: Final = ("model", "mode", "published_s", "predicted_s", "error_pct", "rows_use", "left_out_error_pct")
NOTES: Final = (
    "one set of three constants for the A100, fitted on the rows so marked in korthikanti and megatron together: "
    f"matmuls at {A100.matmul_efficiency:.1%} of the peak, HBM at {A100.memory_efficiency:.1%}, "
    f"{A100.overhead_flops / 1e9:.0f} GFLOP on top of each layer's pass",
    "left_out_error_pct, and the claims with every shape left out: with the constants fitted on all rows of both "
    "tables but those of this model's shape",
    "held out is weaker: the shapes of 530B and 1T are in both tables, held out in one and fitted in the other",
    "the 530B and 1T of both tables are the same job but for data parallelism, yet Megatron-LM's took 9 to 10% longer: "
    "no single set of constants can be near both",
)


LEFT_OUT: Final = (
    "constants fitted without the row's shape, in both tables: in Korthikanti's, 175B and 1T then come out too long, "
    "and 1T, the largest, is an extrapolation"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """The largest mean and worst error that meet it, percent; and whose it is."""

    stated_by: str
    mean: float
    worst: float | None = None


def error_pct(row: Measured) -> float:
    """Predicted over published, percent above."""
    return 100 * (predicted_s(row) / row.seconds - 1)


def left_out_pct(row: Measured) -> float:
    """The same, with constants that saw no row of this model's shape."""
    return 100 * (leave_model_out_s(row) / row.seconds - 1)


def table_figure(table: str, title: str, source: str, bars: Sequence[Bar]) -> Figure:
    """The rows of one table of measured.csv, beside each of `bars`."""
    rows = [row for row in measured() if row.table == table]
    held_out = fmean(abs(error_pct(row)) for row in rows if not row.fitted)
    return Figure(
        name=table,
        title=title,
        source=source,
        columns=COLUMNS,
        rows=[_cells(row) for row in rows],
        draw=lambda drawn: _draw(drawn, rows),
        claims=(
            *_claims("", [error_pct(row) for row in rows], bars),
            *_claims(", every shape left out of its own fit", [left_out_pct(row) for row in rows], bars, LEFT_OUT),
        ),
        notes=(f"mean error of the rows held out: {held_out:.1f}%", *NOTES),
    )


def _claims(which: str, errors: Sequence[float], bars: Sequence[Bar], reason: str = "") -> Iterator[Claim]:
    """`reason` stands where a bar is missed."""
    sizes = [abs(error) for error in errors]
    for bar in bars:
        for what, most, ours in (("mean", bar.mean, fmean(sizes)), ("worst", bar.worst, max(sizes))):
            if most is not None:
                note = reason if ours > most else ""
                yield Claim(f"{what} error{which}", most, ours, "%", bound="at most", note=note, stated=bar.stated_by)


def _use(row: Measured) -> str:
    return "fitted" if row.fitted else "held out"


def _cells(row: Measured) -> tuple[str | float, ...]:
    return row.model, row.mode, row.seconds, predicted_s(row), error_pct(row), _use(row), left_out_pct(row)


def _draw(drawn: "matplotlib.figure.Figure", rows: list[Measured]) -> None:
    axes = drawn.subplots()
    labels = [f"{row.model}, {row.mode}" for row in rows]
    for use, colour in (("fitted", BLUE), ("held out", ORANGE)):
        at = [i for i, row in enumerate(rows) if _use(row) == use]
        axes.barh(at, [error_pct(rows[i]) for i in at], color=colour, label=use, height=0.6)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("predicted over published iteration time, % above")
    drawn.legend(loc="outside right upper")
    quiet(axes, "x")
