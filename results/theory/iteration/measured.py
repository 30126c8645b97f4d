"""Published iteration times, and what the model says of each: the fit, the tables and Fig. 7 read the same rows."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, cast

from railyard.results.theory.iteration.arrays import Strategies, place_strategy
from railyard.results.theory.iteration.flops import Recompute, hardware_flops
from railyard.results.theory.iteration.iteration_time import iteration_time
from railyard.results.theory.iteration.job import Job, Recipe, make_cluster
from railyard.workloads.models.catalogue import load_gpt

ROWS: Final = Path(__file__).parent / "measured.csv"
PLATFORM: Final = "a100"


@dataclass(frozen=True, slots=True)
class Measured:
    """A published row, of the table `korthikanti` or `megatron`. `fitted`: one of those that the constants are from."""

    table: str
    model: str
    recipe: Recipe
    seconds: float
    hfu_pct: float | None
    fitted: bool

    @property
    def mode(self) -> str:
        return "selective + SP" if self.recipe.sequence_parallel else self.recipe.recompute


@cache
def measured() -> tuple[Measured, ...]:
    """Every row of measured.csv, in its order."""
    lines = ROWS.read_text().splitlines()[1:]  # the first is the source
    return tuple(_read(row) for row in csv.DictReader(lines))


def _read(row: dict[str, str]) -> Measured:
    batch = load_gpt(row["model"]).training.global_batch
    recipe = Recipe(batch, cast(Recompute, row["recompute"]), row["sequence_parallel"] == "yes")
    hfu = float(row["hfu_pct"]) if row["hfu_pct"] else None
    return Measured(row["table"], row["model"], recipe, float(row["seconds"]), hfu, row["use"] == "fit")


def as_job(row: Measured) -> tuple[Job, Strategies]:
    """The row's job, on DGX A100, and the strategy that it was measured with."""
    model = load_gpt(row.model)
    cluster = make_cluster(PLATFORM, model.training.gpus, min(model.domain_gpus, model.training.gpus))
    strategy = place_strategy(model.training, cluster.domain_gpus)
    return Job(model, row.recipe, cluster), Strategies.one(strategy, row.recipe.global_batch)


def predicted_s(row: Measured) -> float:
    """Seconds by Eq. 6 and the fitted constants."""
    return float(iteration_time(*as_job(row)).total_s[0])


def hfu_pct(row: Measured, seconds: float) -> float:
    """Hardware FLOPs utilisation, percent: FLOPs as Korthikanti Eq. 8 counts them over what the GPUs could do."""
    job, _ = as_job(row)
    done = hardware_flops(job.model, row.recipe.recompute, row.recipe.global_batch)
    return 100 * done / (seconds * job.cluster.gpus * job.cluster.flops)
