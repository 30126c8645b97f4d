"""Measured training steps of 2021 to 2026 beside the model's predictions, fitted rows and rows held out."""

from collections.abc import Sequence
from typing import Final

import matplotlib.figure

from railyard.results.plots.style import BLUE, ORANGE, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.step.holdout.report import Errors, PredictedStep, errors_by, predicted_steps
from railyard.results.theory.step.holdout.rows import MeasuredStep, measured_steps
from railyard.results.theory.step.interval import COVERAGE

COLUMNS: Final = (
    "source", "model", "platform", "precision", "gpus", "measured_s", "predicted_s", "low_s", "high_s", "fitted",
)  # fmt: skip
BARS: Final = {
    "A100, GPT of 2021/22": 6.0,
    "H100 bf16": 5.0,
    "H100 fp8": 8.0,
    "A100, MPT with FSDP, s <= 4,096": 10.0,
    "A100, MPT with FSDP, longer": 15.0,
}
"""Mean errors to reach, percent, by regime."""
BRIDGE_BARS: Final = {"dense": 12.0, "MoE": 18.0}
"""The same of Megatron-Bridge's rows, for each release."""
REASONS: Final = {
    "A100, GPT of 2021/22": (
        "one row of 9.84 s takes half as long with half the micro-batch, and six of t = 2 and 4 took 20 to 38% longer "
        "than jobs that differ in one number"
    ),
}


def figure() -> Figure:
    """Every row of measured.csv."""
    steps = predicted_steps()
    by_row = {id(step.row): step for step in steps}
    cells = [_cells(row, by_row.get(id(row))) for row in measured_steps()]
    regimes = errors_by(steps, lambda row: row.regime)
    return Figure(
        title="Measured training steps, and predicted ones",
        source="results/theory/step/holdout/measured.csv",
        columns=COLUMNS,
        rows=cells,
        draw=lambda drawn: _draw(drawn, steps),
        claims=tuple(_claims(regimes)),
        notes=tuple(_notes(steps, regimes)),
    )


def _cells(row: MeasuredStep, step: PredictedStep | None) -> tuple[Cell, ...]:
    """Return a row of holdout.csv."""
    source = f"{row['table']} {row['release']} {row['source']}".replace("  ", " ")
    job: tuple[Cell, ...] = (source, row["model"], row["platform"], row["precision"], int(row["gpus"]), row.seconds)
    times: tuple[Cell, ...] = (None, None, None)
    if step is not None:
        times = (step.predicted_s, step.low_s, step.high_s)
    return (*job, *times, {"fit": "fitted"}.get(row["use"], row["use"]))


def _claims(regimes: Sequence[Errors]) -> list[Claim]:
    """Return the mean error of each regime that has a bar."""
    claims: list[Claim] = []
    for errors in regimes:
        bar = BARS.get(errors.group)
        if errors.group.startswith("Megatron-Bridge"):
            bar = BRIDGE_BARS[errors.group.rpartition(" ")[2]]
        if bar is not None:
            name = f"mean error, {errors.group}, {errors.rows} rows"
            note = REASONS.get(errors.group, "") if errors.mean > bar else ""
            claims.append(Claim(name, bar, errors.mean, "%", bound="at most", note=note, stated="our bar"))
    return claims


def _notes(steps: Sequence[PredictedStep], regimes: Sequence[Errors]) -> list[str]:
    """Return the errors by regime, platform and number format, and how often intervals hold the measured time."""
    held_out = [step for step in steps if not step.row.fitted]
    inside = sum(step.is_inside for step in held_out)
    notes = [_sentence(errors) for errors in regimes]
    notes += [_sentence(errors) for errors in errors_by(held_out, _platform_and_precision)]
    notes.append(
        f"intervals are to hold {COVERAGE:.0%} of measured times; they hold {inside} of the {len(held_out)} held out "
        f"({inside / len(held_out):.0%}), each judged by rows of other models"
    )
    return notes


def _platform_and_precision(row: MeasuredStep) -> str:
    return f"held out, {row['platform']} {row['precision']}"


def _sentence(errors: Errors) -> str:
    return (
        f"{errors.group}: {errors.rows} rows, mean {errors.mean:.1f}%, median {errors.median:.1f}%, "
        f"worst {errors.worst:.1f}%, bias {errors.bias:+.1f}%"
    )


def _draw(drawn: matplotlib.figure.Figure, steps: Sequence[PredictedStep]) -> None:
    axes = drawn.subplots()
    for fitted, colour, label in ((True, BLUE, "fitted"), (False, ORANGE, "held out")):
        chosen = [step for step in steps if step.row.fitted == fitted]
        measured = [step.row.seconds for step in chosen]
        predicted = [step.predicted_s for step in chosen]
        axes.scatter(measured, predicted, color=colour, label=label, s=8)
    axes.plot([0.3, 400], [0.3, 400], color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("predicted time of a step, s")
    drawn.legend(loc="outside right upper")
    quiet(axes, xlabel="measured time of a step, s")
