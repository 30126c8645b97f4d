"""Figures that a step's time gives: tokens per second, MFU, and days to a number of tokens."""

from dataclasses import dataclass
from typing import Final

from railyard.core.errors import BadInput
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import Recipe
from railyard.workloads.models.transformer import Transformer

DAY_S: Final = 86_400
_UNITS: Final = {"M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Answer:
    """Figures of a job whose step takes some time.

    tokens_per_gpu: tokens of a second, per GPU
    mfu_pct: model FLOPs (forward and backward, both halves of attention, nothing computed again; Korthikanti et al.
        2022, Eq. 7) over what the GPUs could do at the peak of the number format, percent
    """

    tokens_per_gpu: float
    mfu_pct: float


def answer(model: Transformer, recipe: Recipe, hardware: Hardware, seconds: float) -> Answer:
    """Return the figures of a step of `seconds`."""
    tokens = recipe.global_batch * model.sequence
    model_flops = 3 * recipe.global_batch * model.forward_flops(model.sequence)
    peak_flops = seconds * hardware.gpus * hardware.precise_flops
    return Answer(tokens / seconds / hardware.gpus, 100 * model_flops / peak_flops)


def days(model: Transformer, recipe: Recipe, tokens: float, seconds: float) -> float:
    """Return the days that `tokens` take at steps of `seconds`, without any failure."""
    return tokens / (recipe.global_batch * model.sequence) * seconds / DAY_S


def parse_tokens(text: str) -> float:
    """Return a number of tokens such as 15T, 300B or 2e12. BadInput for anything else."""
    unit = text[-1:].upper()
    number = text[:-1] if unit in _UNITS else text
    try:
        tokens = float(number) * _UNITS.get(unit, 1)
    except ValueError:
        tokens = 0.0
    if not 0 < tokens < 1e18:
        raise BadInput("tokens", text, "must be a number of tokens, such as 15T, 300B or 2e12")
    return tokens
