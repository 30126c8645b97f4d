"""The live page of a fabric whose GPUs share NICs, in Chromium: a row of NICs between GPUs and rail switches."""

from pathlib import Path
from typing import Any

from tests.unit.browser import chromium, opened
from tests.unit.experiments.live.test_matrix import page_of, selected
from tests.unit.stand_ins import plan_of

__all__ = ["chromium"]


def test_nics_are_drawn_below_their_rail_switches(chromium: Any, tmp_path: Path) -> None:
    page = page_of(plan_of("rail-optimized", 4, 4, spines=2, gpus_per_nic=2), tmp_path)
    with opened(chromium, page.as_uri(), viewport={"width": 1440, "height": 900}) as tab:
        places = [tab.get_by_role("button", name=name, exact=True).bounding_box() for name in ("rail1", "d0n1", "d0g2")]
        heights = [place["y"] for place in places]
        assert heights == sorted(heights)
        assert "d0n1" in selected(tab, "link d0n1 rail0 to rail1")
