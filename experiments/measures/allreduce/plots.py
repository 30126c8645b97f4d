"""Nezha's figures, drawn from what was measured: 8 (a NIC is cut), 9 and 10, 11 (shares), 12 (trainings), 13."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from railyard.core.units import size_name
from railyard.experiments.measures.allreduce.analysis import FabricMeasurements, by_fabric, is_single
from railyard.experiments.measures.allreduce.records import AllreduceResults
from railyard.results.analysis.aggregate import grouped
from railyard.results.format import percent, rate, seconds
from railyard.results.plots import style as plots
from railyard.results.plots.svg import mark
from railyard.results.runs.records import GoodputTrace
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES
from railyard.workloads.allreduce.engine_kind import ALLREDUCE_ENGINES, definition_of

_PANEL: Final = 3.1  # inches


def colour_of(policy: str) -> str:
    """Return the colour of a policy's lines and bars: that of its definition, if it names one and is registered."""
    colour = None
    if policy in ALLREDUCE_POLICIES or policy in ALLREDUCE_ENGINES:
        colour = getattr(plots, definition_of(policy).colour.upper(), None)
    return colour or plots.SKY


def latency(fabric: FabricMeasurements) -> plots.Plot:
    """Fig. 9 and 10: time and throughput of an allreduce by its size, a line a policy."""
    with plots.drawing(_PANEL + 0.5) as figure:
        left, right = figure.subplots(1, 2)
        looks = _looks(fabric.policies)
        for policy, look in looks.items():
            sizes, times = zip(*sorted(fabric.seconds[policy].items()), strict=True)
            rates = [8 * size / time for size, time in zip(sizes, times, strict=True)]
            _curve(left, policy, sizes, times, seconds, look)
            _curve(right, policy, sizes, rates, rate, look)
        predicted_times: dict[int, float] = {}
        for size in fabric.sizes:
            predicted_s = fabric.predicted("nezha", size)
            if predicted_s is not None:
                predicted_times[size] = predicted_s
        if predicted_times:
            name = "nezha by Eq. 4 and 5"
            line = left.plot(
                list(predicted_times), list(predicted_times.values()), color=plots.MUTED, ls="--", lw=1, label=name
            )
            mark(line, name, name)
        _by_size(left, fabric.sizes, plots.seconds_tick, yscale="log", ylabel="time")
        _by_size(right, fabric.sizes, plots.rate_tick, yscale="log", ylabel="bytes of the buffer over time")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)))
        # the paper has a figure for like rails, and one for unlike rails
        number = 9 if len(set(fabric.rails.kinds)) == 1 else 10
        sources = "Sizes are the paper's; rates too. Dashed in grey: what Eq. 4 and 5 say of nezha."
        caption = f"As Nezha's Fig. {number}. {sources}"
        return plots.finish(figure, f"multirail-latency-{fabric.rails.label}", _alt_text(fabric), caption)


def _looks(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return colour, marker and dashes of each policy's line; those without a colour of their own share one."""
    markers = plots.markers(policies)
    dashes = plots.dashes(policies)
    looks: dict[str, dict[str, Any]] = {}
    for policy in policies:
        looks[policy] = {
            "color": colour_of(policy),
            "marker": markers[policy],
            "ls": dashes[policy],
            "ms": 4,
            "lw": 1.4,
        }
    return looks


def _curve(
    axes: Axes,
    name: str,
    sizes: Sequence[int],
    values: Sequence[float],
    show: Callable[[float], str],
    look: Mapping[str, Any],
) -> None:
    """Draw a line over sizes, with a tooltip at each of its points."""
    line = axes.plot(sizes, values, label=name, **look)
    tooltips = [f"{name}, {size_name(size)}: {show(value)}" for size, value in zip(sizes, values, strict=True)]
    mark(line, name, *tooltips)


def _by_size(axes: Axes, sizes: Sequence[int], tick: Callable[[float, float], str], **properties: Any) -> None:
    """Set up a horizontal axis of sizes, and the labels of the vertical one; `properties` of the axes."""
    axes.set(xscale="log", **properties)
    axes.yaxis.set_major_formatter(FuncFormatter(tick))
    shown = sizes
    # labels of more sizes would overlap
    if len(sizes) > 8:
        shown = sizes[:: len(sizes) // 6]
    axes.xaxis.set_major_locator(FixedLocator(list(shown)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_name(int(value))))
    axes.tick_params(axis="x", rotation=45)
    plots.quiet(axes, grid="y")


def _alt_text(fabric: FabricMeasurements) -> str:
    size = fabric.sizes[-1]
    times: list[str] = []
    for policy in fabric.policies:
        if fabric.at(policy, size):
            times.append(f"{policy} {seconds(fabric.at(policy, size))}")
    title = f"Time and throughput of an allreduce by its size on {fabric.rails.label}"
    return f"{title}; at {size_name(size)}: {', '.join(times)}"


def shares(results: AllreduceResults) -> plots.Plot | None:
    """Fig. 11: which part of the bytes goes to the rail that isn't tcp, by size and number of nodes."""
    lines = []
    for fabric in by_fabric(results):
        rail = _rail_beside_tcp(fabric)
        if rail is not None and "nezha" in fabric.policies:
            lines.append((fabric, rail))
    if not lines:
        return None
    with plots.drawing(_PANEL) as figure:
        axes = figure.subplots()
        alt_parts = []
        mixes = list(dict.fromkeys(fabric.rails.mix for fabric, _ in lines))
        markers = plots.markers([fabric.rails.label for fabric, _ in lines])
        for fabric, rail in lines:
            look: dict[str, Any] = {
                "color": plots.SERIES[mixes.index(fabric.rails.mix)],
                "lw": 2 if fabric.rails.nodes > 4 else 1,
                "marker": markers[fabric.rails.label],
                "ms": 4,
            }
            alt_parts.append(_draw_shares(axes, fabric, rail, look))
        labels: dict[str, Any] = {"ylim": (-0.03, 1.03), "ylabel": "share of the rail\nthat isn't tcp"}
        _by_size(axes, lines[0][0].sizes, lambda value, _: f"{value:.0%}", **labels)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        caption = "As Nezha's Fig. 11, which states no numbers in its text. Dotted: MRIB's fixed weights."
        return plots.finish(figure, "multirail-shares", f"Shares by size. {'; '.join(alt_parts)}", caption)


def _draw_shares(axes: Axes, fabric: FabricMeasurements, rail: int, look: Mapping[str, Any]) -> str:
    """Draw the shares of a rail, by its number, and of MRIB's fixed weights; return the last share in words."""
    by_size: dict[int, float] = {}
    for size in fabric.sizes:
        shares = fabric.shares("nezha", size)
        if shares:
            by_size[size] = shares[rail]
    _curve(axes, f"nezha, {fabric.rails.label}", list(by_size), list(by_size.values()), percent, look)
    fixed = fabric.shares("mrib", fabric.sizes[-1])
    if fixed:
        weights = [fixed[rail]] * len(fabric.sizes)
        _curve(axes, f"mrib, {fabric.rails.label}", fabric.sizes, weights, percent, {**look, "ls": ":"})
    last = max(by_size)
    return f"{fabric.rails.label}: {by_size[last]:.0%} at {size_name(last)}"


def _rail_beside_tcp(fabric: FabricMeasurements) -> int | None:
    """Return the number of the rail that isn't tcp, of a fabric with one such rail and one of tcp."""
    kinds = fabric.rails.kinds
    if len(kinds) != 2 or kinds.count("tcp") != 1:
        return None
    return 1 - kinds.index("tcp")


def nic_rates(results: AllreduceResults, fabric: str, fault: str) -> plots.Plot | None:
    """Fig. 8: rates of each NIC of the node, over the first cut."""
    traces = [trace for trace in results.rates if (trace.fabric, trace.interval.part) == (fabric, fault)]
    if not traces:
        return None
    first_repeat = min(trace.repeat for trace in traces)
    first = [trace for trace in traces if trace.repeat == first_repeat]
    with plots.drawing(_PANEL) as figure:
        axes = figure.subplots()
        for colour, dash, trace in zip(plots.SERIES, plots.DASHES, first, strict=False):
            look: dict[str, Any] = {"color": colour, "ls": dash, "lw": 1.5, "drawstyle": "steps-post"}
            mark(axes.plot(trace.t_ms, trace.bps, label=trace.link, **look), trace.link, trace.link)
        axes.axvline(0, color=plots.VERMILION, lw=1.4, label="cut")
        axes.axvline(first[0].repair_ms, color=plots.GREEN, lw=1.4, ls="--", label="repair")
        axes.yaxis.set_major_formatter(plots.rate_tick)
        axes.margins(x=0)
        plots.quiet(axes, grid="y", xlabel="ms after the fault", ylabel="sent and received")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        alt = f"Rates of the NICs on {fabric} around {fault}. {'; '.join(map(_rates_text, first))}"
        caption = (
            "As Nezha's Fig. 8, of the first repeat, in bins of 20 ms. The paper's NICs carry 900,000 KB/s each while "
            "both work; its axis is minutes."
        )
        return plots.finish(figure, f"multirail-rates-{fabric}-{fault}", alt, caption)


def _rates_text(trace: GoodputTrace) -> str:
    """Return the median rate of a NIC before the cut, during it, and after its repair, in words."""
    spans = ((-1e9, 0, "before"), (100, trace.repair_ms, "while cut"), (trace.repair_ms + 500, 1e9, "after"))
    texts = []
    for begin_ms, end_ms, when in spans:
        rates: list[float] = []
        for t_ms, bps in zip(trace.t_ms, trace.bps, strict=True):
            if begin_ms <= t_ms < end_ms:
                rates.append(bps)
        rate_text = rate(median(rates)) if rates else "nothing"
        texts.append(f"{rate_text} {when}")
    return f"{trace.link} {', '.join(texts)}"


def channels(results: AllreduceResults) -> plots.Plot | None:
    """Fig. 13: one rail, two channels on its one NIC, and two NICs, where either the NIC or its processor binds."""
    selected = [fabric for fabric in by_fabric(results) if "virtual" in fabric.policies]
    if not selected:
        return None
    with plots.drawing(_PANEL) as figure:
        alt_parts = []
        for axes, fabric in zip(figure.subplots(1, len(selected), squeeze=False)[0], selected, strict=True):
            single = next((policy for policy in fabric.policies if is_single(policy)), "")
            papers_names = {single: "TCP(Eth1)", "virtual": "TCP-TCP(Eth1)", "nezha": "TCP-TCP(Eth1-Eth2)"}
            looks = _looks([policy for policy in papers_names if policy in fabric.policies])
            for policy, look in looks.items():
                sizes, times = zip(*sorted(fabric.seconds[policy].items()), strict=True)
                _curve(axes, papers_names[policy], sizes, times, seconds, look)
            _by_size(axes, fabric.sizes, plots.seconds_tick, yscale="log", title=fabric.rails.label)
            axes.legend()
            alt_parts.append(_alt_text(fabric))
        caption = (
            "As Nezha's Fig. 13: where the link binds, a second channel on the same NIC gains nothing; where a rail's "
            "processor binds, it does."
        )
        return plots.finish(figure, "multirail-channels", ". ".join(alt_parts), caption)


def trainings(results: AllreduceResults) -> plots.Plot | None:
    """Fig. 12: speed of each training by policy, as parts of the fastest."""
    bars: list[tuple[str, dict[str, float]]] = []
    for (fabric, training), all_rows in grouped(results.trainings, "fabric", "workload").items():
        by_policy = grouped(all_rows, "policy")
        speeds = {policy: median(row.samples_per_s for row in rows) for policy, rows in by_policy.items()}
        bars.append((f"{training}, {fabric}", speeds))
    if not bars:
        return None
    bar_count = sum(len(speeds) + 1 for _, speeds in bars)
    with plots.drawing(0.9 + 0.24 * bar_count) as figure:
        axes = figure.subplots()
        ticks: dict[int, str] = {}
        alt_parts = []
        for name, speeds in bars:
            fastest = max(speeds.values())
            first = max(ticks, default=-2) + 2
            for y, (policy, speed) in enumerate(speeds.items(), first):
                bar = axes.barh(y, speed / fastest, color=colour_of(policy), height=0.8)
                mark(bar, policy, f"{policy}: {speed:.4g} samples/s, {speed / fastest:.3f} of the fastest")
                axes.annotate(f" {speed:.4g}/s", (speed / fastest, y), va="center", fontsize=8)
                ticks[y] = f"{name}: {policy}"
            speeds_text = ", ".join(f"{policy} {speed:.4g}" for policy, speed in speeds.items())
            alt_parts.append(f"{name}: {speeds_text}")
        axes.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
        axes.invert_yaxis()
        plots.quiet(axes, grid="x", xlim=(0, 1.15), xlabel="samples/s of a node, over the fastest")
        caption = "As Nezha's Fig. 12: gradients' allreduces replayed, with the computing between them as sleep."
        return plots.finish(figure, "multirail-trainings", f"Training speeds. {'; '.join(alt_parts)}", caption)


def losses(results: AllreduceResults) -> plots.Plot | None:
    """Loss by step of each network that was trained for real, over Gloo and over Railyard."""
    if not results.ddp_runs:
        return None
    with plots.drawing(_PANEL) as figure:
        alt_parts = []
        panels = figure.subplots(1, len(results.ddp_runs), squeeze=False)[0]
        for axes, ddp_run in zip(panels, results.ddp_runs, strict=True):
            gloo_line = axes.plot(ddp_run.gloo_losses, color=colour_of("gloo"), lw=4, alpha=0.6, label="Gloo")
            mark(gloo_line, "Gloo", "Gloo")
            name = f"Railyard, {ddp_run.policy}"
            line = axes.plot(ddp_run.losses, color=colour_of("nezha"), lw=1.2, ls=plots.DASHES[1], label=name)
            mark(line, name, name)
            plots.quiet(axes, grid="y", title=ddp_run.fabric, xlabel="step", ylabel="loss", ylim=(0, None))
            axes.legend()
            losses_text = f"{ddp_run.losses[0]:.3f} to {ddp_run.losses[-1]:.3f}"
            alt_parts.append(f"{ddp_run.fabric}: {losses_text}, Gloo's to {ddp_run.gloo_losses[-1]:.3f}")
        alt = f"Loss by step. {'; '.join(alt_parts)}"
        return plots.finish(figure, "multirail-losses", alt, "The mean of all ranks.")


def predicted(panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[tuple[int, float]]]]]]) -> Figure:
    """Draw predicted times, a panel for each fabric: [(fabric, [(policy, [(size, seconds)])])]. Needs `styled`."""
    figure = plots.new_figure(plots.WIDTH, 0.5 + _PANEL * len(panels))
    for axes, (fabric, lines) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        looks = _looks([policy for policy, _ in lines])
        for policy, points in lines:
            axes.plot(*zip(*points, strict=True), label=policy, **looks[policy])
        _by_size(axes, [size for size, _ in lines[0][1]], plots.seconds_tick, yscale="log", title=fabric)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
