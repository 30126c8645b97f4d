"""Choice of the links that are measured before a run."""

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.addresses import Gpu
from railyard.topologies.build.network import FabricNet
from railyard.topologies.measure.rates import MIN_DURATION_S, SEGMENTS, calibration_s, samples
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.path_choices import POLICIES, own_path


@given(data=st.data(), kind=st.sampled_from(sorted(POLICIES)), side=st.tuples(st.integers(2, 6), st.integers(2, 6)))
def test_a_flow_over_each_class_of_link_and_no_two_over_the_same(
    data: st.DataObject, kind: str, side: tuple[int, int]
) -> None:
    policy = data.draw(st.sampled_from(POLICIES[kind]))
    keys = {"kind": kind, "policy": policy, "domains": side[0], "rails": side[1], "rail_rate": "100Mbit"}
    plan = make_plan(parse_fabric(keys), 1)
    chosen = samples(cast(FabricNet, SimpleNamespace(plan=plan)))
    assert {s.link_class for s in chosen} >= {"hb", "rail"}
    assert ("uplink" in {s.link_class for s in chosen}) == (
        own_path(policy, Gpu(0, 0), Gpu(1, 1)).kind == "spine" and bool(plan.uplinks)
    )
    over_rails = [s for s in chosen if s.link_class != "hb"]
    assert len({s.src for s in over_rails}) == len({s.dst for s in over_rails}) == len(over_rails)
    for sample in chosen:
        if sample.link_class == "hb":
            assert sample.src.domain == sample.dst.domain
        else:
            kinds = {"rail": "r", "uplink": "spine"}
            assert own_path(plan.spec.chosen_policy, sample.src, sample.dst).kind == kinds[sample.link_class]
        rate = plan.hb_bps if sample.link_class == "hb" else plan.rail_bps
        assert 0.9 * rate < sample.expected_bps < rate


@given(rate=st.floats(1e5, 1e12))
def test_slow_links_are_measured_for_longer_and_none_too_shortly(rate: float) -> None:
    seconds = calibration_s(rate)
    assert seconds >= MIN_DURATION_S
    assert seconds * rate / 8 >= SEGMENTS * 65536
    assert seconds == MIN_DURATION_S or (seconds - 1) * rate / 8 < SEGMENTS * 65536
