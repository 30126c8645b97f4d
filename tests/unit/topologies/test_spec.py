"""Specifications of fabrics, and the exact message for each mistake."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.config import find_problems
from railyard.topologies.spec import FabricSpec, parse_fabric
from tests.unit.messages import messages
from tests.unit.path_choices import POLICIES


def rail_only(**more: object) -> dict[str, Any]:
    return {"kind": "rail-only", **more}


def rail_optimized(**more: object) -> dict[str, Any]:
    return {"kind": "rail-optimized", **more}


WRONG: dict[str, object] = {
    "no spec": None,
    "a word": "rail-only",
    "no kind": {},
    "unknown kind": {"kind": "rail_only"},
    "number as kind": {"kind": 3},
    "unknown key": rail_only(rail=3),
    "empty key": {"kind": "rail-only", "": 3},
    "number as key": {"kind": "rail-only", 7: 3},
    "1 rail": rail_only(rails=1),
    "1 domain": rail_only(domains=1),
    "negative domains": rail_only(domains=-4),
    "257 rails": rail_only(rails=257),
    "1025 domains": rail_only(domains=1025),
    "255 domains of a single switch": {"kind": "single-switch", "domains": 255},
    "text as rails": rail_only(rails="4"),
    "fraction as rails": rail_only(rails=4.5),
    "truth as rails": rail_only(rails=True),
    "nothing as rails": rail_only(rails=None),
    "rate without a unit": rail_only(hb_rate="100"),
    "number as rate": rail_only(rail_rate=100),
    "word as rate": rail_only(rail_rate="fast"),
    "rate of 0": rail_only(rail_rate="0bit"),
    "negative rate": rail_only(rail_rate="-1Mbit"),
    "HB rate below the rail rate": rail_only(rail_rate="100Mbit", hb_rate="99Mbit"),
    "MTU of 1279": rail_only(mtu=1279),
    "MTU of 9001": rail_only(mtu=9001),
    "spines on rail-only": rail_only(spines=2),
    "oversubscription on rail-only": rail_only(oversubscription=2),
    "0 spines": rail_optimized(spines=0),
    "65 spines": rail_optimized(spines=65),
    "oversubscription of 0.5": rail_optimized(oversubscription=0.5),
    "word as oversubscription": rail_optimized(oversubscription="half"),
    "unknown platform": rail_only(platform="h300"),
    "number as platform": rail_only(platform=100),
    "policy of another kind": rail_only(policy="spine"),
    "policy of rail-only": rail_optimized(policy="dr"),
    "unknown policy": rail_only(policy="drd"),
    "NICs that don't divide the GPUs": rail_only(gpus_per_nic=3),
    "NICs of a single switch": {"kind": "single-switch", "gpus_per_nic": 2},
    "NICs behind optical switches": rail_only(gpus_per_nic=2, optical={}),
    "NICs under assigned uplinks": rail_optimized(gpus_per_nic=2, policy="round-robin"),
    "NIC map of too few GPUs": rail_only(nics=[0, 0, 1]),
    "NIC map with a gap": rail_only(nics=[0, 0, 2, 2]),
    "NIC map beside a number": rail_only(nics=[0, 0, 1, 1], gpus_per_nic=2),
}


def test_bad_input_is_answered_in_one_line(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(parse_fabric, WRONG))


def test_every_problem_is_found_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        FabricSpec.model_validate(rail_only(rails=1, mtu=9, spines=3))
    assert [each.field for each in find_problems(caught.value)] == ["rails", "mtu", "spines"]
    with pytest.raises(ValidationError) as caught:
        FabricSpec.model_validate(rail_only(rial=1, mtv=9))
    assert [each.field for each in find_problems(caught.value, "fabrics.0")] == ["fabrics.0.rial", "fabrics.0.mtv"]


def test_missing_key_gets_a_value() -> None:
    spec = parse_fabric(rail_only())
    assert (spec.domains, spec.rails, spec.gpus, spec.platform, spec.mtu) == (4, 4, 16, "a100", 9000)
    assert (spec.rail_rate, spec.hb_rate, spec.spine_count, spec.chosen_policy) == ("auto", "auto", 0, "dr")
    assert parse_fabric(rail_optimized()).spine_count == 2
    assert parse_fabric(rail_optimized()).chosen_policy == "spine"


def test_rates_are_read_and_written_with_units() -> None:
    spec = parse_fabric(rail_only(rail_rate="20Mbit", hb_rate="0.24Gbit"))
    assert (spec.rail_rate, spec.hb_rate) == (20_000_000, 240_000_000)
    assert spec.model_dump()["hb_rate"] == "240Mbit"


def test_the_largest_fabrics_fit() -> None:
    assert parse_fabric(rail_only(domains=1024, rails=256)).gpus == 262_144
    assert parse_fabric({"kind": "single-switch", "domains": 254, "rails": 256}).gpus == 65_024


@st.composite
def specs(draw: st.DrawFn) -> FabricSpec:
    kind: str = draw(st.sampled_from(sorted(POLICIES)))
    data: dict[str, Any] = {"kind": kind, "rails": draw(st.integers(2, 256)), "domains": draw(st.integers(2, 254))}
    data["mtu"] = draw(st.integers(1280, 9000))
    data["policy"] = draw(st.none() | st.sampled_from(POLICIES[kind]))
    rail = draw(st.integers(1, 10**12))
    data["rail_rate"] = draw(st.sampled_from(["auto", f"{rail}bit"]))
    data["hb_rate"] = draw(st.sampled_from(["auto", f"{2 * rail}bit"]))
    if kind == "rail-optimized":
        data["spines"] = draw(st.none() | st.integers(1, 64))
        data["oversubscription"] = draw(st.none() | st.floats(1, 64))
    return parse_fabric(data)


@given(spec=specs())
def test_a_stored_spec_reads_back_as_the_same(spec: FabricSpec) -> None:
    assert parse_fabric(spec.model_dump()) == spec
