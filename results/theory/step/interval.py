"""Intervals of predicted times, from the errors of measured steps that nothing was fitted on.

An interval is to hold four of five steps of the job's class: the same generation of GPUs, number format, dense or
MoE, and FSDP or not. Rows of one model are alike, so each model counts as much as any other, however many rows it has.
A class with too few models takes those of its generation, and then all.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from railyard.results.theory.step.holdout.rows import MeasuredStep, measured_steps, predicted_s
from railyard.workloads.models.transformer import Transformer

COVERAGE: Final = 0.8
TAIL: Final = (1 - COVERAGE) / 2
"""Share of rows beyond each bound."""
MIN_MODELS: Final = 5
GENERATIONS: Final = {
    "a100": "A100",
    "h100": "H100",
    "h200": "H100",
    "h800": "H100",
    "gh200": "H100",
    "b200": "Blackwell",
    "b300": "Blackwell",
    "gb200-nvl72": "Blackwell",
    "gb300-nvl72": "Blackwell",
}


@dataclass(frozen=True, slots=True)
class JobClass:
    """Properties that a job shares with measured steps. generation: of GPUs; empty for those never measured."""

    generation: str
    precision: str
    is_moe: bool
    is_fsdp: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors on a predicted time, and the measured steps that they are from: how many, of how
    many models, and of which class."""

    low: float
    high: float
    rows: int
    models: int
    of: str


@dataclass(frozen=True, slots=True)
class _Residual:
    """The logarithm of measured over predicted time of a step that was held out."""

    model: str
    job_class: JobClass
    value: float


def job_class(platform: str, precision: str, is_moe: bool, is_fsdp: bool) -> JobClass:
    """Return the class of a job on a platform."""
    return JobClass(GENERATIONS.get(platform, ""), precision, is_moe, is_fsdp)


def class_of_row(row: MeasuredStep) -> JobClass:
    """Return the class of a measured step."""
    return job_class(row["platform"], row["precision"], row.is_moe, row.recipe.zero == 3)


@cache
def _residuals() -> tuple[_Residual, ...]:
    """Return those of all rows that were held out and can be predicted."""
    residuals: list[_Residual] = []
    for row in measured_steps():
        if row.can_be_predicted and not row.fitted:
            value = math.log(row.seconds / predicted_s(row))
            residuals.append(_Residual(row["model"], class_of_row(row), value))
    return tuple(residuals)


def interval_of(wanted: JobClass, without_model: str = "") -> Interval:
    """Return the interval of a class. `without_model`: a model whose rows are left out, to judge its own rows."""
    # rows of the same model are alike, so they would make their own interval too narrow
    residuals = [residual for residual in _residuals() if residual.model != without_model]
    alike = [r for r in residuals if r.job_class.is_moe == wanted.is_moe]
    same_sharding = [r for r in alike if r.job_class.is_fsdp == wanted.is_fsdp]
    same_generation = [r for r in same_sharding if r.job_class.generation == wanted.generation]
    sharding = "with FSDP" if wanted.is_fsdp else "without FSDP"
    groups = (
        (f"same GPUs, number format and kind of model, {sharding}", [r for r in residuals if r.job_class == wanted]),
        (f"same GPUs and kind of model, {sharding}", same_generation),
        (f"same kind of model on any GPUs, {sharding}", same_sharding),
        ("same kind of model on any GPUs", alike),
        ("any model on any GPUs", residuals),
    )
    for name, rows in groups:
        models = {row.model for row in rows}
        if len(models) >= MIN_MODELS:
            low, high = _quantiles(rows, len(models))
            return Interval(math.exp(low), math.exp(high), len(rows), len(models), name)
    raise ValueError("too few measured steps")


def _quantiles(rows: Sequence[_Residual], models: int) -> tuple[float, float]:
    """Return the bounds between which a row of another model is to lie.

    Quantiles over rows whose weights add up to 1 for each model, further out the fewer models there are: a new one is
    as likely below all others as between any two neighbours.
    """
    counts = Counter(row.model for row in rows)
    ordered = sorted(rows, key=lambda row: row.value)
    weights = np.cumsum([1 / counts[row.model] / models for row in ordered])
    tail = max(0.0, TAIL - 1 / (models + 1) / 2)
    low = int(np.searchsorted(weights, tail))
    high = int(np.searchsorted(weights, 1 - tail))
    last = len(ordered) - 1
    return ordered[min(low, last)].value, ordered[min(high, last)].value


def outside_of_measured(job: JobClass, platform: str, model: Transformer, gpus: int) -> list[str]:
    """Return in which respects no measured step of the same kind of model is like a job, a sentence each.

    Sizes are compared with steps on the platform, or on any where none was measured.
    """
    kind = "dense model"
    if job.is_moe:
        kind = "mixture of experts"
    sharding = "without FSDP"
    if job.is_fsdp:
        sharding = "with FSDP"
    alike = [row for row in measured_steps() if row.can_be_predicted and row.is_moe == job.is_moe]
    rows = [row for row in alike if row["platform"] == platform]
    if not rows:
        return [f"no step of a {kind} on {platform} was measured", *_beyond(alike, model, gpus, kind)]
    place = f"{kind} on {platform}"
    reasons: list[str] = []
    if job.precision not in {row["precision"] for row in rows}:
        reasons.append(f"no step of a {place} in {job.precision} was measured")
    if job.is_fsdp not in {class_of_row(row).is_fsdp for row in rows}:
        reasons.append(f"no step of a {place} {sharding} was measured")
    return [*reasons, *_beyond(rows, model, gpus, place)]


def _beyond(rows: Sequence[MeasuredStep], model: Transformer, gpus: int, place: str) -> list[str]:
    """Return which sizes of a job are beyond those of measured steps, a sentence each."""
    reasons: list[str] = []
    longest = max(int(row["sequence"]) for row in rows)
    if model.sequence > longest:
        reasons.append(f"the longest measured sequence of a {place} is {longest:,}")
    most_gpus = max(int(row["gpus"]) for row in rows)
    if gpus > most_gpus:
        reasons.append(f"the most measured GPUs of a {place} are {most_gpus:,}")
    largest = max(row.model.parameters for row in rows)
    if model.parameters > largest:
        reasons.append(f"the largest measured {place} has {largest / 1e9:,.0f} B parameters")
    return reasons
