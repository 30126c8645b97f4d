"""Allreduces over several rails, Nezha's Table 1, gains and thresholds beside its equations."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from railyard.results.plots import style
from railyard.results.published.catalogue import Cell, Claim, Figure
from railyard.results.theory.nezha import (
    GAIN_SIZES,
    GAINS,
    GAINS_OVER_POLICIES,
    KB,
    LARGE_SIZES,
    LARGEST,
    LIKE_RAILS,
    MB,
    OVER_GLOO,
    STATIC_LATENCY_RATIO,
    TABLE_1,
    THRESHOLDS,
    gain_tolerance,
)
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost, paper_rail, paper_rails, threshold
from railyard.workloads.allreduce.balancing.states import MIN_GAIN
from railyard.workloads.allreduce.engine_kind import predicted_s

if TYPE_CHECKING:
    import matplotlib.figure

PAIRS: Final = ("tcp+tcp", "tcp+sharp", "tcp+glex")
NODES: Final = (4, 8)
# measured ratios of throughputs agree with computed ones up to this difference
WITHIN: Final = 0.16
# the paper's names of policies, where ours differ
_POLICIES: Final = {"99/1": "weights:99:1", "1/99": "weights:1:99"}
_MEASURED: Final = "by Eq. 1 to 5 alone; the paper measured it"
_FITTED: Final = "the rail's set-up and processor cost were fitted to Table 1, so this is a fitted row"
_SLICES: Final = "the equations take slices that end together; the paper measured slices of fixed size"
_GAIN_NOTES: Final = {
    "mptcp": "the equations take all rails as one, without the slices that the paper finds costly",
    "mrib": "shares are those of the data sheets, costs those fitted to Table 1",
}
_ONE_SLICE: Final = "a slice has 8 KB at least here, so that 1 KB is one slice, on the faster rail"


def figure() -> Figure:
    """Table 1 by Eq. 1 to 5 with the paper's rails, and the largest gain of each pair of rails."""
    rows: list[tuple[Cell, ...]] = []
    for size, row in TABLE_1.items():
        for policy, stated_s in row.items():
            rows.append((size, policy, stated_s, _computed_s(policy, size)))
    claims = (
        *_table_1_claims(),
        *_gain_claims(),
        *_introduction_claims(),
        *_gain_over_policy_claims(),
        *_static_claims(),
        *_gloo_claims(),
        *_threshold_claims(),
    )
    return Figure(
        title="Allreduces over TCP and SHARP on 4 nodes",
        source="Abstract of Nezha, Table 1, sections 4.3, 5.2.1 and 5.2.2, Eq. 1 to 6",
        columns=("size_bytes", "policy", "published_s", "computed_s"),
        rows=rows,
        draw=_draw,
        claims=claims,
        notes=("The rails' set-up and processor cost were fitted to the rows of one rail (workloads/allreduce).",),
    )


def _table_1_claims() -> Iterator[Claim]:
    """Yield the cells of Table 1."""
    for size, row in TABLE_1.items():
        for policy, stated_s in row.items():
            note = _MEASURED
            if policy.startswith("single:"):
                note = _FITTED
            elif policy == "slicing":
                note = _SLICES if size >= MB else _ONE_SLICE
            stated_ms = 1e3 * stated_s
            computed_ms = 1e3 * _computed_s(policy, size)
            yield Claim(f"{_size_name(size)}, {policy}", stated_ms, computed_ms, "ms", 0.08 * stated_ms, note=note)


def _size_name(size: int) -> str:
    """Return a size in the paper's units, which are powers of 1024: `64 MB`, `1 KB`."""
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"


def _computed_s(policy: str, size: int) -> float:
    return predicted_s(_POLICIES.get(policy, policy), [paper_rail("tcp"), paper_rail("sharp")], 4, size)


def _gain_claims() -> Iterator[Claim]:
    """Yield the largest gain of each policy over the better of two rails, of large data or at the sizes stated."""
    for (mix, nodes, policy), stated in GAINS.items():
        rails = paper_rails(mix)
        singles = [f"single:{rail.name}" for rail in rails]
        sizes = GAIN_SIZES.get((mix, nodes, policy), LARGE_SIZES)
        gains = [_gain(policy, singles, rails, nodes, size) for size in sizes]
        name = f"{mix}, {nodes} nodes: {policy} over one rail"
        note = _GAIN_NOTES.get(policy, _MEASURED)
        yield Claim(name, stated, max(gains), "times", gain_tolerance(stated, WITHIN), note=note)


def _introduction_claims() -> Iterator[Claim]:
    """Yield the largest throughput of two like rails over that of one, for which the introduction has a range."""
    gains: list[float] = []
    for nodes in NODES:
        rails = paper_rails("tcp+tcp")
        for size in LARGE_SIZES:
            gains.append(_gain("nezha", [f"single:{rails[0].name}"], rails, nodes, size))
    ours = max(gains)
    least, most = LIKE_RAILS
    note = f"{100 * (ours - 1):.0f}% by the equations, which charge nothing for a second rail"
    yield Claim(
        "tcp+tcp: nezha over one rail, most of 4 and 8 nodes",
        (least + most) / 2,
        ours,
        "times",
        (most - least) / 2,
        note=note,
        stated=f"middle of {least:g} to {most:g}",
    )


def _gain_over_policy_claims() -> Iterator[Claim]:
    """Yield the largest throughput of Nezha over another policy's, of large data."""
    for (mix, nodes, policy), stated in GAINS_OVER_POLICIES.items():
        gains = [_gain("nezha", [policy], paper_rails(mix), nodes, size) for size in LARGE_SIZES]
        note = f"by Eq. 1 to 5 {gains[0]:.2f} times at 512 KB, and {gains[-1]:.2f} at 64 MB"
        name = f"{mix}, {nodes} nodes: nezha over {policy}"
        yield Claim(name, stated, max(gains), "times", gain_tolerance(stated, WITHIN), note=note)


def _static_claims() -> Iterator[Claim]:
    """Yield the time that static shares take, those by nominal rate, over that of shares that end together."""
    ours = _gain("nezha", ["mrib"], paper_rails("tcp+sharp"), 4, LARGEST)
    within = gain_tolerance(STATIC_LATENCY_RATIO, WITHIN)
    note = "the paper states neither the static shares nor the size"
    yield Claim("64 MB: time of mrib over that of nezha", STATIC_LATENCY_RATIO, ours, "times", within, note=note)


def _gloo_claims() -> Iterator[Claim]:
    """Yield the least and the most of what pairs of rails gain over one TCP rail, which stands for Gloo."""
    pair_gains: list[float] = []
    for mix in PAIRS:
        for nodes in NODES:
            rails = paper_rails(mix)
            gains = [_gain("nezha", [f"single:{rails[0].name}"], rails, nodes, size) for size in LARGE_SIZES]
            pair_gains.append(max(gains))
    least = min(pair_gains)
    most = max(pair_gains)
    stated_least, stated_most = OVER_GLOO
    note = "the paper states no sizes: these are 512 KB to 64 MB, and Gloo is a TCP rail alone"
    within = gain_tolerance(stated_most, WITHIN)
    yield Claim("nezha over a TCP rail, least of the pairs", stated_least, least, "times", bound="at least", note=note)
    yield Claim("nezha over a TCP rail, most of the pairs", stated_most, most, "times", within, note=note)


def _threshold_claims() -> Iterator[Claim]:
    """Yield the size up to which Nezha uses one of two TCP rails, and how it changes with the nodes.

    By Eq. 6 alone a split of two like rails pays from the first byte on, so it has to gain what the balancer asks for.
    """
    computed: dict[int, float] = {}
    for (mix, nodes), stated in THRESHOLDS.items():
        size = threshold([allreduce_cost(rail, nodes) for rail in paper_rails(mix)], MIN_GAIN)
        # two like rails have one: a split halves the bytes of a rail
        assert size is not None
        computed[nodes] = size
        note = "by Eq. 6 with a gain of 10%; without that it is 0. Half of it is the tolerance: sizes are powers of two"
        yield Claim(f"{mix}, {nodes} nodes: threshold", stated / KB, size / KB, "KB", stated / KB / 2, note=note)
    few, many = NODES
    stated_ratio = THRESHOLDS["tcp+tcp", many] / THRESHOLDS["tcp+tcp", few]
    note = "by Eq. 6 it grows: set-ups of a ring of N grow as N-1, its bytes as (N-1)/N"
    name = "tcp+tcp: threshold on 8 nodes over that on 4"
    yield Claim(name, stated_ratio, computed[many] / computed[few], "times", stated_ratio / 2, note=note)


def _gain(policy: str, baselines: Sequence[str], rails: Sequence[Rail], nodes: int, size: int) -> float:
    """Return the throughput of a policy over that of the best of its baselines, times."""
    baseline_s = min(predicted_s(baseline, rails, nodes, size) for baseline in baselines)
    return baseline_s / predicted_s(policy, rails, nodes, size)


def _draw(drawn: "matplotlib.figure.Figure") -> None:
    axes = drawn.subplots()
    sizes = list(TABLE_1)
    for colour, policy in zip(style.SERIES, TABLE_1[MB * 8], strict=False):
        axes.plot(sizes, [_computed_s(policy, size) for size in sizes], color=colour, label=policy)
        axes.plot(sizes, [row[policy] for row in TABLE_1.values()], "o", color=colour, markersize=4)
    axes.legend(fontsize=8)
    labels = {"xlabel": "size, bytes", "ylabel": "time, s (dots: published)"}
    style.quiet(axes, "y", xscale="log", yscale="log", **labels)
