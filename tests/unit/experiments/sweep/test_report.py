"""The report of a sweep: its figures over the axes, its tables and its CSV; in Chromium as the other reports."""

import io
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from railyard.results.analysis.aggregate import Spread
from railyard.results.plots import sweep_axes
from railyard.results.plots.sweep_axes import AxisPoint, figures_of
from railyard.results.run_folder import RESULT_COLUMNS
from railyard.results.views import sweep as views
from tests.unit.browser import SCREENS, WIDTHS, assert_accessible, assert_fits, chromium, opened, tab
from tests.unit.results.views.test_report_browser import OVERFULL

__all__ = ["chromium", "tab"]
AXES = ("fabrics.*.rail_rate", "domains", "seed")
RATES = {"20Mbit": 20, "100Mbit": 100, "1Gbit": 1000}
MACHINES = [{"machine": "m1", "kernel": "6.1", "cores": 2, "seconds": 0.4, "verdict": "ok"}]
RUNS = [{"folder": "0" * 16, "label": "domains=2", "state": "ok", "start_ns": 0, "end_ns": 10**9, "machine": "m1"}]


def results(fabrics: Sequence[str] = ("rail-only", "rail-optimized")) -> pd.DataFrame:
    """Times of a sweep of two axes and two seeds; one value is invalid."""
    rows = []
    for (rate, mbit), domains, seed, fabric in product(RATES.items(), (2, 4), (1, 2), fabrics):
        predicted = domains * 20 / mbit
        rows.append(
            {
                "fabrics.*.rail_rate": rate, "domains": domains, "seed": seed, "run": f"{rate}-{domains}-{seed}",
                "machine": "m1", "fabric": fabric, "policy": "dr", "workload": "all-to-all", "phase": "",
                "metric": "completion_time", "unit": "s", "value": predicted * (1 + seed / 50), "predicted": predicted,
                "ratio": 1 + seed / 50, "repeat": 0, "verdict": "invalid" if (rate, domains) == ("1Gbit", 4) else "ok",
            }
        )  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=[*RESULT_COLUMNS, *AXES, "run", "machine"])


def page(frame: pd.DataFrame, axes: Sequence[str] = AXES) -> bytes:
    shown = views.tables(frame, axes)
    return views.render(
        "two", shown, views.figures(frame, axes), views.csv_of(frame, axes), RUNS, MACHINES, ["a note of <b>it</b>"]
    )


def point(line: str = "a", work: str = "w", value: float = 1.0, **axes: Any) -> AxisPoint:
    return AxisPoint(axes, work, line, Spread((value,), None))


def test_a_panel_for_each_value_of_the_second_axis() -> None:
    (figure,) = figures_of([point(rate=r, n=n) for r, n in product(("20Mbit", "1Gbit", "100Mbit"), (2, 4))])
    assert (figure.x, [panel.title for panel in figure.panels]) == ("rate", ["n 2", "n 4"])
    assert sorted(figure.ticks.items(), key=lambda item: item[1][0]) == [
        ("20Mbit", (2e7, "20Mbit")), ("100Mbit", (1e8, "100Mbit")), ("1Gbit", (1e9, "1Gbit")),
    ]  # fmt: skip


def test_numbers_are_the_axis_before_names() -> None:
    (figure,) = figures_of([point(kind=k, n=n) for k, n in product(("x", "y"), (2, 4))])
    assert (figure.x, [panel.title for panel in figure.panels]) == ("n", ["kind x", "kind y"])


def test_values_of_a_third_axis_have_figures_of_their_own() -> None:
    figures = figures_of([point(n=n, m=m, k=k) for n, m, k in product((1, 2), (3, 4), (5, 6))])
    assert [figure.title for figure in figures] == ["w, k 5", "w, k 6"]
    assert all(len(figure.panels) == 2 for figure in figures)


def test_zipped_axes_share_a_panel_and_its_ticks() -> None:
    (figure,) = figures_of([point(domains=n, rails=8 // n) for n in (2, 4, 8)])
    assert len(figure.panels) == 1
    assert [text for _, text in figure.ticks.values()] == ["2\nrails 4", "4\nrails 2", "8\nrails 1"]


def test_without_an_axis_fabrics_are_compared() -> None:
    (figure,) = figures_of([point(line) for line in ("a", "b")])
    assert (figure.x, list(figure.ticks)) == ("fabric", ["a", "b"])
    assert figures_of([]) == ()


def test_a_figure_has_its_values_its_prediction_and_its_verdicts() -> None:
    (figure,) = views.figures(results(), AXES)
    assert figure.title == "all-to-all: completion time"
    assert "rail-only, dr at 20Mbit: 2.060 s, predicted 2.000 s" in figure.plot.alt.replace("\xa0", " ")
    assert "cross: invalid" in figure.plot.svg
    assert "cross: degraded" not in figure.plot.svg


def test_many_panels_are_left_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_axes, "MAX_PANELS", 1)
    (figure,) = figures_of([point(n=n, m=m) for n, m in product((1, 2), range(4))])
    assert sweep_axes.plot(figure, "many").caption.startswith("3 more values ")


def test_the_csv_has_every_row_with_plain_numbers() -> None:
    frame = pd.read_csv(io.StringIO(views.csv_of(results(), AXES)))
    assert len(frame) == 3 * 2 * 2
    row = frame[(frame["fabrics.*.rail_rate"] == "20Mbit") & (frame.domains == 2) & (frame.fabric == "rail-only")].iloc[
        0
    ]
    assert (row["median"], row["min"], row["max"], row.n, row.predicted) == pytest.approx((2.06, 2.04, 2.08, 2, 2))
    assert views.csv_of(pd.DataFrame(), AXES) == ""


def test_a_sweep_without_times_has_no_figure_and_no_csv() -> None:
    text = page(pd.DataFrame()).decode()
    assert "<figure>" not in text
    assert "download=" not in text


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "report.html"
    path.write_bytes(page(results()))
    return path


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_report_fits_and_is_accessible(chromium: Any, report: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900}
    with opened(chromium, report.as_uri(), viewport=size, color_scheme=scheme) as tab:
        assert_fits(tab, width)
        if width == max(WIDTHS):
            assert tab.evaluate(OVERFULL) == []
        said = tab.locator("figure > div").first.evaluate("div => getComputedStyle(div, '::before').content")
        assert (said == '"↔ scrolls sideways"') == (width == min(WIDTHS))
        assert_accessible(tab, exclude=[["svg"]])


def test_rates_are_sorted_as_numbers(tab: Any) -> None:
    table = tab.locator("#medians table")
    table.get_by_role("button", name="rail_rate").click()
    values = table.locator("tbody tr td:nth-child(1)").all_inner_texts()
    assert list(dict.fromkeys(values)) == ["20Mbit", "100Mbit", "1Gbit"]


def test_the_csv_can_be_downloaded(tab: Any) -> None:
    with tab.expect_download() as started:
        tab.get_by_role("link", name="Download the times as CSV").click()
    assert started.value.suggested_filename == "two.csv"
    assert Path(started.value.path()).read_text() == views.csv_of(results(), AXES)
