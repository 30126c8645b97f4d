"""The report in Chromium: no errors, no requests, accessible, legible, and no wider than a phone.

Needs `script/bootstrap browser`, and is skipped by name where Chromium or a library is missing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from railyard.core.records import Record
from railyard.results.runs.records import Run
from tests.unit import shown
from tests.unit.allreduce_sample import run_of, sample
from tests.unit.browser import SCHEMES, WIDTHS, assert_accessible, assert_fits, chromium, opened
from tests.unit.results_sample import sample_run
from tests.unit.steered_sample import steered_run

__all__ = ["chromium"]

R = TypeVar("R", bound=Record)
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


@pytest.fixture(scope="module", params=["plain", "four fabrics", "steered", "multirail"])
def report(request: pytest.FixtureRequest, chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs: dict[str, Callable[[], Run]] = {
        "plain": lambda: sample_run(4, 4, 2),
        "four fabrics": four_fabrics,
        "steered": lambda: steered_run(2, 4, 2),
        "multirail": lambda: run_of(sample()),
    }
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(shown.render(runs[request.param]()), encoding="utf-8")
    return path


@pytest.fixture
def visit(chromium: Any, report: Path) -> Iterator[Any]:
    """Function that opens the report; at the end nothing may have been reported or requested."""
    with ExitStack() as pages:

        def visited(width: int = 1440, scheme: str = "light") -> Any:
            size = {"width": width, "height": 900}
            return pages.enter_context(opened(chromium, report.as_uri(), viewport=size, color_scheme=scheme))

        yield visited


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_report_fits_every_width_and_is_accessible(visit: Any, width: int, scheme: str) -> None:
    page = visit(width, scheme)
    assert_fits(page, width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert_fits(page, width)
    if width == max(WIDTHS):
        assert page.evaluate(OVERFULL) == []
    assert_accessible(page, exclude=[["svg"]])  # a figure is one image, with a text of its own


def test_no_text_in_a_figure_has_the_colour_of_a_series(visit: Any) -> None:
    """Text is in the page's ink, or black or white on a coloured cell; axe looks at no text in SVG."""
    fills = visit().evaluate(
        "[...new Set([...document.querySelectorAll('svg text')].map(text => getComputedStyle(text).fill))]"
    )
    ink = visit().evaluate("getComputedStyle(document.body).color")
    assert ink in fills
    assert {*fills} <= {ink, "rgb(0, 0, 0)", "rgb(255, 255, 255)"}


def test_tables_sort_and_filter(visit: Any) -> None:
    page = visit()
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    table = page.locator(".wide > table:has(th button)").first
    column = table.locator("tbody tr td:nth-child(1)")
    before = column.all_inner_texts()
    table.locator("th button").first.click()
    assert column.all_inner_texts() == sorted(before, key=str.lower)
    table.locator("th button").first.click()
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    field = page.locator("input[type=search]").first
    field.fill("no row has this")
    hidden = (
        "input => [...input.parentElement.previousElementSibling.querySelectorAll('tbody tr')].every(r => r.hidden)"
    )
    assert field.evaluate(hidden)


def test_figures_enlarge_and_hide_series(visit: Any) -> None:
    page = visit()
    page.get_by_role("button", name="Enlarge").first.click()
    box = page.locator("dialog svg").get_attribute("viewBox")
    page.locator("dialog svg").hover()
    page.mouse.wheel(0, -100)
    page.wait_for_function("box => document.querySelector('dialog svg').getAttribute('viewBox') !== box", arg=box)
    page.get_by_role("button", name="Close").click()
    assert page.locator("dialog svg").count() == 0
    assert page.locator("figure svg").first.get_attribute("viewBox") == box
    for toggle in page.locator("button[aria-pressed]").all()[:1]:
        toggle.click()
        assert toggle.get_attribute("aria-pressed") == "false"
        assert page.locator("[data-series][style*='display: none']").count() >= 1


def test_print_shows_what_is_folded(visit: Any) -> None:
    page = visit()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
