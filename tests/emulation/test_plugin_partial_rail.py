"""The example background docs/examples/partial_rail.py as a plugin, on packets: rail 0 is hot in 2 of 3 domains."""

from pathlib import Path

from railyard.experiments.measures.steering.records import HEALTH
from railyard.results import run_folder
from tests.emulation.programs import run_with_plugin

SPEC = {
    "name": "partial-rail",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 3, "rails": 2, "rail_rate": "10Mbit"}],
    "workloads": [{"kind": "transfers", "pairs": [["d0g0", "d1g1"], ["d2g0", "d0g1"]], "bytes": "1MB"}],
    "routing": {"policies": ["dr"]},
    "background": [{"partial-rail": {"rail": 0, "domains": [0, 1]}, "load": 0.8}],
}


def test_plugin_background_loads_the_listed_links_only(tmp_path: Path, slow: float) -> None:
    out = run_with_plugin("partial_rail", SPEC, tmp_path, slow)
    run = run_folder.load(out)
    (check,) = run.bytes
    assert (check.pairs_wrong, check.delivered_bytes) == (0, 2_000_000)
    (on,) = (event for event in run.events if (event.source, event.what) == ("background", "on"))
    assert on.detail["text"] == "rail 0 of domains 0, 1"
    assert {name for name in on.detail if name.startswith("partial")} == {"partial-rail"}
    assert {float(s.load) > 0.3 for s in run.rows(HEALTH) if (s.element, s.index) == ("rail", 0)} >= {True}
