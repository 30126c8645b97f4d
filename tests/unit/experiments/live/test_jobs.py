"""Jobs on the live page, in Chromium: GPUs have the colour of their job, and links name the jobs that use them."""

import json
from pathlib import Path
from typing import Any

import pytest

from railyard.core.safe_files import Folder
from railyard.experiments.live import recorded
from railyard.experiments.live.sampler import structure
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.live_page import jobs_on_fabric
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.loading import load_any
from railyard.results.theory.fluid.jobs import predict_jobs
from tests.unit.browser import assert_accessible, assert_fits, chromium, opened
from tests.unit.experiments.live.test_matrix import selected

__all__ = ["chromium"]
SECOND = 1_000_000_000
EVEN, ODD = 0, 1
FILL = "element => getComputedStyle(element).fill"
EDGE = "element => getComputedStyle(element).strokeDasharray + getComputedStyle(element).strokeWidth"


@pytest.fixture(scope="module")
def messages() -> list[dict[str, Any]]:
    """A record of the fabric of two-jobs on which jobs share links: both from second 1 to 2, then `odd` alone."""
    spec = load_any("two-jobs", [])
    plan = nominal_plan(spec.gpu_fabrics[1])
    jobs = planned_jobs(spec, 1, plan).combined
    prediction = predict_jobs(jobs, rates_of(plan), plan.spec)
    fabric = structure("rail-only 2", plan)
    idle = [0] * len(fabric["links"])
    up = [1] * len(idle)
    both = jobs_on_fabric(plan, jobs, prediction.together)
    alone = jobs_on_fabric(plan, jobs.alone(ODD), prediction.alone[ODD])
    lines = [{"kind": "run", "data": {"title": "jobs", "active": []}}, {"kind": "fabric", "data": fabric}]
    for number, running in enumerate((both, alone)):
        lines.append({"kind": "jobs", "data": {"ns": (2 * number + 1) * SECOND, "fabric": "rail-only 2", **running}})
    for number in range(5):
        lines.append({"kind": "sample", "data": {"ns": number * SECOND, "links": [up, idle, idle, idle, idle]}})
    return lines


def page_of(messages: list[dict[str, Any]], path: Path) -> Path:
    """Write the page of a record into a folder."""
    path.joinpath(recorded.RECORD).write_text("".join(json.dumps(line) + "\n" for line in messages))
    with Folder(path) as folder:
        recorded.write_page(folder)
    return path / recorded.PAGE


@pytest.fixture
def page(messages: list[dict[str, Any]], tmp_path: Path) -> Path:
    return page_of(messages, tmp_path)


def show_second(tab: Any, second: float) -> None:
    """Move the slider."""
    tab.locator("#slider").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", str(second)
    )
    tab.get_by_text(f"{second:.3f} s", exact=True).first.wait_for()


def test_links_name_jobs_of_their_transfers(messages: list[dict[str, Any]]) -> None:
    both = next(line["data"] for line in messages if line["kind"] == "jobs")
    assert both["names"] == ["even", "odd"]
    assert (both["gpus"]["d0g0"], both["gpus"]["d0g1"]) == (EVEN, ODD)
    assert both["links"]["d0g1 rail"] == [EVEN, ODD]
    assert set(both["links"]) <= {f"{gpu} {side}" for gpu in both["gpus"] for side in ("hb", "rail")}


def test_gpus_have_the_colour_of_their_job(chromium: Any, page: Path) -> None:
    with opened(chromium, page.as_uri(), viewport={"width": 1440, "height": 900}) as tab:
        show_second(tab, 2)
        boxes = [tab.locator(f".node[aria-label={name}] .box") for name in ("d0g0", "d0g2", "d0g1")]
        fills = [box.evaluate(FILL) for box in boxes]
        assert fills[0] == fills[1] != fills[2]
        assert tab.locator("#jobs li").all_inner_texts() == ["job even", "job odd"]
        assert "job even" in selected(tab, "d0g0")
        assert "shared by jobs even, odd" in selected(tab, "link d0g1 rail0 to rail1")
        assert_accessible(tab)


def test_press_on_a_job_emphasises_its_gpus(chromium: Any, page: Path) -> None:
    with opened(chromium, page.as_uri(), viewport={"width": 1440, "height": 900}) as tab:
        show_second(tab, 4)
        button = tab.get_by_role("button", name="job odd", exact=True)
        button.focus()
        tab.keyboard.press("Enter")
        tab.locator(".node.pale").first.wait_for()
        assert button.get_attribute("aria-pressed") == "true"
        pale = [node.get_attribute("aria-label") for node in tab.locator(".node.pale").all()]
        assert len(pale) == 8
        assert "d0g0" in pale
        assert "d0g1" not in pale
        assert not tab.locator('.link[aria-label="link d0g1 rail0 to rail1"].pale').count()
        button.click()
        tab.locator(".node.pale").first.wait_for(state="detached")


def test_jobs_of_equal_colour_have_unlike_edges(chromium: Any, messages: list[dict[str, Any]], tmp_path: Path) -> None:
    names = [f"job-with-a-long-name-{number}" for number in range(20)]
    gpus = {"d0g0": 0, "d0g1": 8, "d0g2": 16, "d0g3": 1}
    many = [line for line in messages if line["kind"] != "jobs"]
    jobs = {"ns": SECOND, "fabric": "rail-only 2", "names": names, "gpus": gpus, "links": {}}
    many.insert(2, {"kind": "jobs", "data": jobs})
    with opened(chromium, page_of(many, tmp_path).as_uri(), viewport={"width": 390, "height": 800}) as tab:
        show_second(tab, 2)
        boxes = [tab.locator(f".node[aria-label={gpu}] .box") for gpu in gpus]
        fills = [box.evaluate(FILL) for box in boxes]
        assert fills[0] == fills[1] == fills[2] != fills[3]
        assert len({box.evaluate(EDGE) for box in boxes[:3]}) == 3
        assert tab.locator("#jobs button").count() == 20
        assert_fits(tab, 390)


def test_a_time_with_a_lone_job_shows_no_other(chromium: Any, page: Path) -> None:
    with opened(chromium, page.as_uri(), viewport={"width": 1440, "height": 900}) as tab:
        show_second(tab, 4)
        assert tab.locator("#jobs li").all_inner_texts() == ["job odd"]
        assert tab.locator(".node.job").count() == 8
        assert "job" not in selected(tab, "d0g0")
        assert "used by job odd" in selected(tab, "link d0g1 rail0 to rail1")
        show_second(tab, 0)
        assert tab.locator("#jobs").is_hidden()
        assert tab.locator(".node.job").count() == 0
