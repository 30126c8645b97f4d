"""Specifications of multi-rail fabrics and the rates that follow."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.topologies.multirail.plan import MAX_RATE_BPS, SHARE, frames_needed, make_multirail_plan, round_up
from railyard.topologies.multirail.spec import MultirailSpec, parse_multirail
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import paper_rail

kinds = st.sampled_from(RAIL_KINDS.names())
frames = st.floats(1e3, 1e7)


def fabric(*rails: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "multi-rail", "rails": list(rails), **more}


def rail(kind: str = "tcp", rate: Any = "100Mbit", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "rate": rate, **more}


def test_unstated_key_has_a_default() -> None:
    spec = parse_multirail(fabric(rail(), rail("sharp"), rail("glex", setup="2us", cpu=0, name="th")))
    assert (spec.nodes, spec.mtu, spec.scale) == (4, 9000, None)
    assert [each.name for each in spec.rails] == ["tcp0", "sharp1", "th"]
    assert [(each.setup, each.cpu) for each in spec.rails] == [(None, None), (None, None), (2e-6, 0.0)]


@given(
    spec=st.builds(
        MultirailSpec,
        kind=st.just("multi-rail"),
        nodes=st.integers(2, 64),
        rails=st.lists(
            st.builds(
                rail,
                kind=kinds,
                rate=st.sampled_from(["auto", "100Mbit", "1.2Gbit"]),
                setup=st.none() | st.sampled_from([0, "9us"]),
                cpu=st.none() | st.sampled_from([0, "3.003ns"]),
            ),
            min_size=1,
            max_size=8,
        ),
    )
)
def test_spec_survives_writing_and_reading(spec: MultirailSpec) -> None:
    assert parse_multirail(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "fabric.kind: nothing given, but this key is needed"),
        (fabric(), "fabric.rails: [] must have 1 or more"),
        (fabric(*[rail()] * 9), "must have 8 or fewer"),
        (fabric(rail(), nodes=1), "fabric.nodes: 1 must be 2 or more"),
        (fabric(rail(), nodes=65), "fabric.nodes: 65 must be 64 or less"),
        (fabric(rail(), mtu=1000), "fabric.mtu: 1000 must be 1280 or more"),
        (fabric(rail(), scale=0), "fabric.scale: 0 must be 1.0 or more"),
        (fabric(rail(rate="0Mbit")), "fabric.rails.0.rate: '0Mbit' is not a rate above zero, such as 100Mbit; or auto"),
        (fabric(rail(rate=0)), "fabric.rails.0.rate: 0 is not a rate"),
        (fabric(rail(rate="999kbit")), "fabric.rails.0.rate: '999kbit' must be 1Mbit or more"),
        (fabric({"kind": "tcp"}), "fabric.rails.0.rate: nothing given"),
        (fabric(rail("shrap")), "fabric.rails.0.kind: 'shrap' is not known: did you mean 'sharp'?"),
        (fabric(rail(), rail(setup=3)), "fabric.rails.1.setup: 3 is not a time"),
        (fabric(rail(cpu="-1ns")), "fabric.rails.0.cpu: '-1ns' is not a time above zero"),
        (fabric(rail(name="A b")), "fabric.rails.0.name: 'A b' must be small letters, digits and dashes"),
        (fabric(rail(), rail(name="tcp0")), "two are called tcp0"),
        (fabric(rail(), dilation={"small": 2}), "fabric.dilation.small: 'small' is not a size"),
        (fabric(rail(), dilation={"1MiB": 0}), "fabric.dilation.1MiB: 0 must be 1.0 or more"),
        (fabric(rail(), dilation={"1MiB": 2, "1024KiB": 4}),
            "fabric.dilation.1024KiB: 4 is for the size 1MiB, which is given twice"),
        (fabric(rail(), rial=3), "fabric.rial: 3 is not a known key: did you mean 'rails'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(data: object, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_multirail(data)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", RAIL_KINDS)
def test_effective_rate_follows_from_the_cost_model(kind: str) -> None:
    assert pytest.approx(8 / paper_rail(kind).s_per_byte, rel=1e-3) == RAIL_KINDS[kind].effective_bps


@given(chosen=st.lists(kinds, min_size=1, max_size=8), nodes=st.integers(2, 64), carries=frames)
def test_auto_rates_keep_the_papers_proportions_within_capacity(chosen: list[str], nodes: int, carries: float) -> None:
    spec = parse_multirail(fabric(*(rail(kind, "auto") for kind in chosen), nodes=nodes))
    try:
        plan = make_multirail_plan(spec, carries)
    except BadInput:
        raise AssertionError("auto was refused") from None
    assert str(plan.scale).rstrip("0").rstrip(".").rstrip("0") in ("1", "2", "5")
    for kind, rate in zip(chosen, plan.rates_bps, strict=True):
        assert rate == pytest.approx(RAIL_KINDS[kind].effective_bps / plan.scale, abs=1)
        assert rate <= MAX_RATE_BPS
    assert frames_needed(spec, plan.rates_bps) <= SHARE * carries * 1.001


@given(scale=st.floats(1, 1e6))
def test_a_scale_is_rounded_up_to_the_next_that_is_easy_to_read(scale: float) -> None:
    rounded = round_up(scale)
    assert scale <= rounded < 2.5 * scale
    assert f"{rounded:.0f}".rstrip("0") in ("1", "2", "5")


def test_given_rates_are_kept_and_give_the_scale() -> None:
    plan = make_multirail_plan(parse_multirail(fabric(rail(rate="133.2Mbit"), rail("sharp", "auto"))))
    assert plan.scale == pytest.approx(20)
    assert plan.rates_bps == (133_200_000, 149_850_000)


def test_a_scale_that_was_given_is_kept() -> None:
    plan = make_multirail_plan(parse_multirail(fabric(rail(rate="5Mbit"), rail("glex", "auto"), scale=100)))
    assert (plan.scale, plan.rates_bps) == (100, (5_000_000, 50_290_000))


def test_auto_rate_needs_the_machine() -> None:
    with pytest.raises(ValueError, match="what the machine carries"):
        make_multirail_plan(parse_multirail(fabric(rail(rate="auto"))))


def test_rates_above_the_machines_capacity_are_refused() -> None:
    spec = parse_multirail(fabric(rail(rate="2Gbit"), rail(rate="4Gbit")))
    needed = frames_needed(spec, (2e9, 4e9))
    assert make_multirail_plan(spec, needed).rates_bps == (2_000_000_000, 4_000_000_000)
    with pytest.raises(BadInput) as caught:
        make_multirail_plan(spec, needed / 2)
    assert str(caught.value).startswith("fabric.rails.1.rate: '4Gbit' is more than this machine carries: 2Gbit")


def test_sum_in_the_network_passes_the_switch_twice() -> None:
    ring, tree = parse_multirail(fabric(rail())), parse_multirail(fabric(rail("sharp")))
    assert frames_needed(tree, (1e8,)) == 2 * frames_needed(ring, (1e8,)) == pytest.approx(2 * 4 * 1e8 / 8 / 9014)
