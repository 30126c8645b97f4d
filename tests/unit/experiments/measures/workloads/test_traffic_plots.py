"""Figures of traffic by kind, and by GPU pair."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.measures.faults.records import GOODPUT
from railyard.experiments.measures.workloads.report.traffic_plots import volumes
from railyard.results.plots import style
from tests.unit import shown
from tests.unit.sample_runs import sample_run


def test_every_kind_of_traffic_has_a_colour_of_its_own() -> None:
    colours = style.kind_colours(["broadcast", "TP", "parameter server", "collective", "DP", "EP", "PP"])
    assert list(colours) == ["TP", "PP", "DP", "EP", "collective", "broadcast", "parameter server"]
    assert len(set(colours.values())) == len(colours)


def test_unknown_kind_of_traffic_is_drawn() -> None:
    flows = [replace(flow, kind="broadcast") for flow in sample_run(2, 2, 1).flows]
    plot = volumes({"new": flows})
    assert "new: broadcast" in plot.alt
    assert style.kind_colours(["broadcast"])["broadcast"] in plot.svg
    assert "100%" in plot.svg


def luminance_of(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@given(st.integers(0, 0xFFFFFF).map("#{:06x}".format))
def test_text_on_any_colour_has_the_contrast_of_wcag(colour: str) -> None:
    low, high = sorted(map(luminance_of, (colour, style.ink_on(colour))))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_compared_heatmaps_share_a_scale() -> None:
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.measurements = [], []
    at = next(i for i, f in enumerate(run.flows) if f.workload == "moe" and f.fabric == "rail-only")
    run.flows[at] = replace(run.flows[at], delivered=1)
    page = shown.render(run)
    figures = [part for part in page.split("<svg")[1:] if "Heatmap of moe on" in part]
    ticks = [re.findall(r">([\d.]+\s[KM]?B)</text>", figure) for figure in figures]
    assert len(figures) == 2
    assert ticks[0] == ticks[1] != []
