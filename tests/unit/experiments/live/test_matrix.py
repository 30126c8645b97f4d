"""The matrix of a fabric above 128 GPUs, in Chromium: its nodes, links and planes can be selected, and show samples."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railyard.core.safe_files import Folder
from railyard.experiments.live import recorded
from railyard.experiments.live.sampler import structure
from railyard.topologies.plan import Plan
from tests.unit.browser import SCREENS, assert_accessible, assert_fits, chromium, opened
from tests.unit.stand_ins import plan_of

__all__ = ["chromium"]
NS = 5_000_000_000
CRASHED = {"rail-switch-crash": "rail3", "spine-crash": "spine0", "gpu-crash": "d4g5"}
PATH = {"gpus": ["d0g1", "d3g1"], "policy": "r by rail 1", "problem": ""}


def page_of(plan: Plan, folder: Path) -> Path:
    """Write the page of a fabric whose link d0g1:rail0 has no carrier; d3g2's HB domain is full."""
    shown = structure("large", plan)
    names = [(link["a"], link["interface"]) for link in shown["links"]]
    up = [int(name != ("d0g1", "rail0")) for name in names]
    used = [1000 * (name == ("d3g2", "hb0")) for name in names]
    idle = [0] * len(names)
    rail = [names.index((name, "rail0")) for name in PATH["gpus"]]
    lines = [{"kind": "run", "data": {"title": "large", "active": []}}, {"kind": "fabric", "data": shown}]
    lines += [{"kind": "sample", "data": {"ns": NS + i, "links": [up, used, idle, idle, idle]}} for i in (0, 10**9)]
    path = {**PATH, "links": rail, "policy_links": rail}
    lines.append({"kind": "paths", "data": {"ns": NS, "paths": {"d0g1 d3g1": path}}})
    for kind, target in CRASHED.items():
        detail = {"kind": kind, "target": target}
        lines.append({"kind": "event", "data": {"ns": NS, "what": "inject", "detail": detail}})
    folder.joinpath(recorded.RECORD).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Folder(folder) as opened_folder:
        recorded.write_page(opened_folder)
    return folder / recorded.PAGE


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(plan_of("rail-optimized", 17, 8, spines=2), tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def tab(chromium: Any, page: Path) -> Iterator[Any]:
    with opened(chromium, page.as_uri(), viewport={"width": 1440, "height": 900}) as found:
        yield found


def selected(tab: Any, name: str) -> str:
    """Press the button of an element, and return what the panel says of it."""
    tab.get_by_role("button", name=name, exact=True).first.click()
    return str(tab.locator("#element").text_content())


@pytest.mark.parametrize("name", CRASHED.values())
def test_crashed_switch_stays_red_while_selected(tab: Any, name: str) -> None:
    red = tab.evaluate("getComputedStyle(document.querySelector('#legend .broken')).borderTopColor")
    selected(tab, name)
    box = tab.locator(f".node.selected[aria-label={name}] .box")
    assert box.evaluate("element => getComputedStyle(element).stroke") == red
    assert tab.locator("#wrong").inner_text().startswith(f"✕ {dict(zip(CRASHED.values(), CRASHED, strict=True))[name]}")


@pytest.mark.parametrize("name", ["hb3", "rail5", "spine1", "d16g7"])
def test_nodes_of_the_matrix_can_be_selected(tab: Any, name: str) -> None:
    assert selected(tab, name).startswith(name)
    assert tab.locator(f".node.selected[aria-label={name}]").count() == 1


@pytest.mark.parametrize("link", ["d3g2 hb0 to hb3", "d3g2 rail0 to rail2"])
def test_links_of_a_cell_are_chosen_in_the_panel(tab: Any, link: str) -> None:
    selected(tab, "d3g2")
    tab.locator("#links").get_by_role("button", name=link, exact=True).click()
    assert tab.locator("#element").text_content().startswith(f"Link of d3g2 ({link.split()[1]}) to {link.split()[3]}")
    assert tab.locator(".cell.selected").count() == 1


def test_an_uplink_is_a_cell_in_the_row_of_its_spine(tab: Any) -> None:
    name = tab.locator("[role=button][aria-label^='link rail5'][aria-label$='to spine1']").get_attribute("aria-label")
    assert selected(tab, name).startswith("Link of rail5")


def test_cells_show_samples_and_paths(tab: Any) -> None:
    cell = tab.locator("[aria-label=d0g1] .cell")
    assert [one.get_attribute("class") for one in cell.all()] == ["cell broken", "cell u0"]
    fills = [one.evaluate("e => getComputedStyle(e).fill") for one in tab.locator("[aria-label=d3g2] .cell").all()]
    assert fills[1] == "rgb(8, 47, 112)", "the HB link is full"
    assert fills[0] != fills[1]
    tab.locator("#src").fill("d0g1")
    tab.locator("#dst").fill("d3g1")
    tab.get_by_text("packets: d0g1 → d3g1").wait_for()
    onpath = {one.get_attribute("aria-label") for one in tab.locator(".node.onpath.onpolicy").all()}
    assert onpath == {"d0g1", "rail1", "d3g1"}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_matrix_is_accessible_at_every_width(chromium: Any, page: Path, width: int, scheme: str) -> None:
    with opened(chromium, page.as_uri(), viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
        selected(tab, "d3g2")
        assert_fits(tab, width)
        assert_accessible(tab)


def test_each_plane_has_a_part_of_a_cell(chromium: Any, tmp_path: Path) -> None:
    with opened(chromium, page_of(plan_of("dual-plane", 17, 8), tmp_path).as_uri()) as tab:
        parts = tab.locator("[aria-label=d0g1] .cell")
        boxes = [one.bounding_box() for one in parts.all()]
        assert len(boxes) == 3
        assert boxes[1]["x"] - boxes[0]["x"] == pytest.approx(boxes[0]["width"], abs=1), "side by side"
        assert "broken" in parts.nth(0).get_attribute("class")
        assert "broken" not in parts.nth(1).get_attribute("class")
        assert selected(tab, "rail1p1").startswith("rail1p1")
