"""Traffic of GPT-1T on 16 DGX GH200 (Rail-only Fig. 4)."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final

import matplotlib.figure
import numpy as np

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.published.pairs import COLUMNS, heatmap, legend, rows, volume_bars
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.matrix.pair_traffic import Pairs, Traffic, Uniform, gpt_traffic
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.layout import Layout, Parallelism, hierarchical, layout_from_ranks

MODEL: Final = "gpt-1008b"
DOMAINS: Final = 16
BATCH: Final = 4096
DATA: Final = 64
# not in the paper: Megatron's, and with d = 32 x 2 it fills the domains of 256
TENSOR: Final = 8
TENSORS: Final = (1, 2, 4, TENSOR)
COLOURS: Final = {
    "TP (HB)": style.KINDS["TP"], "PP (HB)": "#a3dcd2", "PP (NIC)": style.KINDS["PP"], "DP (HB)": "#f2ebc7",
    "DP (NIC)": style.KINDS["DP"],
}  # fmt: skip
SHOWN: Final = 32  # GPUs of either domain in the close-up


def figure() -> Figure:
    """The paper gives d and the batch; other t and 32-bit gradients show what its shares depend on."""
    # the traffic as the paper assumes it comes first
    counts = dict[str, Traffic]()
    for bits, tensor in product((16, 32), reversed(TENSORS)):
        traffic = gpt_traffic(GptModel.load(MODEL), layout(tensor))
        gradients = traffic.pairs["DP"].scaled(bits // 16)
        counts[f"t={tensor}, {bits} bits"] = replace(traffic, pairs={**traffic.pairs, "DP": gradients})
    ours = next(iter(counts.values()))
    table: list[tuple[Cell, ...]] = []
    for count, traffic in counts.items():
        table += rows(count, traffic)
    return Figure(
        title="Traffic of GPT-1T on 16 DGX GH200",
        source="Rail-only Fig. 4",
        columns=COLUMNS,
        rows=table,
        draw=partial(_draw, traffic=ours, counts=counts),
        claims=_claims(ours, counts),
        notes=(
            f"The paper gives d = {DATA} = 32 x 2 and a batch of {BATCH:,}, so t p = 64; assumed: t = {TENSOR}, p = 8, "
            "16 bits. Volumes don't depend on the micro-batch. Rows have other t too.",
        ),
        inches=(12.0, 9.0),
    )


def layout(tensor: int) -> Layout:
    """d = 32 x 2 whatever t, so that below t = 8 a domain holds several stages."""
    rails = PLATFORMS["gh200"].domain_gpus
    pipeline = DOMAINS * rails // (tensor * DATA)
    p = Parallelism(tensor=tensor, pipeline=pipeline, data=DATA, micro_batch=1, global_batch=BATCH)
    # half the replicas, laid out on half of each two domains' worth, and then the same again beside them
    half = p.model_copy(update={"data": DATA // 2, "global_batch": BATCH // 2})
    gpus = hierarchical(half, DOMAINS // 2, rails).gpus
    domain = gpus // rails
    local = gpus % rails
    second_half = (2 * domain + 1) * rails + local
    first_half = 2 * domain * rails + local
    ranks: list[int] = []
    for stage in range(pipeline):
        ranks += first_half[stage].ravel().tolist()
        ranks += second_half[stage].ravel().tolist()
    return layout_from_ranks(p, DOMAINS, rails, ranks)


def _claims(ours: Traffic, counts: dict[str, Traffic]) -> tuple[Claim, ...]:
    on_nics = 100 * ours.at("DP", "rail").total / ours.volumes["DP"]
    across = sum(ours.at(kind, "across rails").total for kind in ours.pairs)
    of_total = {count: 100 * t.at("DP", "rail").total / sum(t.volumes.values()) for count, t in counts.items()}
    ours_of_total, *others_of_total = of_total.items()
    shares_text = "; ".join(f"{count}: {share:.2f}%" for count, share in others_of_total)
    note = (
        f"0.8% of the total and 1/63 of AllReduce make AllReduce {0.8 * 63:.0f}% of the total, and here it is "
        f"{100 * ours.volumes['DP'] / sum(ours.volumes.values()):.1f}%: the paper "
        f"doesn't give t. With other t, or gradients of 32 bits: {shares_text}"
    )
    return (
        Claim("AllReduce volume in HB domains", 98, 100 - on_nics, "%", within=0.5),
        Claim("AllReduce volume on rails", 2, on_nics, "%", within=0.5),
        Claim("DP on NICs, of the total", 0.8, ours_of_total[1], "%", within=0.05, note=note),
        Claim("traffic across rails", 0, across, "B"),
    )


def _draw(drawn: matplotlib.figure.Figure, traffic: Traffic, counts: dict[str, Traffic]) -> None:
    parts = drawn.subplot_mosaic([["a", "a"], ["b", "c"]], height_ratios=(1, 1.3))
    above, left_axes, right_axes = (parts[name] for name in "abc")
    volumes = {}
    for count, each in counts.items():
        by_place = {f"{kind} (HB)": each.at(kind, "HB domain").total for kind in each.pairs}
        by_place |= {f"{kind} (NIC)": each.at(kind, "rail").total for kind in each.pairs}
        volumes[count] = {name: by_place[name] for name in COLOURS}
    volume_bars(above, volumes, COLOURS)
    above.set_title("(a) volume", pad=26)
    # 32 GPUs of each of two domains, in the order of the replicas
    dp: dict[str, Pairs | Uniform] = {"DP": traffic.pairs["DP"]}
    members = layout(TENSOR).data_groups[0]
    matrix = replace(traffic, pairs=dp).dense(int(members.max()) + 1)[members][:, members]
    heatmap(left_axes, matrix, len(members) // 2, "(b) AllReduce of one data-parallel group")
    left_axes.set(xlabel="receiver, replica", ylabel="sender, replica")
    # the first GPUs of a stage's two domains, which are 256 apart
    chosen = np.concatenate([np.arange(SHOWN), traffic.rails + np.arange(SHOWN)])
    matrix = traffic.dense(2 * traffic.rails)[chosen][:, chosen]
    heatmap(right_axes, matrix, SHOWN, f"(c) all kinds, first {SHOWN} GPUs of two domains")
    ticks = [0, SHOWN // 2, SHOWN, 3 * SHOWN // 2]
    names = [str(gpu) for gpu in (0, SHOWN // 2, traffic.rails, traffic.rails + SHOWN // 2)]
    right_axes.set_xticks(ticks, names)
    right_axes.set_yticks(ticks, names)
    legend(drawn)
