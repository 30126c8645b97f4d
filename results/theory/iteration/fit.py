"""Published iteration times, the model's prediction of each, and the A100's constants fitted on part of them.

`python -m railyard.results.theory.iteration.fit` prints them. The predicted time is linear in 1/matmul_efficiency,
overhead_flops/matmul_efficiency and 1/memory_efficiency, so ordinary least squares on relative errors finds them.
Rows that are fitted: both ends of Korthikanti's four (22B, 1T), and every other one of Megatron-LM's ten, so that a row
held out lies between fitted ones. `leave_model_out_s` is stricter: it leaves a model out of both tables.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, cast

import numpy as np

from railyard.core.installation import data_file
from railyard.results.theory.iteration import iteration_time as theory
from railyard.results.theory.iteration.iteration_time import Constants, FloatArray, Job, Recipe, Recompute, Strategy
from railyard.workloads.models.catalogue import GptModel

ROWS: Final = data_file("results/theory/iteration/measured.csv")
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
        """Recomputation and sequence parallelism, as tables name them."""
        if self.recipe.sequence_parallel:
            return "selective + SP"
        return self.recipe.recompute


@cache
def measured() -> tuple[Measured, ...]:
    """Return every row of measured.csv, in its order."""
    rows = []
    # the first line of the file names its source
    for row in csv.DictReader(ROWS.read_text().splitlines()[1:]):
        batch = GptModel.load(row["model"]).training.global_batch
        recipe = Recipe(batch, cast(Recompute, row["recompute"]), row["sequence_parallel"] == "yes")
        hfu = None
        if row["hfu_pct"]:
            hfu = float(row["hfu_pct"])
        rows.append(Measured(row["table"], row["model"], recipe, float(row["seconds"]), hfu, row["use"] == "fit"))
    return tuple(rows)


def as_job(row: Measured) -> tuple[Job, Strategy[FloatArray]]:
    """Return the row's job, on DGX A100, and the strategy that it was measured with."""
    model = GptModel.load(row.model)
    cluster = theory.make_cluster(PLATFORM, model.training.gpus, min(model.domain_gpus, model.training.gpus))
    strategy = theory.place_strategy(model.training, cluster.domain_gpus)
    return Job(model, row.recipe, cluster), Strategy(*(np.array([float(n)]) for n in strategy.columns))


def predicted_s(row: Measured) -> float:
    """Seconds by Eq. 6 and the fitted constants."""
    return float(theory.iteration_time(*as_job(row)).total_s[0])


def hfu_pct(row: Measured, seconds: float) -> float:
    """Hardware FLOPs utilisation, percent: FLOPs as Korthikanti Eq. 8 counts them over what the GPUs could do."""
    job, _ = as_job(row)
    done = theory.hardware_flops(job.model, row.recipe.recompute, row.recipe.global_batch)
    return 100 * done / (seconds * job.cluster.gpus * job.cluster.flops)


def fitted_constants(rows: Sequence[Measured]) -> Constants:
    """Return the constants that leave the smallest sum of squared relative errors over `rows`."""
    columns = []
    targets = []
    for row in rows:
        job, strategy = as_job(row)
        parts = theory.compute_parts(job, strategy)
        network_s = float(theory.iteration_time(job, strategy).network_s[0])
        parts_s = np.array([parts.matmul_s[0], parts.pass_s[0], parts.memory_s[0]])
        columns.append(parts_s / row.seconds)
        targets.append(1 - network_s / row.seconds)
    matrix = np.array(columns)
    # seconds for one FLOP are far smaller than the others
    scale = np.linalg.norm(matrix, axis=0)
    solved, *_ = np.linalg.lstsq(matrix / scale, np.array(targets), rcond=None)
    slowness, overhead, memory = (solved / scale).tolist()
    return replace(
        theory.A100, matmul_efficiency=1 / slowness, memory_efficiency=1 / memory, overhead_flops=overhead / slowness
    )


def leave_model_out_s(row: Measured) -> float:
    """Return the seconds with constants fitted on all published rows, in both tables, of other shapes."""

    other_models = [other for other in measured() if _shape(other) != _shape(row)]
    job, strategy = as_job(row)
    cluster = replace(job.cluster, constants=fitted_constants(other_models))
    return float(theory.iteration_time(replace(job, cluster=cluster), strategy).total_s[0])


def _shape(row: Measured) -> tuple[int, int]:
    """Return the layers and the hidden size of a row's model."""
    model = GptModel.load(row.model)
    return model.layers, model.hidden


def main() -> None:
    """Print the constants of the rows to be fitted, and every row's error with those of iteration_time.py."""
    constants = fitted_constants([row for row in measured() if row.fitted])
    print(f"matmul_efficiency={constants.matmul_efficiency:.4f}")
    print(f"memory_efficiency={constants.memory_efficiency:.4f}")
    print(f"overhead_flops={constants.overhead_flops:.3e}")
    for row in measured():
        error = 100 * (predicted_s(row) / row.seconds - 1)
        left_out = 100 * (leave_model_out_s(row) / row.seconds - 1)
        use = "fitted" if row.fitted else "held out"
        print(f"{row.table:12}{row.model:12}{row.mode:16}{use:9}{error:+6.1f}%  left out {left_out:+6.1f}%")


if __name__ == "__main__":
    main()
