"""How long the bytes between all pairs of GPUs take to count, for clusters up to 16,384 GPUs. No root, no fabric.

    .venv/bin/python -m benchmarks.pair_traffic [--repeats 5] [--json FILE]

Layout, matrix and its sums by place are timed together, from the model on. See docs/benchmarks.md.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from benchmarks.measurements import spread
from railyard.core.errors import BadInput
from railyard.core.safe_files import write_file
from railyard.workloads.matrix.pair_traffic import SCOPES, Traffic, gpt_traffic, moe_traffic
from railyard.workloads.models.catalogue import GptModel, MoeModel
from railyard.workloads.models.mixture import mixture_of
from railyard.workloads.placement.layout import Parallelism, data_parallel, hierarchical

SIZES: Final = (1024, 4096, 16_384)
RAILS: Final = 256
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class MatrixTimes:
    """One model on one cluster: the seconds of every repeat, and how many pairs had any bytes."""

    model: str
    gpus: int
    pairs: int
    seconds: tuple[float, ...]


def dense(gpus: int) -> Traffic:
    """GPT-1T, t = 8, p = 64, the rest data-parallel."""
    p = Parallelism(tensor=8, pipeline=64, data=gpus // 512, micro_batch=1, global_batch=gpus)
    return gpt_traffic(GptModel.load("gpt-1008b"), hierarchical(p, gpus // RAILS, RAILS))


def mixture(gpus: int) -> Traffic:
    """MoE-1.3B, its 128 experts replicated."""
    model = MoeModel.load("moe-1.3b-128")
    return moe_traffic(mixture_of(model), data_parallel(gpus, 4 * gpus, RAILS, model.experts))


def wide_mixture(gpus: int) -> Traffic:
    """MoE-1.3B with as many experts as GPUs: every GPU sends to every other."""
    model = MoeModel.load("moe-1.3b-128").model_copy(update={"experts": gpus, "gpus": gpus, "global_batch": 4 * gpus})
    return moe_traffic(mixture_of(model), data_parallel(gpus, model.global_batch, RAILS, model.experts))


MODELS: Final[dict[str, Callable[[int], Traffic]]] = {
    "gpt-1008b": dense,
    "moe-1.3b-128": mixture,
    "an expert a GPU": wide_mixture,
}


def summed(traffic: Traffic) -> int:
    """Bytes by kind and place; how many pairs have any."""
    parts = [traffic.at(kind, scope) for kind in traffic.pairs for scope in SCOPES]
    return sum(part.count for part in parts if part.total > 0)


def timed(model: str, gpus: int, repeats: int) -> MatrixTimes:
    """Count `repeats` times over."""
    seconds, pairs = [], 0
    for _ in range(repeats):
        gc.collect()
        begun = time.perf_counter()
        pairs = summed(MODELS[model](gpus))
        seconds.append(time.perf_counter() - begun)
    return MatrixTimes(model, gpus, pairs, tuple(seconds))


def table_of(results: Sequence[MatrixTimes]) -> Table:
    """A row a model and cluster."""
    table = Table(title="Bytes by pair", title_justify="left")
    for column in ("model", "GPUs", "pairs with traffic", "ms: median (least–most)"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for result in results:
        table.add_row(
            result.model, f"{result.gpus:,}", f"{result.pairs:,}", str(spread([1000 * s for s in result.seconds]))
        )
    return table


@app.command()
def pair_traffic(
    repeats: Annotated[int, typer.Option(help="How often each is counted.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to this new file.")] = None,
) -> None:
    """Time the traffic matrices of a dense model and of two mixtures of experts."""
    if repeats < 1:
        raise BadInput("--repeats", repeats, "must be 1 or more")
    if json_file and (json_file.exists() or not json_file.resolve().parent.is_dir()):
        raise BadInput("--json", str(json_file), "must be a new file, in a folder that exists")
    results = [timed(model, gpus, repeats) for model in MODELS for gpus in SIZES]
    Console(width=None if sys.stdout.isatty() else 120).print(table_of(results))
    if json_file:
        text = json.dumps([asdict(result) for result in results], indent=2) + "\n"
        write_file(json_file, text.encode())


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
