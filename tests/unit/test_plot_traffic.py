"""Figures of traffic by kind."""

from dataclasses import replace

from railyard.results.plots import style
from railyard.results.plots.traffic import volumes
from tests.unit.results_sample import sample_run


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
