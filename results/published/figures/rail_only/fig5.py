"""Traffic of MoE-1.3B with 128 experts (Rail-only Fig. 5)."""

from functools import partial
from typing import Final

import matplotlib.figure

from railyard.results.plots import style
from railyard.results.published.catalogue import Claim, Figure
from railyard.results.published.pairs import COLUMNS, heatmap, legend, rows, volume_bars
from railyard.workloads.matrix.pair_traffic import Traffic, moe_traffic
from railyard.workloads.models.catalogue import FP16_BYTES, MoeModel
from railyard.workloads.models.mixture import mixture_of
from railyard.workloads.placement.layout import data_parallel

MODEL: Final = "moe-1.3b-128"
COLOURS: Final[dict[str, str]] = {"EP": style.KINDS["EP"], "DP": style.KINDS["DP"]}
OURS: Final = "as counted here"


def figure() -> Figure:
    """Compute the volumes as counted, and by other ways to count the static part."""
    model = MoeModel.load(MODEL)
    layout = data_parallel(model.gpus, model.global_batch, model.domain_gpus, model.experts)
    traffic = moe_traffic(mixture_of(model), layout)
    static = model.static_parameters

    def counted(parameters: float, bytes_each: float = FP16_BYTES) -> dict[str, float]:
        # the volume is proportional to the bytes that are summed
        dp = traffic.volumes["DP"] * parameters * bytes_each / (static * FP16_BYTES)
        return {"EP": traffic.volumes["EP"], "DP": dp}

    counts = {
        OURS: dict(traffic.volumes),
        "its own output embedding": counted(static + model.vocabulary * model.hidden),
        "with one expert's MLPs": counted(static + model.expert_parameters),
        "32-bit gradients": counted(static, 2 * FP16_BYTES),
    }
    share_pct = {name: 100 * volumes["EP"] / sum(volumes.values()) for name, volumes in counts.items()}
    other_counts = [name for name in counts if name != OURS]
    table = rows(OURS, traffic)
    # without pairs: only the volumes differ
    for name in other_counts:
        total = sum(counts[name].values())
        for kind, volume in counts[name].items():
            table.append((name, kind, "all", None, volume, None, None, 100 * volume / total))
    shares_text = "; ".join(f"{name}: {share_pct[name]:.1f}%" for name in other_counts)
    note = f"the paper doesn't give its count of the AllReduce; {shares_text}"
    return Figure(
        title="Traffic of MoE-1.3B with 128 experts on 16 DGX A100",
        source="Rail-only Fig. 5",
        columns=COLUMNS,
        rows=table,
        draw=partial(_draw, traffic=traffic, counts=counts),
        claims=(Claim("all-to-all, of the total", 27, share_pct[OURS], "%", within=0.5, note=note),),
        notes=(
            f"{model.all_to_alls} all-to-alls of {model.tokens_per_gpu:,} tokens a GPU; in each, every GPU sends "
            f"{model.all_to_all_bytes / model.experts:,.0f} bytes to each of the {model.gpus - 1} others.",
            "What isn't an expert is summed once a step, hierarchically, in 16 bits, with one embedding. Forwarding in "
            "HB domains is not counted.",
        ),
        inches=(12.0, 5.4),
    )


def _draw(drawn: matplotlib.figure.Figure, traffic: Traffic, counts: dict[str, dict[str, float]]) -> None:
    left_axes, right_axes = drawn.subplots(1, 2)
    volume_bars(left_axes, counts, COLOURS)
    left_axes.set_title("(a) volume", pad=26)
    heatmap(right_axes, traffic.dense(traffic.gpus), traffic.rails, "(b) bytes of a step")
    legend(drawn)
