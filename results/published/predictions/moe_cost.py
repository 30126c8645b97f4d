"""Cost of rail-only for a step of today's mixtures of experts, by expert-parallel size and HB domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import matplotlib.figure

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Figure
from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.rail_only_cost import ExpertCost, expert_cost
from railyard.topologies.platforms import PLATFORMS, Precision
from railyard.workloads.models.catalogue import load_transformer, model_title

MODELS: Final = ("deepseek-v3", "kimi-k2", "qwen3-235b-a22b", "qwen3-30b-a3b", "mixtral-8x7b", "mixtral-8x22b")
PLATFORM_NAMES: Final = ("h100", "gb200-nvl72")
EXPERT_GPUS: Final = (8, 32, 64)
SEQUENCE: Final = 4096
COLUMNS: Final = (
    "model", "platform", "K", "EP", "compute_s", "a2a_rail_only_s", "a2a_optimized_s", "rail_only_xy", "optimized_xy",
    "cost_pct", "overlapped_pct", "dedup_pct",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class System:
    """GPUs of a platform in HB domains of `domain_gpus`."""

    platform: str
    domain_gpus: int


def figure() -> Figure:
    """Every model with as many experts as a group has GPUs, or more."""
    systems = [System(name, PLATFORMS[name].domain_gpus) for name in PLATFORM_NAMES]
    return cost_figure(MODELS, systems, EXPERT_GPUS, "bf16")


def cost_figure(
    models: Sequence[str], systems: Sequence[System], expert_gpus: Sequence[int], precision: Precision
) -> Figure:
    """Return the cost of each model, system and size of groups; no row where the size doesn't divide the experts."""
    rows: list[tuple[Cell, ...]] = []
    for name, system, expert in product(models, systems, expert_gpus):
        model = load_transformer(name).model_copy(update={"sequence": SEQUENCE})
        if model.experts % expert:
            continue
        hardware = make_hardware(system.platform, system.domain_gpus * expert, system.domain_gpus, precision)
        cost = expert_cost(model, hardware, expert)
        rows.append(_cells(model_title(name), system, expert, cost))
    return Figure(
        title="What rail-only adds to a step of a mixture of experts, at full computing",
        source="Rail-only Eq. 2 and 3, and computing as `predict holdout` has it",
        columns=COLUMNS,
        rows=rows,
        draw=lambda drawn: _draw(drawn, rows, systems),
        notes=(
            f"a micro-batch of one sequence of 4,096 tokens through all layers in {precision}, forward and backward; "
            "activations are sent in bf16. cost_pct: all-to-alls by Eq. 3 over Eq. 2, none of them beside computing. A "
            "pipeline's bubble, AllReduce and the optimizer take as long on both fabrics, so of a whole step it is a "
            "smaller share",
            "overlapped_pct: all-to-alls run beside the computing of another micro-batch, so that only what takes "
            "longer than computing counts",
            "dedup_pct: each fabric takes its faster form; with one that sends a token once to each HB domain and "
            "forwards it there, as DeepEP does, no fabric needs spines",
            "x x y: GPUs of a group in each of y HB domains, the fastest placement on each fabric; GPUs that it leaves "
            "idle are counted as time. A model with fewer experts than EP has no row",
        ),
        inches=(11.0, 5.0),
    )


def _cells(name: str, system: System, expert: int, cost: ExpertCost) -> tuple[Cell, ...]:
    """Return a row of moe-cost.csv."""
    return (
        name,
        system.platform,
        system.domain_gpus,
        expert,
        cost.compute_s,
        cost.rail_only.all_to_all_s,
        cost.rail_optimized.all_to_all_s,
        str(cost.rail_only.placement),
        str(cost.rail_optimized.placement),
        100 * cost.cost,
        100 * cost.overlapped_cost,
        100 * cost.deduplicated_cost,
    )


def _draw(drawn: matplotlib.figure.Figure, rows: Sequence[tuple[Cell, ...]], systems: Sequence[System]) -> None:
    all_axes = drawn.subplots(1, len(systems), sharey=True, squeeze=False)[0]
    for axes, system in zip(all_axes, systems, strict=True):
        chosen: list[dict[str, Cell]] = []
        for row in rows:
            named = dict(zip(COLUMNS, row, strict=True))
            if (named["platform"], named["K"]) == (system.platform, system.domain_gpus):
                chosen.append(named)
        labels = [f"{row['model']}, EP {row['EP']}" for row in chosen]
        costs = [float(row["cost_pct"] or 0.0) for row in chosen]
        axes.barh(labels, costs, color=style.BLUE)
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=7)
        title = f"{model_title(system.platform)}, HB domains of {system.domain_gpus}"
        style.quiet(axes, "x", title=title, xlabel="added to a step on rail-only, %")
