"""Allreduces over several rails, Nezha's Table 1 and gains beside its equations.

Every number is stated in the paper's text or tables: where a plot shows more without numbers, nothing is read from it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.workloads.allreduce.balancing.costs import paper_rail
from railyard.workloads.allreduce.engine_kind import predicted_s

if TYPE_CHECKING:
    import matplotlib.figure

KB: Final = 1024
MB: Final = 1024 * KB
SMALL: Final = 128 * KB  # 5.2.1: small-scale data are 2 KB to 128 KB, large-scale 512 KB to 64 MB
LARGE: Final = 512 * KB
LARGEST: Final = 64 * MB

TABLE_1: Final[dict[int, dict[str, float]]] = {
    1 * KB: {"single:sharp": 9e-6, "single:tcp": 982e-6, "equal": 987e-6, "99/1": 984e-6, "1/99": 991e-6,
             "slicing": 1002e-6},
    8 * MB: {"single:sharp": 22140e-6, "single:tcp": 37137e-6, "equal": 21265e-6, "99/1": 37141e-6, "1/99": 23911e-6,
             "slicing": 31013e-6},
    64 * MB: {"single:sharp": 181484e-6, "single:tcp": 316323e-6, "equal": 178373e-6, "99/1": 314913e-6,
              "1/99": 188137e-6, "slicing": 257135e-6},
}  # fmt: skip
"""Table 1: seconds on 4 nodes, TCP and SHARP, by policy (x/y: percents to TCP and to SHARP)."""

GAINS: Final[dict[tuple[str, int, str], float]] = {
    ("tcp+tcp", 4, "nezha"): 1.84,
    ("tcp+tcp", 4, "mrib"): 1.84,
    ("tcp+tcp", 4, "mptcp"): 1.58,
    ("tcp+tcp", 8, "nezha"): 1.87,
    ("tcp+tcp", 8, "mrib"): 1.87,
    ("tcp+tcp", 8, "mptcp"): 1.50,
    ("tcp+sharp", 4, "nezha"): 1.52,
    ("tcp+glex", 4, "nezha"): 1.46,
    ("tcp+sharp", 8, "nezha"): 1.63,
    ("tcp+glex", 8, "nezha"): 1.47,
    ("tcp+glex", 4, "mptcp"): 1.08,
    ("tcp+glex", 4, "mrib"): 1.08,
}
"""5.2.1 and 5.2.2: the most throughput over the better single rail, of large data, by rails, nodes and policy."""

THRESHOLDS: Final[dict[tuple[str, int], int]] = {("tcp+tcp", 4): 256 * KB, ("tcp+tcp", 8): 128 * KB}
"""5.2.1: up to this size Nezha uses one rail."""
MEAN_RAIL_TIME_SPREAD: Final = 0.093  # 5.3.2: the average scheduling error
CONVERGENCE_OPERATIONS: Final = 100  # 4.3: operations within which the coefficients converge


TRAINING_GAINS: Final[dict[tuple[str, str, int, str], tuple[float, bool]]] = {
    ("alexnet batch 32", "tcp+tcp", 4, "single"): (319.0 / 215.7, False),  # Fig. 16, as the next three
    ("alexnet batch 64", "tcp+tcp", 4, "single"): (612.5 / 426.6, False),
    ("vgg-11 batch 32", "tcp+tcp", 4, "single"): (154.8 / 114.8, False),
    ("vgg-11 batch 64", "tcp+tcp", 4, "single"): (303.7 / 253.2, False),
    ("vgg-11 batch 64", "tcp+tcp", 4, "gloo"): (1.199, False),  # 5.3, as the rest
    ("vgg-11 batch 64", "tcp+tcp", 8, "gloo"): (1.504, False),
    ("alexnet batch 32", "tcp+glex", 8, "single"): (1.116, True),
    ("vgg-11 batch 32", "tcp+glex", 8, "single"): (1.111, True),
    ("alexnet batch 32", "tcp+sharp", 8, "single"): (1.201, True),
    ("vgg-11 batch 32", "tcp+sharp", 8, "single"): (1.201, True),
}
"""By training, rails, nodes and baseline: training speed over the baseline's, and if the text says `up to`."""

_POLICIES: Final = {"99/1": "weights:99:1", "1/99": "weights:1:99"}  # the paper's names of policies, where ours differ
_MEASURED: Final = "by Eq. 1 to 5 alone; the paper measured it"


def figure() -> Figure:
    """Table 1 by Eq. 1 to 5 with the paper's rails, and the largest gain of each pair of rails."""
    rows, claims = list[tuple[Cell, ...]](), []
    slices = "the equations take slices that end together; the paper measured slices of fixed size"
    for size, row in TABLE_1.items():
        for policy, stated in row.items():
            ours = _computed_s(policy, size)
            rows.append((size, policy, stated, ours))
            if size >= 8 * MB:
                note, within = slices if policy == "slicing" else _MEASURED, 0.08 * 1e3 * stated
                claims.append(Claim(f"{size // MB} MB, {policy}", 1e3 * stated, 1e3 * ours, "ms", within, note=note))
    sizes = [LARGE << shift for shift in range(8)]
    for (mix, nodes, policy), gain in GAINS.items():
        rails = [replace(paper_rail(kind), name=f"{kind}{number}") for number, kind in enumerate(mix.split("+"))]
        single_s = {n: min(predicted_s(f"single:{rail.name}", rails, nodes, n) for rail in rails) for n in sizes}
        ours = max(single_s[size] / predicted_s(policy, rails, nodes, size) for size in sizes)
        claims.append(Claim(f"{mix}, {nodes} nodes: {policy} over one rail", gain, ours, "times", 0.16, note=_MEASURED))
    return Figure(
        title="Allreduces over TCP and SHARP on 4 nodes",
        source="Nezha Table 1, sections 5.2.1 and 5.2.2, Eq. 1 to 5",
        columns=("size_bytes", "policy", "published_s", "computed_s"),
        rows=rows,
        draw=_draw,
        claims=tuple(claims),
        notes=("The rails' set-up and processor cost were fitted to the rows of one rail (workloads/allreduce).",),
    )


def _computed_s(policy: str, size: int) -> float:
    return predicted_s(_POLICIES.get(policy, policy), [paper_rail("tcp"), paper_rail("sharp")], 4, size)


def _draw(drawn: "matplotlib.figure.Figure") -> None:
    from railyard.results.plots import style  # the analysis of a run needs the figures above, and no Matplotlib

    axes = drawn.subplots()
    for colour, policy in zip(style.SERIES, TABLE_1[MB * 8], strict=False):
        axes.plot(list(TABLE_1), [_computed_s(policy, size) for size in TABLE_1], color=colour, label=policy)
        axes.plot(list(TABLE_1), [row[policy] for row in TABLE_1.values()], "o", color=colour, markersize=4)
    axes.legend(fontsize=8)
    labels = {"xlabel": "size, bytes", "ylabel": "time, s (dots: published)"}
    style.quiet(axes, "y", xscale="log", yscale="log", **labels)
