"""Constants of collectives: found again from times that they made, and tested on rows that were held out."""

from dataclasses import replace

import numpy as np
import pytest

from railyard.results.published.catalogue import FIGURES
from railyard.results.theory.collectives import fit
from railyard.results.theory.collectives.fit import MeasuredCollective, links_of, measured, platform_constants
from railyard.results.theory.collectives.times import CollectiveConstants, collective_s
from railyard.topologies.platforms import PLATFORMS

LINKS = links_of(PLATFORMS["h100"])


def made_rows(constants: CollectiveConstants, x: int, y: int) -> list[MeasuredCollective]:
    """Return rows as a cluster with these constants would have them."""
    rows: list[MeasuredCollective] = []
    for exponent in range(20, 34):
        seconds = float(collective_s("all-reduce", 2**exponent, x, y, LINKS, constants))
        rows.append(MeasuredCollective("made", "h100", "all-reduce", x, y, 2**exponent, seconds))
    return rows


def test_fit_finds_the_constants_of_made_rows() -> None:
    reference = platform_constants("a100")
    real = replace(reference, hb_efficiency=0.7, hb_pipeline=4e-3, rail_base_s=3e-5, rail_pipeline=9e-3)
    real = replace(real, base_s=2 * reference.base_s, step_s=2 * reference.step_s)
    found = fit.fit([*made_rows(real, 8, 1), *made_rows(real, 8, 2)], LINKS, reference)
    for name in ("base_s", "step_s", "hb_efficiency", "hb_pipeline", "rail_base_s", "rail_pipeline"):
        assert getattr(found, name) == pytest.approx(getattr(real, name), rel=1e-3), name
    assert found.rail_efficiency == reference.rail_efficiency


def test_fit_finds_slow_nics() -> None:
    slow = replace(platform_constants("h100"), rail_efficiency=0.25)
    assert fit.fit(made_rows(slow, 8, 4), LINKS, platform_constants("h100")).rail_efficiency == pytest.approx(0.25)


def test_held_out_rows_of_a_server_are_within_six_percent() -> None:
    """NCCL's AllReduce on 2, 4 and 8 A100s: every other size was fitted."""
    rows = [row for row in measured() if row.source == "1" and row.use == "held out"]
    assert len(rows) == 45
    assert np.mean(np.abs(fit.errors(rows))) < 0.06


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_group_size_left_out_is_within_six_percent(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency and bandwidth of a group size follow from the two others."""
    rows = [row for row in measured() if row.source == "1"]
    fitted = [replace(row, use="fit") for row in rows if row.x != gpus]
    constants = fit._reference(
        [*fitted, *[row for row in measured() if row.source == "2"]], links_of(PLATFORMS["a100"])
    )
    left_out = [row for row in rows if row.x == gpus]
    assert np.mean(np.abs(fit.constants_error(left_out, links_of(PLATFORMS["a100"]), constants))) < 0.06


def test_figure_claims_the_rows_that_are_not_fitted() -> None:
    claims = FIGURES["nccl"]().claims
    # two H200 servers are 6.02% off
    assert [claim.agrees for claim in claims] == [True, True, True, True, True, True, False, True]
    assert all(claim.agrees or claim.note for claim in claims)
    assert {len(row) for row in FIGURES["nccl"]().rows} == {len(FIGURES["nccl"]().columns)}


@pytest.mark.parametrize(("platform", "source"), [("a100", "a100"), ("h800", "h100"), ("gh200", "h100")])
def test_platform_without_rows_takes_similar_constants(platform: str, source: str) -> None:
    assert platform_constants(platform) == platform_constants(source)
    assert 0 < fit.interval_share(platform, several=False, large=True) < fit.interval_share(platform, True, False) < 1


def test_platforms_with_rows_have_the_latency_of_their_network() -> None:
    h100 = platform_constants("h100")
    h200 = platform_constants("h200")
    assert h200.rail_base_s < 0.6 * h100.rail_base_s
    assert replace(h200, rail_base_s=h100.rail_base_s, rail_pipeline=h100.rail_pipeline) == h100


def test_trees_are_found_between_a100_servers_alone() -> None:
    """Two efficiencies leave a tenth of the squared errors; other GPUs' trees are as fast as their rings."""
    a100 = platform_constants("a100")
    assert (a100.tree_bytes, a100.tree_efficiency) == (2**30, 0.48)
    for platform in ("h100", "b200", "mi300x"):
        assert platform_constants(platform).tree_bytes == 0
    made = replace(a100, tree_bytes=2.0**28, tree_efficiency=0.3, rail_base_s=2e-5)
    found = fit._with_trees(made_rows(made, 8, 2), LINKS, replace(made, tree_bytes=0.0, tree_efficiency=1.0))
    assert (found.tree_bytes, found.tree_efficiency) == (made.tree_bytes, made.tree_efficiency)


def test_only_all_reduces_run_by_trees() -> None:
    constants = platform_constants("a100")
    rings = replace(constants, tree_bytes=0.0)
    gathered_s, by_rings_s = (collective_s("all-gather", 2**28, 8, 2, LINKS, each) for each in (constants, rings))
    assert gathered_s == by_rings_s
    large_s, by_rings_s = (collective_s("all-reduce", 2**30, 8, 2, LINKS, each) for each in (constants, rings))
    assert large_s == by_rings_s
    small_s, by_rings_s = (collective_s("all-reduce", 2**28, 8, 2, LINKS, each) for each in (constants, rings))
    assert small_s > by_rings_s
