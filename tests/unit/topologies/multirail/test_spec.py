"""Specifications of multi-rail fabrics and the rates that follow."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
from railyard.topologies.multirail.plan import MAX_RATE_BPS, SHARE, frames_needed, make_multirail_plan, round_up
from railyard.topologies.multirail.spec import MultirailSpec, parse_multirail
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import paper_rail
from tests.unit.messages import messages

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


WRONG: dict[str, object] = {
    "no kind": {},
    "no rails": fabric(),
    "9 rails": fabric(*[rail()] * 9),
    "1 node": fabric(rail(), nodes=1),
    "65 nodes": fabric(rail(), nodes=65),
    "MTU of 1000": fabric(rail(), mtu=1000),
    "scale of 0": fabric(rail(), scale=0),
    "rate of 0": fabric(rail(rate="0Mbit")),
    "number as rate": fabric(rail(rate=0)),
    "rate of 999kbit": fabric(rail(rate="999kbit")),
    "no rate": fabric({"kind": "tcp"}),
    "unknown kind of rail": fabric(rail("shrap")),
    "setup without a unit": fabric(rail(), rail(setup=3)),
    "negative CPU time": fabric(rail(cpu="-1ns")),
    "name with a space": fabric(rail(name="A b")),
    "two rails of a name": fabric(rail(), rail(name="tcp0")),
    "dilation without a size": fabric(rail(), dilation={"small": 2}),
    "dilation of 0": fabric(rail(), dilation={"1MiB": 0}),
    "dilations of one size": fabric(rail(), dilation={"1MiB": 2, "1024KiB": 4}),
    "unknown key": fabric(rail(), rial=3),
}


def test_a_mistake_is_named(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(parse_multirail, WRONG))


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
    with pytest.raises(ValueError, match="the machine"):
        make_multirail_plan(parse_multirail(fabric(rail(rate="auto"))))


def test_rates_above_the_machines_capacity_are_refused() -> None:
    spec = parse_multirail(fabric(rail(rate="2Gbit"), rail(rate="4Gbit")))
    needed = frames_needed(spec, (2e9, 4e9))
    assert make_multirail_plan(spec, needed).rates_bps == (2_000_000_000, 4_000_000_000)
    with pytest.raises(BadInput, match=r"fabric\.rails\.1\.rate: '4Gbit' .* carries: 2Gbit"):
        make_multirail_plan(spec, needed / 2)


def test_sum_in_the_network_passes_the_switch_twice() -> None:
    ring, tree = parse_multirail(fabric(rail())), parse_multirail(fabric(rail("sharp")))
    assert frames_needed(tree, (1e8,)) == 2 * frames_needed(ring, (1e8,)) == pytest.approx(2 * 4 * 1e8 / 8 / 9014)
