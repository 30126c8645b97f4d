"""The example plugin docs/examples/link_errors.py on packets: calibrated links of a fabric of 2 x 2 get a section.

A variant: tests/unit/results/views/test_report_sections.py has the section of this plugin, and other plugins are run
on packets.
"""

import json
from pathlib import Path

from tests.emulation.plugins import run_with_plugin

SPEC = {
    "name": "errors",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit", "hb_rate": "40Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "two-phase", "bytes": "20KB"}],
    "repeats": 1,
}


def test_section_of_a_plugin_is_in_report_and_summary(tmp_path: Path, slow: float) -> None:
    run = run_with_plugin("link_errors.py", SPEC, tmp_path, slow)
    assert run.links
    errors = json.loads((tmp_path / "out/summary.json").read_text())["headline"]["link_errors"]
    assert {(row["fabric"], row["link"]) for row in errors} == {(link.fabric, link.link) for link in run.links}
    assert '<section id="link-errors">' in (tmp_path / "out/report.html").read_text()
