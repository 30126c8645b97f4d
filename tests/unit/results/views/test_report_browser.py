"""The report in Chromium: no errors, no requests, accessible, legible, and no wider than a phone.

Needs `script/bootstrap browser`, and is skipped by name where Chromium or a library is missing.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from railyard.core.records import Record
from railyard.results.runs.records import Run
from tests.unit import shown
from tests.unit.browser import SCREENS, WIDTHS, assert_accessible, assert_fits, chromium, opened, tab
from tests.unit.experiments.measures.allreduce.sample_results import run_of, sample
from tests.unit.sample_runs import sample_run
from tests.unit.steered_runs import steered_run

__all__ = ["chromium", "tab"]

R = TypeVar("R", bound=Record)
ONE_PAGE = pytest.mark.parametrize("report", ["four fabrics"], indirect=True)
"""For scripts of the page, which are the same in each."""
# of every table that is wider than its box, its heading and both widths
OVERFULL = """() => [...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => [box.querySelector("thead").innerText, box.scrollWidth, box.clientWidth])"""


def relabelled(record: R) -> R:
    """The record, of a fabric with another label."""
    return replace(record, interval=replace(record.interval, fabric=f"{record.fabric} 2"))


def four_fabrics() -> Run:
    """The two fabrics of the sample, and both again under other labels; times have predictions with latency too."""
    run, other = sample_run(4, 4, 2), sample_run(4, 4, 2, seed=8)
    run.fabrics += [replace(one, label=f"{one.label} 2") for one in other.fabrics]
    run.measurements += [relabelled(one) for one in other.measurements]
    run.flows += [relabelled(one) for one in other.flows]
    run.loads += [relabelled(one) for one in other.loads]
    run.measurements = [replace(one, predicted_with_latency=one.predicted) for one in run.measurements]
    return run


@pytest.fixture(scope="module", params=["four fabrics", "steered", "multirail"])
def report(request: pytest.FixtureRequest, chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs: dict[str, Callable[[], Run]] = {
        "four fabrics": four_fabrics,
        "steered": lambda: steered_run(2, 4, 2),
        "multirail": lambda: run_of(sample()),
    }
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(shown.render(runs[request.param]()), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_report_fits_every_width_and_is_accessible(chromium: Any, report: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900}
    with opened(chromium, report.as_uri(), viewport=size, color_scheme=scheme) as tab:
        assert_fits(tab, width)
        tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert_fits(tab, width)
        is_widest = width == max(WIDTHS)
        if is_widest:
            assert tab.evaluate(OVERFULL) == []
        # a figure is one image, with a text of its own; the narrower screens had both colour schemes
        assert_accessible(tab, exclude=[["svg"]], contrast=not is_widest)


def test_no_text_in_a_figure_has_the_colour_of_a_series(tab: Any) -> None:
    """Text is in the page's ink, or black or white on a coloured cell; axe looks at no text in SVG."""
    fills = tab.evaluate(
        "[...new Set([...document.querySelectorAll('svg text')].map(text => getComputedStyle(text).fill))]"
    )
    ink = tab.evaluate("getComputedStyle(document.body).color")
    assert ink in fills
    assert {*fills} <= {ink, "rgb(0, 0, 0)", "rgb(255, 255, 255)"}


@ONE_PAGE
def test_tables_sort_and_filter(tab: Any) -> None:
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    table = tab.locator(".wide > table:has(th button)").first
    column = table.locator("tbody tr td:nth-child(1)")
    before = column.all_inner_texts()
    table.locator("th button").first.click()
    assert column.all_inner_texts() == sorted(before, key=str.lower)
    table.locator("th button").first.click()
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    field = tab.locator("input[type=search]").first
    field.fill("nowhere")
    hidden = (
        "input => [...input.parentElement.previousElementSibling.querySelectorAll('tbody tr')].every(r => r.hidden)"
    )
    assert field.evaluate(hidden)


@ONE_PAGE
def test_figures_enlarge_and_hide_series(tab: Any) -> None:
    tab.get_by_role("button", name="Enlarge").first.click()
    box = tab.locator("dialog svg").get_attribute("viewBox")
    tab.locator("dialog svg").hover()
    tab.mouse.wheel(0, -100)
    tab.wait_for_function("box => document.querySelector('dialog svg').getAttribute('viewBox') !== box", arg=box)
    tab.get_by_role("button", name="Close").click()
    tab.locator("dialog svg").wait_for(state="detached")  # a dialog says later that it was closed
    assert tab.locator("figure svg").first.get_attribute("viewBox") == box
    for toggle in tab.locator("button[aria-pressed]").all()[:1]:
        toggle.click()
        assert toggle.get_attribute("aria-pressed") == "false"
        assert tab.locator("[data-series][style*='display: none']").count() >= 1


@ONE_PAGE
def test_print_shows_folded_parts(tab: Any) -> None:
    folded = tab.locator("details:not([open])")
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")
    before = folded.count()
    assert before > 0
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert folded.count() == 0
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folded.count() == before
