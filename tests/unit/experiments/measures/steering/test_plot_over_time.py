"""The figure of a steered run over time: its two groups of rails, and the labels at the ends of lines."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.measures.steering import plot_over_time as steering
from railyard.experiments.measures.steering.analysis import intervals
from railyard.results.plots import style
from tests.unit.steered_runs import steered_run

RAIL, HOT = ("rail", False), ("rail", True)


def test_hot_and_other_rails_have_a_colour_and_labels_each() -> None:
    interval = next(one for one in intervals(steered_run(2, 8, 1, ("health-best",))) if one.policy == "health-best")
    assert steering.loaded_elements(interval) == {("rail", 0), ("rail", 1)}
    svg = steering.over_time(interval).svg
    for label in ("hot rails 0, 1", "rails 2 to 7"):
        assert f">{label}<" in svg
    assert "light to dark" not in svg.partition("pairs by path")[0]
    colours = {
        name: set(re.findall(rf'data-series="{name}"[^>]*>.*?stroke[:=]"?\s*(#[0-9a-f]{{6}})', svg))
        for name in ("hot rail 0", "hot rail 1", "rail 2", "rail 7")
    }
    assert colours["hot rail 0"] == colours["hot rail 1"] == {style.VERMILION}
    assert colours["rail 2"] == colours["rail 7"] == {style.BLUE}


def test_labels_do_not_overlap_and_stay_in_the_panel() -> None:
    ends = {RAIL: [(0.97, 5), (0.98, 6), (0.96, 7), (0.99, 9)], HOT: [(0.95, 0), (0.4, 1), (1.0, 2)]}
    labels = steering.end_labels(ends)
    assert {label.text for label in labels} == {"rails 5 to 7, 9", "hot rail 1", "hot rails 0, 2"}
    heights = [label.y for label in labels]
    assert max(heights) <= 1
    assert all(above - below >= 0.0999 for below, above in pairwise(heights))


@given(st.lists(st.tuples(st.sampled_from((RAIL, HOT)), st.floats(0, 1)), max_size=80))
def test_every_line_has_a_label_however_many_there_are(lines: list[tuple[tuple[str, bool], float]]) -> None:
    ends: dict[tuple[str, bool], list[tuple[float, int]]] = {}
    for number, (look, end) in enumerate(lines):
        ends.setdefault(look, []).append((end, number))
    labels = steering.end_labels(ends)
    assert len(labels) <= 8
    assert {label.look for label in labels} == set(ends)
    assert all(0 <= label.y <= 1.0001 for label in labels)
