"""Cost of data parallelism for the 530B model, measured and by Eq. 11."""

from typing import Final

import matplotlib.figure

from railyard.results.plots.style import BLUE, GREY, quiet
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.collectives.all_reduce import all_reduce_s
from railyard.workloads.models.catalogue import GptModel

MODEL: Final = "gpt-530b"
DATA: Final = 8
ALONE_S = 37.83
WITH_DATA_S = 39.15
"""Korthikanti et al. 2022: on 280 GPUs (Table 5), and with 8-way data parallelism on 2,240."""
COST_S: Final = WITH_DATA_S - ALONE_S


def figure() -> Figure:
    """Eq. 11 in 16 and in 32 bits, and the NIC rate at which it would take what was measured."""
    model = GptModel.load(MODEL)
    a100 = PLATFORMS["a100"]
    # Eq. 11 with d_h = 1: D is a stage's layers over t
    splits = model.training.pipeline * model.training.tensor
    by_formula = {}
    for bits in (16, 32):
        size = bits // 8 * model.layers * model.layer_parameters / splits
        by_formula[bits] = all_reduce_s(size, 1, DATA, a100.hb_bps / 8, a100.rail_bps / 8)
    rail_gbps = a100.rail_bps / 1e9
    bars = [("measured", COST_S)]
    rows: list[tuple[Cell, ...]] = [
        ("measured without data parallelism, 280 GPUs", ALONE_S, None, None, None),
        ("measured with 8-way data parallelism, 2,240 GPUs", WITH_DATA_S, None, None, None),
        ("measured cost", COST_S, 0.0, 100.0, None),
    ]
    claims: list[Claim] = []
    for bits, seconds in by_formula.items():
        label = f"Eq. 11, {bits}-bit gradients"
        nic_gbps = rail_gbps * seconds / COST_S
        bars.append((label, seconds))
        rows.append((label, seconds, COST_S - seconds, 100 * seconds / COST_S, nic_gbps))
        note = f"a gap of {COST_S - seconds:.2f} s; Eq. 11 would take as long at {nic_gbps:.0f} of {rail_gbps:.0f} Gbps"
        name = f"cost of data parallelism, Eq. 11 with {bits}-bit gradients"
        claims.append(Claim(name, COST_S, seconds, "s", note=note))
    return Figure(
        title="What 8-way data parallelism costs the 530B model",
        source="Korthikanti et al. 2022, Rail-only Eq. 11",
        columns=("what", "seconds", "gap_s", "share_of_measured_pct", "nic_gbps_to_explain"),
        rows=rows,
        draw=lambda drawn: _draw(drawn, bars),
        claims=tuple(claims),
        notes=(
            "Eq. 11 as printed: the layers of a stage without the embedding, at the NIC's full rate, without latency",
            "what the gap holds isn't published: a NIC below its rate, replicas waiting for one another, and "
            "copies between gradient buffers are candidates",
        ),
    )  # fmt: skip


def _draw(drawn: matplotlib.figure.Figure, bars: list[tuple[str, float]]) -> None:
    axes = drawn.subplots()
    drawn_bars = axes.barh(range(len(bars)), [s for _, s in bars], color=[GREY, BLUE, BLUE], height=0.6)
    axes.bar_label(drawn_bars, fmt="%.2f s", padding=3)
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    quiet(axes, "x", xlabel="added to an iteration, s")
