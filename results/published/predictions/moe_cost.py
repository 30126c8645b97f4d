"""Cost of rail-only for a step of today's mixtures of experts, by expert-parallel size and HB domain."""

from itertools import product
from typing import Final

import matplotlib.figure

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Figure
from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.rail_only_cost import ExpertCost, expert_cost
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import load_transformer

MODELS: Final = ("deepseek-v3", "kimi-k2", "qwen3-235b-a22b", "qwen3-30b-a3b", "mixtral-8x7b", "mixtral-8x22b")
PLATFORM_NAMES: Final = ("h100", "gb200-nvl72")
EXPERT_GPUS: Final = (8, 32, 64)
SEQUENCE: Final = 4096
COLUMNS: Final = (
    "model", "platform", "K", "EP", "compute_s", "a2a_rail_only_s", "a2a_optimized_s", "rail_only_xy", "optimized_xy",
    "cost_pct", "overlapped_pct", "dedup_pct",
)  # fmt: skip


def figure() -> Figure:
    """Every model with as many experts as a group has GPUs, or more."""
    rows: list[tuple[Cell, ...]] = []
    for name, platform, expert in product(MODELS, PLATFORM_NAMES, EXPERT_GPUS):
        model = load_transformer(name).model_copy(update={"sequence": SEQUENCE})
        if model.experts % expert:
            continue
        domain_gpus = PLATFORMS[platform].domain_gpus
        cost = expert_cost(model, make_hardware(platform, domain_gpus * expert, domain_gpus), expert)
        rows.append(_cells(name, platform, domain_gpus, expert, cost))
    return Figure(
        title="What rail-only adds to a step of a mixture of experts, at full computing",
        source="Rail-only Eq. 2 and 3, and computing as `predict holdout` has it",
        columns=COLUMNS,
        rows=rows,
        draw=lambda drawn: _draw(drawn, rows),
        notes=(
            "a micro-batch of one sequence of 4,096 tokens through all layers in bf16, forward and backward; cost_pct: "
            "all-to-alls by Eq. 3 over Eq. 2, none of them beside computing. A pipeline's bubble, AllReduce and the "
            "optimizer take as long on both fabrics, so of a whole step it is a smaller share",
            "overlapped_pct: all-to-alls run beside the computing of another micro-batch, so that only what takes "
            "longer than computing counts",
            "dedup_pct: each fabric takes its faster form; with one that sends a token once to each HB domain and "
            "forwards it there, as DeepEP does, no fabric needs spines",
            "x x y: GPUs of a group in each of y HB domains, the fastest placement on each fabric; GPUs that it leaves "
            "idle are counted as time. A model with fewer experts than EP has no row",
        ),
        inches=(11.0, 5.0),
    )


def _cells(name: str, platform: str, domain_gpus: int, expert: int, cost: ExpertCost) -> tuple[Cell, ...]:
    """Return a row of moe-cost.csv."""
    return (
        name,
        platform,
        domain_gpus,
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


def _draw(drawn: matplotlib.figure.Figure, rows: list[tuple[Cell, ...]]) -> None:
    left, right = drawn.subplots(1, 2, sharey=True)
    for axes, platform in zip((left, right), PLATFORM_NAMES, strict=True):
        chosen = [dict(zip(COLUMNS, row, strict=True)) for row in rows if row[1] == platform]
        labels = [f"{row['model']}, EP {row['EP']}" for row in chosen]
        costs = [float(row["cost_pct"] or 0.0) for row in chosen]
        axes.barh(labels, costs, color=style.BLUE)
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=7)
        title = f"{platform}, HB domains of {PLATFORMS[platform].domain_gpus}"
        style.quiet(axes, "x", title=title, xlabel="added to a step on rail-only, %")
