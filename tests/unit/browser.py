"""Chromium for tests of pages: what every page must be, and a browser that is skipped by name where one is missing."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 768, 1440)
SCREENS = tuple(zip(WIDTHS, ("light", "dark", "light"), strict=True))
"""Each width and each colour scheme once: no colour depends on the width, and no layout on the scheme."""
DESKTOP = {"width": max(WIDTHS), "height": 900}
SMALLEST_PX = 9

# of every element with text of its own, its size on the screen, with the scale of the figure that it is in
FONT_SIZES = """() => [...document.querySelectorAll("body *")]
  .filter(e => e.getClientRects().length && !e.closest("script, title")
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
  .map(e => {
    const svg = e.closest("svg"), px = parseFloat(getComputedStyle(e).fontSize);
    return svg ? px * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : px;
  })"""


@contextmanager
def running() -> Iterator[Any]:
    """Run Debian's Chromium, driven by playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with running() as browser:
        yield browser


@contextmanager
def opened(chromium: Any, url: str, **options: Any) -> Iterator[Any]:
    """Open a page; at the end, nothing may be in the console, and nothing elsewhere than below `url` was requested."""
    problems, tab = list[str](), chromium.new_page(**options)
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda r: None if r.url.startswith(("data:", url)) else problems.append(r.url))
    tab.goto(url)
    try:
        yield tab
    finally:
        tab.close()
    assert problems == []


@pytest.fixture(scope="module")
def tab(chromium: Any, report: Path) -> Iterator[Any]:
    """The file of a test module's fixture `report`, on a wide screen."""
    with opened(chromium, report.as_uri(), viewport=DESKTOP) as found:
        yield found


def assert_fits(tab: Any, width: int) -> None:
    """Assert that a page has no text below `SMALLEST_PX` and can't be scrolled sideways."""
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert min(tab.evaluate(FONT_SIZES)) > SMALLEST_PX - 0.05


def assert_accessible(tab: Any, contrast: bool = True, **context: Any) -> None:
    """Assert that axe-core finds no violation; skip where it is missing. `context`: its context, such as exclude.

    Checking contrasts takes most of the time, seconds on a page with a few thousand elements.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    options = {"resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": contrast}}}
    violations = axe.Axe().run(tab, context=context or None, options=options).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"]) for v in violations] == []
