"""Scenes of background: which there are, and that every element gets the load that its scene's name says."""

from collections import defaultdict
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.config import parse_model
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.flows import flows_of
from railyard.workloads.background.spec import GridSpec, check_background
from tests.unit.stand_ins import plan_of
from tests.unit.workloads.messages import CheckMessages

ALL: dict[str, Any] = {"domains": [0], "rails": [1], "spine": True}


def grid(**keys: Any) -> GridSpec:
    return GridSpec.model_validate(keys)


def test_every_combination_has_a_scene_by_its_loads() -> None:
    names = [scene.name for scene in grid(**ALL, loads=[0, 0.9]).scenes]
    assert names == [
        "d0 0% g1 0% S 0%", "d0 0% g1 90% S 0%", "d0 90% g1 0% S 0%", "d0 90% g1 90% S 0%",
        "d0 0% g1 0% S 90%", "d0 0% g1 90% S 90%", "d0 90% g1 0% S 90%", "d0 90% g1 90% S 90%",
    ]  # fmt: skip
    assert len(grid(**ALL, loads=[0, 0.5, 0.9]).scenes) == 27
    assert [scene.name for scene in grid(rails=[0, 2], loads=[0.125]).scenes] == ["g0,2 12.5%"]


def test_fabric_without_spines_has_fewer_scenes() -> None:
    whole = grid(domains=[0], spine=True, loads=[0, 0.9])
    assert len(whole.on(FabricSpec(kind="rail-optimized")).scenes) == 4
    assert [scene.name for scene in whole.on(FabricSpec(kind="rail-only")).scenes] == ["d0 0%", "d0 90%"]


def test_messages_of_wrong_grids(check_messages: CheckMessages) -> None:
    grids: tuple[dict[str, Any], ...] = (
        {"loads": [0.5]},
        {**ALL, "loads": []},
        {**ALL, "loads": [0.5, 0.5]},
        {**ALL, "loads": [0, 0.96]},
        {**ALL, "rails": [1, 1], "loads": [0]},
        ALL,
    )
    check_messages({str(keys): partial(parse_model, GridSpec, keys) for keys in grids})


loads = st.integers(0, 95).map(lambda percent: percent / 100)


@given(loads=st.lists(loads, min_size=1, max_size=2, unique=True), thin=st.sampled_from([1, 2, 4, 16]))
def test_every_element_gets_the_load_of_its_name(loads: list[float], thin: int) -> None:
    """Counted on the links of rail 1, domain 0 and the spines; a rail has at least what crosses it to the spines."""
    fabric = FabricSpec(kind="rail-optimized", domains=3, rails=4, oversubscription=thin, spines=2)
    plan = plan_of("rail-optimized", 3, 4, oversubscription=thin, spines=2)
    for scene in grid(**ALL, loads=loads).scenes:
        specs = scene.background(fabric)
        check_background(specs, fabric)
        used: defaultdict[str, float] = defaultdict(float)
        for flow in (flow for spec in specs for flow in flows_of(spec, plan)):
            used[f"{flow.src.name} {flow.device}"] += flow.bps
            used["spines"] += flow.bps if flow.path == "spine" else 0
        crossing = scene.spine / thin
        for gpu in plan.gpus:
            rail = max(scene.rail, crossing) if gpu.rank == 1 else crossing
            assert used[f"{gpu.name} rail0"] == pytest.approx(rail * plan.rail_bps, abs=plan.rail_bps * 1e-4)
            domain = scene.domain if gpu.domain == 0 else 0
            assert used[f"{gpu.name} hb0"] == pytest.approx(domain * plan.hb_bps)
        assert used["spines"] == pytest.approx(scene.spine * plan.uplink_bps * len(plan.uplinks))
