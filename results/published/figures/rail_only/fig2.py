"""Traffic volume by kind, and how many pairs it is on (Rail-only Fig. 2)."""

from functools import partial
from typing import Final

import matplotlib.figure
import numpy as np

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.published.pairs import volume_bars
from railyard.workloads.matrix.pair_traffic import Traffic, gpt_traffic, shares
from railyard.workloads.models.catalogue import GptModel
from railyard.workloads.placement.layout import hierarchical

MODELS: Final = ("gpt-145.6b", "gpt-310.1b", "gpt-529.6b", "gpt-1008b")
KINDS: Final[dict[str, str]] = {"TP": style.KINDS["TP"], "PP": style.KINDS["PP"], "DP": style.KINDS["DP"]}
CLUSTER: Final = 3072  # GPUs of the paper's largest job, and cluster
TP_PAIRS_PCT: Final = 0.04


def figure() -> Figure:
    """Every model with the parallelism of Megatron-LM, on DGX A100."""
    traffic: dict[str, Traffic] = {}
    rows: list[tuple[Cell, ...]] = []
    for name in MODELS:
        model = GptModel.load(name)
        p = model.training
        rails = model.domain_gpus
        traffic[name] = gpt_traffic(model, hierarchical(p, p.gpus // rails, rails))
        rows += _rows(name, traffic[name])
    return Figure(
        title="Traffic by kind, and the pairs of GPUs that have it",
        source="Rail-only Fig. 2",
        columns=(
            "model", "gpus", "kind", "bytes", "share_pct", "pairs", "pairs_pct", "pairs_of_cluster_pct",
        ),
        rows=rows,
        draw=partial(_draw, traffic=traffic),
        claims=_claims(traffic),
        notes=(
            "Pairs are ordered: a sender and another GPU, N (N - 1) of them; a ring has one from each GPU. Counted "
            "without order, TP has twice the share.",
            "Volumes: 4 AllGather and 4 ReduceScatter a layer and micro-batch, rings, 16 bits, no embeddings.",
        ),
        inches=(11.0, 4.6),
    )  # fmt: skip


def _pct(pairs: int, gpus: int) -> float:
    return 100 * pairs / (gpus * (gpus - 1))


def _busy(traffic: Traffic) -> int:
    keys = [p.src.astype(np.int64) * traffic.gpus + p.dst for p in traffic.pairs.values()]
    return len(np.unique(np.concatenate(keys)))


def _idle(traffic: Traffic) -> int:
    return traffic.gpus * (traffic.gpus - 1) - _busy(traffic)


def _rows(name: str, traffic: Traffic) -> list[tuple[Cell, ...]]:
    """Return a row for each kind, and one for the pairs with none."""
    share = shares(traffic.volumes)
    gpus = traffic.gpus
    rows: list[tuple[Cell, ...]] = []
    for kind, members in traffic.pairs.items():
        pairs = len(members.src)
        volume = traffic.volumes[kind]
        rows.append((name, gpus, kind, volume, 100 * share[kind], pairs, _pct(pairs, gpus), _pct(pairs, CLUSTER)))
    idle = _idle(traffic)
    rows.append((name, gpus, "none", 0.0, 0.0, idle, _pct(idle, gpus), None))
    return rows


def _outer_tp_pairs(traffic: Traffic) -> int:
    """Return the number of pairs of GPUs in two HB domains that have TP traffic."""
    pairs = traffic.pairs["TP"]
    return int(np.count_nonzero(pairs.src // traffic.rails != pairs.dst // traffic.rails))


def _inner_pairs(traffic: Traffic) -> int:
    """Return the number of pairs of GPUs in one HB domain that have PP or DP traffic."""
    inner = 0
    for kind in ("PP", "DP"):
        pairs = traffic.pairs[kind]
        inner += int(np.count_nonzero(pairs.src // traffic.rails == pairs.dst // traffic.rails))
    return inner


def _claims(traffic: dict[str, Traffic]) -> tuple[Claim, ...]:
    least_tp = min(100 * shares(t.volumes)["TP"] for t in traffic.values())
    least_idle = min(_pct(_idle(t), t.gpus) for t in traffic.values())
    shared = 0
    for t in traffic.values():
        shared += sum(len(pairs.src) for pairs in t.pairs.values()) - _busy(t)
    note = "so far above the bound that the paper seems to count another volume; no reading that we know gives 75%"
    claims = [
        Claim("TP's share of the volume, least of the four models", 75, least_tp, "%", bound="at least", note=note),
        Claim("pairs without traffic, least of the four models", 99, least_idle, "%", bound="at least"),
        Claim("pairs with traffic of two kinds", 0, shared, "pairs"),
        Claim("pairs with TP traffic between HB domains", 0, sum(map(_outer_tp_pairs, traffic.values())), "pairs"),
        Claim("pairs with PP or DP traffic in an HB domain", 0, sum(map(_inner_pairs, traffic.values())), "pairs"),
    ]
    for name, t in traffic.items():
        # a ring in each tensor-parallel group makes it 1 / (N - 1), whatever the model
        pairs = len(t.pairs["TP"].src)
        ours = _pct(pairs, t.gpus)
        note = ""
        if ours > TP_PAIRS_PCT:
            note = (
                f"rings of {t.gpus:,} GPUs give 1/(N-1), below 0.04% from 2,501 GPUs on; of all pairs of the "
                f"{CLUSTER:,}-GPU cluster they are {_pct(pairs, CLUSTER):.3f}%"
            )
        claims.append(Claim(f"pairs with TP traffic, {name}", TP_PAIRS_PCT, ours, "%", bound="at most", note=note))
    return tuple(claims)


def _draw(drawn: matplotlib.figure.Figure, traffic: dict[str, Traffic]) -> None:
    left_axes, right_axes = drawn.subplots(1, 2)
    volume_bars(left_axes, {name: t.volumes for name, t in traffic.items()}, KINDS)
    left_axes.set_title("(a) volume", pad=26)
    places = np.arange(len(traffic))
    for i, (kind, colour) in enumerate(KINDS.items()):
        heights = [_pct(len(t.pairs[kind].src), t.gpus) for t in traffic.values()]
        bars = right_axes.barh(places + 0.27 * (i - 1), heights, height=0.24, color=colour, label=kind)
        labels = [f"{height:.3f}%" for height in heights]
        right_axes.bar_label(
            bars, labels, padding=3, fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}
        )
    ticks = [f"{name}\n{_pct(_idle(t), t.gpus):.2f}% have none" for name, t in traffic.items()]
    right_axes.set_yticks(places, ticks)
    right_axes.invert_yaxis()
    right_axes.axvline(TP_PAIRS_PCT, color=style.GREY, ls="--", lw=1, label="the paper's limit for TP", zorder=0)
    right_axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=8)
    right_axes.set_title("(b) pairs", pad=26)
    style.quiet(right_axes, xlabel="share of ordered GPU pairs, %", xlim=(0, 0.15))
