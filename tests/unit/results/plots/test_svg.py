"""Figures in the report are small, and look as Matplotlib drew them."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from railyard.results.plots import style
from railyard.results.plots.svg import mark, path_data

_COORDINATE = st.floats(-800, 800).map(lambda value: round(value, 6))
_POINTS = st.lists(st.tuples(_COORDINATE, _COORDINATE), min_size=8, max_size=40)


def points_of(data: str) -> list[tuple[float, float]]:
    """Return the points of a path of M, l, h and v."""
    x = y = 0.0
    points = []
    for command, text in re.findall(r"([a-zA-Z])([^a-zA-Z]*)", data):
        numbers = [float(number) for number in re.findall(r"-?\d*\.?\d+", text)]
        for n in range(0, len(numbers), 1 if command in "hv" else 2):
            if command == "M":
                x, y = numbers[n : n + 2]
            else:
                x += numbers[n] if command in "lh" else 0
                y += numbers[n] if command == "v" else numbers[n + 1] if command == "l" else 0
            points.append((x, y))
    return points


@given(_POINTS)
def test_relative_path_ends_where_the_absolute_one_does(points: list[tuple[float, float]]) -> None:
    data = "M " + " L ".join(f"{x:.6f} {y:.6f}" for x, y in points)
    found = points_of(path_data(data))
    for at in (0, -1):
        assert abs(found[at][0] - points[at][0]) <= 0.0501
        assert abs(found[at][1] - points[at][1]) <= 0.0501
    for x, y in points:  # every turn of the line is still one, or lies on it
        assert any(
            min(a, c) - 0.06 <= x <= max(a, c) + 0.06 and min(b, d) - 0.06 <= y <= max(b, d) + 0.06
            for (a, b), (c, d) in zip(found, [*found[1:], found[-1]], strict=True)
        )


def test_steps_become_horizontal_and_vertical_lines() -> None:
    assert path_data("M 0 1 L 2 1 L 2 3 L 4 3 L 5 3 L 5 3") == "M0 1h2v2h3"
    assert path_data("M 0.5 0 L 1 1 L 2 -3 z M 4 4 L 4 4") == "M.5 0l.5 1 1-4zM4 4v0"


def test_marked_shapes_have_a_series_and_tooltips() -> None:
    with style.drawing(1) as figure:
        axes = figure.subplots()
        mark(axes.plot([1, 2], [1, 2], "o"), "rail <only>", "first & last", "second")
        mark(axes.barh(0, 1), "", "a bar")
        root = ElementTree.fromstring(style.finish(figure, "f", "alternative").svg)
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["a bar", "first & last", "second"]
    series = [element.attrib["data-series"] for element in root.iter() if "data-series" in element.attrib]
    assert series == ["rail <only>"]
