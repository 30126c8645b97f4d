"""How long the prediction of a direct all-to-all takes, at 256 and 1,024 GPUs, and the ratio. No root, no fabric.

    .venv/bin/python -m benchmarks.prediction [--repeats 5]

There are 16 times as many pairs, so a ratio far above 16 means that time per pair grows. See docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Annotated, Final

import typer

from benchmarks.command import run_benchmark
from railyard.core.errors import BadInput
from railyard.results.theory.predict import predict_phase
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.spec import FabricSpec, gpu_fabric_kinds
from railyard.workloads.schedule import Phase, Rates

RAILS: Final = 8
DOMAINS: Final = (32, 128)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def seconds(kind: str, domains: int, repeats: int) -> float:
    """Return the median time of a prediction; sizes differ, so that none is remembered."""
    fabric, rates, times = FabricSpec(kind=kind, domains=domains, rails=RAILS), Rates(hb=1e9, rail=1e8), []
    for repeat in range(repeats):
        begun = time.perf_counter()
        predict_phase(Phase("a", "EP", "all-to-all", RAILS, domains, 1e6 + repeat), rates, fabric)
        times.append(time.perf_counter() - begun)
    return median(times)


@app.command()
def prediction(repeats: Annotated[int, typer.Option(help="How often each is predicted.")] = 5) -> None:
    """Time the bottleneck-link bound on every kind of fabric."""
    if repeats < 1:
        raise BadInput("--repeats", repeats, "must be 1 or more")
    for kind in gpu_fabric_kinds():
        if FABRIC_KINDS[kind].max_domains >= DOMAINS[-1]:
            small, large = (seconds(kind, domains, repeats) for domains in DOMAINS)
            print(f"{kind}: {small:.3f} s at 256 GPUs, {large:.3f} s at 1,024, ratio {large / small:.1f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
