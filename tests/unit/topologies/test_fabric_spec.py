"""Specifications of fabrics, and the exact message for each mistake."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from railyard.core.config import find_problems
from railyard.core.errors import BadInput
from railyard.topologies.spec import FabricSpec, parse_fabric
from tests.unit.path_choices import POLICIES

KEYS = "domains, hb_rate, kind, mtu, optical, oversubscription, platform, policy, rail_rate, rails, spines"
KINDS = "dual-plane, rail-only, rail-optimized, single-switch"
NO_RATE = "is not a rate: write a number and one of bit, kbit, Kbit, Mbit, Gbit, Tbit, such as 100Mbit; or auto"


def rail_only(**more: object) -> dict[str, Any]:
    return {"kind": "rail-only", **more}


def rail_optimized(**more: object) -> dict[str, Any]:
    return {"kind": "rail-optimized", **more}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "fabric: None must be keys and values"),
        ("rail-only", "fabric: 'rail-only' must be keys and values"),
        ({}, "fabric.kind: nothing given, but this key is needed"),
        (
            {"kind": "rail_only"},
            f"fabric.kind: 'rail_only' is not known: did you mean 'rail-only'? allowed are {KINDS}",
        ),
        ({"kind": 3}, f"fabric.kind: 3 is not known: allowed are {KINDS}"),
        (rail_only(rail=3), f"fabric.rail: 3 is not a known key: did you mean 'rails'? allowed are {KEYS}"),
        ({"kind": "rail-only", "": 3}, f"fabric.: 3 is not a known key: allowed are {KEYS}"),
        ({"kind": "rail-only", 7: 3}, f"fabric.7: 3 is not a known key: allowed are {KEYS}"),
        (rail_only(rails=1), "fabric.rails: 1 must be 2 or more"),
        (rail_only(domains=1), "fabric.domains: 1 must be 2 or more"),
        (rail_only(rails=0), "fabric.rails: 0 must be 2 or more"),
        (rail_only(domains=-4), "fabric.domains: -4 must be 2 or more"),
        (rail_only(rails=257), "fabric.rails: 257 must be 256 or less"),
        (rail_only(domains=1025), "fabric.domains: 1025 must be 1024 or less"),
        (rail_only(rails="4"), "fabric.rails: '4' must be a whole number"),
        (rail_only(rails=4.5), "fabric.rails: 4.5 must be a whole number"),
        (rail_only(rails=True), "fabric.rails: True must be a whole number"),
        (rail_only(rails=None), "fabric.rails: None must be a whole number"),
        (rail_only(rail_rate=100), f"fabric.rail_rate: 100 {NO_RATE}"),
        (rail_only(hb_rate="100"), f"fabric.hb_rate: '100' {NO_RATE}"),
        (rail_only(rail_rate="fast"), f"fabric.rail_rate: 'fast' {NO_RATE}"),
        (rail_only(rail_rate="0bit"), "fabric.rail_rate: '0bit' is not a rate above zero, such as 100Mbit; or auto"),
        (
            rail_only(rail_rate="-1Mbit"),
            "fabric.rail_rate: '-1Mbit' is not a rate above zero, such as 100Mbit; or auto",
        ),
        (
            rail_only(rail_rate="100Mbit", hb_rate="99Mbit"),
            "fabric.hb_rate: '99Mbit' must not be below rail_rate, 100Mbit",
        ),
        (rail_only(mtu=1279), "fabric.mtu: 1279 must be 1280 or more"),
        (rail_only(mtu=9001), "fabric.mtu: 9001 must be 9000 or less"),
        (rail_only(spines=2), "fabric.spines: 2 is only for kind rail-optimized"),
        (rail_only(oversubscription=2), "fabric.oversubscription: 2 is only for kind rail-optimized"),
        (rail_optimized(spines=0), "fabric.spines: 0 must be 1 or more"),
        (rail_optimized(spines=65), "fabric.spines: 65 must be 64 or less"),
        (rail_optimized(oversubscription=0.5), "fabric.oversubscription: 0.5 must be 1.0 or more"),
        (rail_optimized(oversubscription="half"), "fabric.oversubscription: 'half' must be a number"),
        (
            rail_only(platform="h200"),
            "fabric.platform: 'h200' is not known: did you mean 'gh200'? "
            "allowed are a100, gb200-nvl72, gh200, h100, mi300x, or the path of a .yaml file",
        ),
        (rail_only(platform=100), "fabric.platform: 100 must be text: put it in quotes"),
        (rail_only(policy="spine"), "fabric.policy: 'spine' is not for kind rail-only: allowed are dr, rd"),
        (
            rail_optimized(policy="dr"),
            "fabric.policy: 'dr' is not for kind rail-optimized: allowed are spine, pxn, rd, round-robin",
        ),
        (
            rail_only(policy="drd"),
            "fabric.policy: 'drd' is not known: did you mean 'rd'? allowed are dr, pxn, rd, round-robin, spine",
        ),
        (
            {"kind": "single-switch", "domains": 255},
            "fabric.domains: 255 must be 254 or less for kind single-switch: a switch has no more ports",
        ),
    ],
)
def test_bad_input_is_answered_in_one_line(data: object, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_fabric(data)
    assert str(caught.value) == message
    assert caught.value.exit_status == 2
    assert "\n" not in message


def test_every_problem_is_found_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        FabricSpec.model_validate(rail_only(rails=1, mtu=9, spines=3))
    assert [str(BadInput(*each)) for each in find_problems(caught.value)] == [
        "rails: 1 must be 2 or more",
        "mtu: 9 must be 1280 or more",
        "spines: 3 is only for kind rail-optimized",
    ]
    with pytest.raises(ValidationError) as caught:
        FabricSpec.model_validate(rail_only(rial=1, mtv=9))
    assert [each.field for each in find_problems(caught.value, "fabrics.0")] == [
        "fabrics.0.rial",
        "fabrics.0.mtv",
    ]


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
