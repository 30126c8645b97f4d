"""Choice of the links that are measured before a run, and the ends of the programs that measure them."""

import subprocess
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core import watch
from railyard.experiments.run import session as sessions
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run
from railyard.results.views.report import repeated_lines
from railyard.topologies.addresses import Gpu
from railyard.topologies.build.network import FabricNet
from railyard.topologies.measure.rates import MEASURED_BYTES, IperfFlow, Sample, calibration_s, report_of, samples
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
    assert seconds * rate / 8 >= MEASURED_BYTES
    assert seconds == 1 or (seconds - 1) * rate / 8 < MEASURED_BYTES


@pytest.mark.parametrize(
    ("rates", "kept", "now"),
    [
        ([100e6], 100e6, ""),
        ([94e6, 101e6, 80e6], 101e6, "measured again once: rail-only: rail link d1g0 -> d0g0 carries 94"),
        ([94e6, 80e6, 95e6], 95e6, "now degraded"),
        ([94e6, 80e6, 85e6], 85e6, "now invalid"),
    ],
)
def test_links_that_are_off_are_measured_again(
    rates: list[float], kept: float, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at most: the third result is kept as it is."""
    measured = iter(rates)
    link = Sample("rail", Gpu(1, 0), Gpu(0, 0), 100e6)
    monkeypatch.setattr(sessions, "_measured_links", lambda _: [link._replace(measured_bps=next(measured))])
    run = Run("links", {}, {}, "")
    sessions.check_links(cast(Any, SimpleNamespace(label="rail-only")), run)
    assert [found.measured_bps for found in run.links] == [kept]
    lines = repeated_lines(Analysis(run))
    assert now in "".join(lines)
    assert len(lines) == (len(rates) > 1)


def test_server_that_is_ended_with_its_client_has_not_died() -> None:
    """As at Ctrl-C: the run ended it, so no line says that it died, and no interval is invalid for it."""
    watch.take()
    client = subprocess.Popen(["sh", "-c", "exit 3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    server = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True)
    watch.add("the server", server.pid, may_exit=True)
    with pytest.raises(watch.ProgramFailed):
        report_of(IperfFlow(client, server, 10.0))
    assert server.returncode == -9
    assert [str(interruption) for interruption in watch.take()] == []
