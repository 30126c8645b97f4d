"""Volumes, ratios of hardware and coefficients that Nezha states beside its measurements (sections 1 to 5.3.4)."""

from typing import TYPE_CHECKING, Final

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.nezha import (
    EXISTING_SHARE_PCT,
    EXISTING_SHARE_SPREAD_PCT,
    GPT2_MEMORY_PCT,
    KB,
    LARGEST,
    MB,
    SLICING_EXTRA_PCT,
    TABLE_1,
)
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.models.catalogue import FP16_BYTES, GptModel

if TYPE_CHECKING:
    import matplotlib.figure

GPT2_PARAMETERS: Final = 1.5e9
GPT2_GPUS: Final = 16
FP32_BYTES: Final = 4
GPT3_HIDDEN: Final = 12_288
GPT3_SEQUENCE: Final = 2_048
GPT3_ALLREDUCES: Final = 12
# after attention and after the MLP forward, and as many backward (Megatron-LM)
MEGATRON_ALLREDUCES: Final = 4
LLAMA3_70B_LAYERS: Final = 80
# of a V100, which was sold with half of it too
V100_MEMORY_GB: Final = 32
IDLE_PCT: Final = (30.0, 50.0)
"""Section 1: of the bandwidth of several rails, what binding to one of them leaves idle."""
MISMATCH_PCT: Final = (15.0, 40.0)
"""Section 1: of the throughput, what delays between protocols take."""
# FP16 on tensor cores without sparsity and the NIC of a server's GPU, by the data sheets
V100_FLOPS: Final = 125e12
H100_FLOPS: Final = 989e12
V100_NIC_BPS: Final = 100e9
_OWN_TABLE: Final = "by the paper's own Table 1 alone"
LARGE_SIZES: Final = (8 * MB, 64 * MB)
TABLE_1_NODES: Final = 4


def figure() -> Figure:
    """Eq. 1 for GPT-2, volumes of tensor parallelism, and what slices reach of both rails by Table 1."""
    claims = [*_volumes(), *_small_messages(), *_packets(), *_hardware(), *_slices(), _coefficients(), *_introduction()]
    rows: list[tuple[Cell, ...]] = [(claim.what, claim.unit, claim.published, claim.ours) for claim in claims]
    return Figure(
        title="Volumes and ratios that Nezha states",
        source="Nezha sections 1, 2.1, 4.3 and 5.3.4, Eq. 1, 2 and 8, Table 1 and 3",
        columns=("quantity", "unit", "published", "computed"),
        rows=rows,
        draw=lambda drawn: _draw(drawn, claims),
        claims=tuple(claims),
        notes=("Slices are compared with the sum of both rails alone, each as Table 1 has it.",),
    )


def _volumes() -> list[Claim]:
    """Return claims on bytes and counts of collectives."""
    gradient_gb = GPT2_PARAMETERS * FP32_BYTES / 1e9
    ring_gb = 2 * (GPT2_GPUS - 1) / GPT2_GPUS * gradient_gb
    activation_mb = GPT3_SEQUENCE * GPT3_HIDDEN * FP16_BYTES / 1e6
    layer_mb = GPT3_ALLREDUCES * activation_mb
    memory_pct = 100 * ring_gb / V100_MEMORY_GB
    note = f"one sequence in FP16; its {GPT3_ALLREDUCES} allreduces of a layer together have {layer_mb:.0f} MB"
    count_note = (
        "two forward and two backward in Megatron-LM, 6 with recomputation; the text doesn't say what it counts"
    )
    # an allreduce is a ReduceScatter and an AllGather; ZeRO-3 has one AllGather more
    zero_ratio = 3 / 2
    return [
        Claim("GPT-2, 16 GPUs: bytes of a GPU in a ring (Eq. 1)", 11.25, ring_gb, "GB", 0.005),
        Claim("GPT-2, 16 GPUs: these bytes, of a V100's memory", GPT2_MEMORY_PCT, memory_pct, "%", 0.5),
        Claim("GPT-3: an allreduce of a layer", 603, activation_mb, "MB", 1.5, note=note),
        Claim(
            "GPT-3: allreduces of a layer, forward and backward",
            GPT3_ALLREDUCES,
            MEGATRON_ALLREDUCES,
            "allreduces",
            note=count_note,
        ),
        Claim("LLaMA-3 70B: allreduces of a forward pass", 160, 2 * LLAMA3_70B_LAYERS, "allreduces"),
        Claim("ZeRO: volume over that of an allreduce", 1.5, zero_ratio, "times"),
    ]


def _small_messages() -> list[Claim]:
    """Return claims on Eq. 2: the rate of small messages over that of large ones, by the paper's own Table 1."""
    claims: list[Claim] = []
    for kind in ("tcp", "sharp"):
        small_rate = KB / TABLE_1[KB][f"single:{kind}"]
        large_rate = LARGEST / TABLE_1[LARGEST][f"single:{kind}"]
        efficiency_pct = 100 * small_rate / large_rate
        name = f"1 KB on {kind}, rate over that of 64 MB (Eq. 2)"
        claims.append(Claim(name, 50, efficiency_pct, "%", bound="at most", stated="dominated by set-up means"))
    return claims


def _packets() -> list[Claim]:
    """Return claims on the gradients that a GPU of GPT-3 30B sums at once (5.3.4, Table 3)."""
    model = GptModel.load("gpt3-30b")
    shape = model.training
    whole_gb = FP16_BYTES * model.parameters / (shape.tensor * shape.pipeline) / 1e9
    note = "16-bit gradients of a stage and tensor slice; half of them is above 1 GB too, unless sent in parts"
    return [
        Claim("GPT-3 30B: gradients of a GPU", 1, whole_gb, "GB", bound="at least"),
        Claim("GPT-3 30B: half of the gradients of a GPU", 1, whole_gb / 2, "GB", bound="at most", note=note),
    ]


def _hardware() -> list[Claim]:
    """Return claims on the growth of GPUs and of NICs."""
    flops_ratio = H100_FLOPS / V100_FLOPS
    nic_ratio = PLATFORMS["h100"].rail_bps / V100_NIC_BPS
    note = "the paper's own 7.9 over 4; beta itself, FLOP/s over bit/s, is no number of times"
    return [
        Claim("V100 to H100: FP16", 7.9, flops_ratio, "times", 0.05),
        Claim("V100 to H100: NIC", 4, nic_ratio, "times"),
        Claim("V100 to H100: FP16 over NIC", 10, flops_ratio / nic_ratio, "times", bound="at least", note=note),
    ]


def _slices() -> list[Claim]:
    """Return claims on slices as MPTCP makes them, all by the paper's own Table 1."""
    claims: list[Claim] = []
    low, high = SLICING_EXTRA_PCT
    middle = (low + high) / 2
    note = "by the paper's own Table 1, in which slices take longer than the better rail alone"
    for size in LARGE_SIZES:
        row = TABLE_1[size]
        together_s = 1 / (1 / row["single:sharp"] + 1 / row["single:tcp"])
        share_pct = 100 * together_s / row["slicing"]
        extra_pct = 100 * (row["slicing"] / row["single:sharp"] - 1)
        name = f"{size // MB} MB: slices"
        claims.append(
            Claim(
                f"{name}, of the sum of both rails",
                EXISTING_SHARE_PCT,
                share_pct,
                "%",
                EXISTING_SHARE_SPREAD_PCT,
                note=_OWN_TABLE,
            )
        )
        claims.append(Claim(f"{name}, longer than one rail", middle, extra_pct, "%", (high - low) / 2, note=note))
    return claims


def _coefficients() -> Claim:
    """Return the claim on what the first coefficients of Eq. 8 add up to, with N the nodes as printed."""
    times_s = (TABLE_1[8 * MB]["single:tcp"], TABLE_1[8 * MB]["single:sharp"])
    total_s = sum(times_s)
    sum_pct = 0.0
    for time_s in times_s:
        sum_pct += 100 * (total_s - time_s) / (total_s * (TABLE_1_NODES - 1))
    note = "the text has the node count for N; with the number of rails they add up to 100%, as is done here"
    return Claim("Eq. 8, 2 rails on 4 nodes: sum of the coefficients", 100, sum_pct, "%", 0.1, note=note)


def _introduction() -> list[Claim]:
    """Return what the introduction says is lost, by the paper's own Table 1 and, for equal rails, by their number."""
    idle_pct = {"two equal rails": 50.0}
    mismatch_pct: dict[str, float] = {}
    for size in LARGE_SIZES:
        row = TABLE_1[size]
        sharp_share = row["single:tcp"] / (row["single:tcp"] + row["single:sharp"])
        idle_pct[f"{size // MB} MB, TCP and SHARP"] = 100 * (1 - sharp_share)
        mismatch_pct[f"{size // MB} MB, TCP and SHARP"] = 100 * (1 - row["single:sharp"] / row["slicing"])
    claims: list[Claim] = []
    for name, ours in idle_pct.items():
        claims.append(_in_range(f"{name}: idle beside the faster rail alone", IDLE_PCT, ours))
    for name, ours in mismatch_pct.items():
        claims.append(_in_range(f"{name}: throughput that slices lose", MISMATCH_PCT, ours))
    return claims


def _in_range(quantity: str, limits: tuple[float, float], ours: float) -> Claim:
    """Return a claim of which the paper gives the least and the most, percent."""
    low, high = limits
    stated = f"middle of {low:g} to {high:g}"
    return Claim(quantity, (low + high) / 2, ours, "%", (high - low) / 2, stated=stated)


def _draw(drawn: "matplotlib.figure.Figure", claims: list[Claim]) -> None:
    axes = drawn.subplots()
    names = [claim.what for claim in claims]
    ratios = [claim.ours / claim.published for claim in claims]
    axes.barh(names, ratios, color=style.SERIES[0])
    axes.axvline(1, color=style.SERIES[1], linewidth=1)
    axes.tick_params(labelsize=7)
    style.quiet(axes, "x", xlabel="computed over published")
