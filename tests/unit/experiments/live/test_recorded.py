"""live.html of a finished run: its data, and in Chromium the state of links at random times."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railyard.core.safe_files import Folder
from railyard.experiments.live import recorded
from railyard.experiments.live.sampler import structure
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views.report import render
from tests.unit.browser import SCREENS, assert_accessible, assert_fits, chromium, opened
from tests.unit.sample_runs import sample_run
from tests.unit.stand_ins import plan_of

__all__ = ["chromium"]
ZERO_NS = 5_000_000_000
BEGIN_NS = ZERO_NS + 1_000_000_000
STEP_NS = 200_000_000
SAMPLES = 60
RANDOM_TIMES = 50
PATHS: list[dict[str, Any]] = [
    {"gpus": ["d0g1", "d1g1"], "links": [3, 7], "policy": "r by rail 1", "policy_links": [3, 7], "problem": ""},
    {"gpus": ["d0g1", "d0g0", "d1g0", "d1g1"], "links": [1, 0, 2, 4, 6, 5], "policy": "r by rail 1",
     "policy_links": [3, 7], "problem": ""},
]  # fmt: skip


def record(seed: int = 3) -> list[dict[str, Any]]:
    """A record of two fabrics whose links change at random, with a fault on the first."""
    title = "<two><!--<script></script>"
    lines: list[dict[str, Any]] = [{"kind": "run", "data": {"title": title, "active": [], "begin_ns": ZERO_NS}}]
    dice, ns = random.Random(seed), BEGIN_NS
    for label in ("rail-only", "other"):
        shown = structure(label, plan_of())
        lines.append({"kind": "fabric", "data": shown})
        links = len(shown["links"])
        for number in range(SAMPLES):
            columns: list[list[int]] = [[dice.choice([1, 1, 0]) for _ in range(links)]]
            columns += [[dice.choice([0, 400, 1000]) for _ in range(links)] for _ in range(2)]
            columns += [[0] * links, [0] * links]
            lines.append({"kind": "sample", "data": {"ns": ns, "links": columns}})
            if label == "rail-only" and number in (10, 11, 12, 13, 20):
                what = {10: "inject", 11: "port-down", 12: "rerouted", 13: "first-packet", 20: "repair"}[number]
                detail = {"kind": "link-down", "target": "d0g1"}
                lines.append({"kind": "event", "data": {"ns": ns + 1, "what": what, "detail": detail}})
            if label == "other" and number in (30, 50):
                crash = {"kind": "rail-switch-crash", "target": "rail0"}
                what = "inject" if number == 30 else "repair"
                lines.append({"kind": "event", "data": {"ns": ns + 1, "what": what, "detail": crash}})
            if label == "rail-only" and number in (2, 12, 20):
                path = PATHS[1 if number == 12 else 0]
                lines.append({"kind": "paths", "data": {"ns": ns + 1, "paths": {"d0g1 d1g1": path}}})
                lines.append({"kind": "step", "data": {"ns": ns + 1, "text": f"step at {number}"}})
                lines.append({"kind": "phase", "data": {"ns": ns + 2, "names": ["EP dispatch", "pp"]}})
            ns += STEP_NS
        lines.append({"kind": "fabric", "data": None})
    return lines


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded")
    (path / recorded.RECORD).write_text("".join(json.dumps(line) + "\n" for line in record()) + '{"kind": "samp')
    with Folder(path) as folder:
        assert recorded.write_page(folder)
    return path / recorded.PAGE


def test_a_folder_without_a_record_gets_no_page(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        assert not recorded.write_page(folder)
    assert list(tmp_path.iterdir()) == []


def test_the_page_holds_the_whole_record_and_needs_no_file(page: Path) -> None:
    text = page.read_text()
    found = re.search(r'<script id="record" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    assert json.loads(found[1]) == record()
    assert "<" not in found[1]  # `<!--<script` would take what follows into the record
    assert not re.search(r'(src|href)="(?!data:|#)', text.partition("<script")[0])
    assert "\nimport " not in text
    assert "\nexport " not in text


@pytest.fixture(scope="module")
def tab(chromium: Any, page: Path) -> Iterator[Any]:
    with opened(chromium, page.as_uri()) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_is_accessible_at_every_width(chromium: Any, page: Path, width: int, scheme: str) -> None:
    with opened(chromium, page.as_uri(), viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
        tab.get_by_role("button", name="link d0g1 rail0 to rail1").dispatch_event("click")
        tab.get_by_role("button", name="Fault", exact=True).click()
        tab.wait_for_timeout(200)
        assert_fits(tab, width)
        assert_accessible(tab)


def show_fabric(tab: Any, number: int) -> None:
    """Choose a fabric, and wait until it is drawn: before, the slider still has the range of the fabric shown last."""
    tab.locator("#fabrics").select_option(str(number))
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


SHOWN = """async (seconds) => {
    const slider = document.getElementById("slider");
    slider.value = seconds;
    slider.dispatchEvent(new Event("input"));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return [...document.querySelectorAll(".link line:not(.hit)")].map(
        (line) => [line.getAttribute("class") !== "broken", parseFloat(line.style.strokeWidth)]);
}"""


def test_links_at_random_times_equal_the_record(tab: Any) -> None:
    samples = [line["data"] for line in record() if line["kind"] == "sample"]
    dice = random.Random(7)
    for number in range(2):
        show_fabric(tab, number)
        own = samples[number * SAMPLES : (number + 1) * SAMPLES]
        for _ in range(RANDOM_TIMES // 2):
            at = dice.randrange(SAMPLES)
            up, to, back, *_ = own[at]["links"]
            seconds = (own[at]["ns"] - ZERO_NS) / 1e9 + 0.05
            expected = [
                [bool(state), 1 + 5 * max(a, b) / 1000 if state else 2]
                for state, a, b in zip(up, to, back, strict=True)
            ]
            assert tab.evaluate(SHOWN, min(seconds, (own[-1]["ns"] - ZERO_NS) / 1e9)) == expected


def test_jumps_follow_the_fault(tab: Any) -> None:
    show_fabric(tab, 0)
    shown = []
    for name in ("Fault", "Detection", "Reroute", "First packet", "Repair"):
        tab.get_by_role("button", name=name, exact=True).click()
        tab.wait_for_timeout(100)
        shown.append(tab.locator("#now").text_content())
    assert shown == ["3.000 s", "3.200 s", "3.400 s", "3.600 s", "5.000 s"]


AT = """async (seconds) => {
    const slider = document.getElementById("slider");
    slider.value = seconds;
    slider.dispatchEvent(new Event("input"));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return ["path", "step", "phase"].map((id) => document.getElementById(id).textContent);
}"""


def test_path_step_and_phase_of_a_past_time_are_shown(tab: Any) -> None:
    show_fabric(tab, 0)
    tab.locator("#src").fill("d0g1")
    tab.locator("#dst").fill("d1g1")
    text, *others = tab.evaluate(AT, 1.1)
    assert text.startswith("no path")
    assert others == ["", ""]
    for seconds, path, step in ((2.0, PATHS[0], 2), (4.0, PATHS[1], 12), (6.0, PATHS[0], 20)):
        text, *others = tab.evaluate(AT, seconds)
        assert text.startswith(f"packets: {' → '.join(path['gpus'])};"), "the policy's path follows"
        assert others == [f"step at {step}", "phase: EP dispatch, pp"]
        halo = tab.locator(".halo line")
        assert halo.count() == len(path["links"]) + 2
        assert tab.locator(".halo line.policy").count() == 2


def test_the_report_has_the_page_in_a_frame(chromium: Any, page: Path) -> None:
    run = sample_run(repeats=1)
    run.provenance["live_page"] = recorded.PAGE
    path = page.with_name("report.html")
    path.write_text(render(Analysis(run)))
    problems, tab = list[str](), chromium.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    tab.goto(path.as_uri())
    tab.locator("iframe").scroll_into_view_if_needed()
    frame = tab.frame_locator("iframe")
    frame.get_by_role("button", name="Repair", exact=True).click()
    assert frame.locator("#now").text_content(timeout=5000) == "5.000 s"
    tab.close()
    assert problems == []


STROKE = "element => getComputedStyle(element).stroke"
BROKEN = "() => getComputedStyle(document.querySelector('#legend .broken')).borderTopColor"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_crashed_switch_is_red_also_when_it_is_selected(chromium: Any, page: Path, scheme: str) -> None:
    with opened(chromium, page.as_uri(), color_scheme=scheme) as tab:
        show_fabric(tab, 1)
        tab.get_by_role("button", name="Fault", exact=True).click()
        switch = tab.get_by_role("button", name="rail0", exact=True)
        switch.dispatch_event("click")
        tab.locator("#wrong li").wait_for()
        assert switch.locator(".box").evaluate(STROKE) == tab.evaluate(BROKEN)
        assert switch.locator(".rate").text_content() == "✕ faulty"
        crashed_s = (BEGIN_NS - ZERO_NS + (SAMPLES + 30) * STEP_NS) / 1e9
        assert tab.locator("#wrong").inner_text() == f"✕ rail-switch-crash since {crashed_s:.3f} s"
        tab.get_by_role("button", name="Repair", exact=True).click()
        tab.locator("#wrong li").wait_for(state="hidden")
        assert switch.locator(".box").evaluate(STROKE) != tab.evaluate(BROKEN)


def test_the_drawing_and_the_events_are_one_tab_stop_each(tab: Any) -> None:
    show_fabric(tab, 0)
    tab.locator("body").evaluate("body => body.ownerDocument.activeElement.blur()")
    for place in ("#fabric", "#events"):
        assert tab.locator(f"{place} [tabindex='0']").count() == 1, place
    tab.locator("#fabric [tabindex='0']").focus()
    for key, name in (("ArrowRight", "rail1"), ("ArrowDown", "d1g0"), ("ArrowLeft", "d0g1"), ("ArrowUp", "rail0")):
        tab.keyboard.press(key)
        assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == name, key
    tab.keyboard.press("Enter")
    assert tab.locator("#element").inner_text().startswith("rail0")
    assert tab.locator("#fabric [tabindex='0']").count() == 1
    tab.locator("#events [tabindex='0']").focus()
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.closest('li').previousSibling !== null")


def test_a_tooltip_says_what_an_element_is_and_goes_at_escape(tab: Any) -> None:
    show_fabric(tab, 0)
    tip = tab.locator("#tip")
    tab.get_by_role("button", name="rail1", exact=True).hover()
    assert tip.inner_text().splitlines()[0] == "rail1"
    assert "have a carrier" in tip.inner_text()
    tab.keyboard.press("Escape")
    assert tip.is_hidden()
    tab.get_by_role("button", name="d0g1", exact=True).focus()
    assert tip.inner_text().startswith("d0g1")


def test_the_title_shows_markup_as_text(tab: Any) -> None:
    assert tab.locator("#title").text_content() == "<two><!--<script></script>"
