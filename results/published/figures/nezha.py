"""Allreduces over several rails, Nezha's Table 1 and gains beside its equations."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.nezha import GAINS, LARGE, MB, TABLE_1, gain_tolerance
from railyard.workloads.allreduce.balancing.costs import paper_rail
from railyard.workloads.allreduce.engine_kind import predicted_s

if TYPE_CHECKING:
    import matplotlib.figure

# the paper's names of policies, where ours differ
_POLICIES: Final = {"99/1": "weights:99:1", "1/99": "weights:1:99"}
_MEASURED: Final = "by Eq. 1 to 5 alone; the paper measured it"


def figure() -> Figure:
    """Table 1 by Eq. 1 to 5 with the paper's rails, and the largest gain of each pair of rails."""
    rows = list[tuple[Cell, ...]]()
    claims = []
    slices = "the equations take slices that end together; the paper measured slices of fixed size"
    for size, row in TABLE_1.items():
        for policy, stated in row.items():
            ours = _computed_s(policy, size)
            rows.append((size, policy, stated, ours))
            if size >= 8 * MB:
                note = _MEASURED
                if policy == "slicing":
                    note = slices
                within = 0.08 * 1e3 * stated
                claims.append(Claim(f"{size // MB} MB, {policy}", 1e3 * stated, 1e3 * ours, "ms", within, note=note))
    sizes = [LARGE << shift for shift in range(8)]
    for (mix, nodes, policy), gain in GAINS.items():
        rails = [replace(paper_rail(kind), name=f"{kind}{number}") for number, kind in enumerate(mix.split("+"))]
        ours = 0.0
        for size in sizes:
            single_s = min(predicted_s(f"single:{rail.name}", rails, nodes, size) for rail in rails)
            ours = max(ours, single_s / predicted_s(policy, rails, nodes, size))
        name = f"{mix}, {nodes} nodes: {policy} over one rail"
        claims.append(Claim(name, gain, ours, "times", gain_tolerance(gain, 0.16), note=_MEASURED))
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
    axes = drawn.subplots()
    sizes = list(TABLE_1)
    for colour, policy in zip(style.SERIES, TABLE_1[MB * 8], strict=False):
        axes.plot(sizes, [_computed_s(policy, size) for size in sizes], color=colour, label=policy)
        axes.plot(sizes, [row[policy] for row in TABLE_1.values()], "o", color=colour, markersize=4)
    axes.legend(fontsize=8)
    labels = {"xlabel": "size, bytes", "ylabel": "time, s (dots: published)"}
    style.quiet(axes, "y", xscale="log", yscale="log", **labels)
