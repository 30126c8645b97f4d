"""Traffic heatmaps of GPT-1T on DGX A100 (Rail-only Fig. 3)."""

from functools import partial
from typing import Final

import matplotlib.figure

from railyard.results.published.catalogue import Claim, Figure
from railyard.results.published.pairs import COLUMNS, heatmap, legend, rows
from railyard.workloads.matrix.pair_traffic import Traffic, gpt_traffic
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.layout import hierarchical

MODEL: Final = "gpt-1008b"
DENSE: Final[tuple[str, ...]] = ("TP", "PP", "DP")
STAGES: Final = 4


def figure() -> Figure:
    """The whole job is counted; the first stages are drawn."""
    model = GptModel.load(MODEL)
    p = model.training
    rails = model.domain_gpus
    traffic = gpt_traffic(model, hierarchical(p, p.gpus // rails, rails))
    in_hb = max(float(traffic.at(kind, "HB domain").bytes.max(initial=0)) for kind in DENSE) / 1e9
    on_nics = {kind: float(traffic.at(kind, "rail").bytes.max(initial=0)) / 1e9 for kind in DENSE}
    across = sum(float(traffic.at(kind, "across rails").bytes.sum()) for kind in DENSE) / 1e9
    note = (
        f"the paper doesn't say how it counts: a ring gives a GPU's whole TP traffic to one neighbour; rings both ways "
        f"would give each of two {in_hb / 2:.0f} GB ({in_hb * 1e9 / 2 / 2**30:.0f} GiB), sending to all seven alike "
        f"{in_hb / 7:.0f} GB"
    )
    return Figure(
        title="Traffic of GPT-1T on 384 DGX A100",
        source="Rail-only Fig. 3",
        columns=COLUMNS,
        rows=rows("rings one way", traffic),
        draw=partial(_draw, traffic=traffic, stage=p.tensor * p.data),
        claims=(
            Claim("a pair in an HB domain", 300, in_hb, "GB", within=30, note=note),
            Claim("a pair of neighbouring stages (PP), between domains", 6, on_nics["PP"], "GB", within=1),
            Claim("a pair of replicas (DP), between domains", 6, on_nics["DP"], "GB", within=1),
            Claim("traffic across rails", 0, across, "GB"),
        ),
        notes=(
            f"t = {p.tensor}, p = {p.pipeline}, d = {p.data}, {p.micro_batches} micro-batches of {p.micro_batch} "
            "(Megatron-LM Table 1); rings, 4 AllGather and 4 ReduceScatter a layer and micro-batch, 16 bits.",
            "Pairs are ordered, and a pair's bytes are those of one iteration.",
        ),
        inches=(12.0, 5.9),
    )


def _draw(drawn: matplotlib.figure.Figure, traffic: Traffic, stage: int) -> None:
    left_axes, right_axes = drawn.subplots(1, 2)
    heatmap(left_axes, traffic.dense(stage), traffic.rails, f"(a) one stage, {stage} GPUs")
    heatmap(right_axes, traffic.dense(STAGES * stage), traffic.rails, f"(b) {STAGES} stages, {STAGES * stage} GPUs")
    legend(drawn)
