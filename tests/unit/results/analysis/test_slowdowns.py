"""Fabrics that are compared with each other: those that differ in nothing but their kind."""

from dataclasses import replace

from railyard.results.analysis.slowdowns import pairs
from railyard.results.runs.records import FabricRun, Run

SIZE = (2, 4, 20_000_000, 240_000_000, 9000, "a100")
ONLY = FabricRun("rail-only", "dr", "rail-only", *SIZE, 0, 0, (), "netdev", 1.0, 1.0)
OPTIMIZED = FabricRun("rail-optimized", "spine", "rail-optimized", *SIZE, 2, 20_000_000, (), "netdev", 1.0, 1.0)


def test_fabrics_with_other_nics_are_not_compared() -> None:
    shared = replace(ONLY, label="shared", nics=(0, 0, 1, 1))
    run = Run("test", {}, {}, "")
    run.fabrics.extend([shared, ONLY, OPTIMIZED])
    assert [(a.label, b.label) for a, b in pairs(run)] == [("rail-only", "rail-optimized")]
    assert (ONLY.gpu_rail_bps, shared.gpu_rail_bps) == (20_000_000, 10_000_000)
