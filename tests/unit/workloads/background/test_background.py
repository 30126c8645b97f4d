"""Background load: what may be asked for, which flows that makes, and when their frames are due."""

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.config import parse_model, parse_yaml
from railyard.core.errors import BadInput
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.flows import flows_of
from railyard.workloads.background.sender import MAX_LATENESS_S, Pacer
from railyard.workloads.background.spec import BackgroundSpec, Wave, check_background
from tests.unit.stand_ins import plan_of
from tests.unit.workloads.messages import CheckMessages

TICK = 1 / 64  # exact in binary, so that edges are where they are meant to be
ticks = st.integers(1, 400).map(lambda n: n * TICK)


def spec(**keys: Any) -> BackgroundSpec:
    return BackgroundSpec.model_validate(keys)


@st.composite
def waves(draw: st.DrawFn) -> Wave:
    first = draw(st.integers(0, 400)) * TICK
    lasts = draw(st.none() | ticks)
    return Wave(first, lasts, draw(st.none() | ticks.map(lambda more: lasts + more)) if lasts else None)


def test_background_is_read_and_written_back() -> None:
    reported = spec(**parse_yaml("{rails: [0, 1], load: 0.9, start: 500ms, duration: 2s, period: 8s}", "background"))  # type: ignore[arg-type]
    assert (reported.patterns, reported.load, reported.wave) == ({"rails": (0, 1)}, 0.9, Wave(0.5, 2, 8))
    assert spec(spine=True, load=0.5, start="0s").wave == Wave(0, None, None)
    assert BackgroundSpec.model_validate(reported.model_dump(mode="json")) == reported


def test_messages_of_inconsistent_backgrounds(check_messages: CheckMessages) -> None:
    specs: tuple[dict[str, Any], ...] = (
        {"load": 0.5},
        {"rails": [0], "load": 0.96},
        {"rails": [0], "load": 0},
        {"rails": [0]},
        {"rails": [1, 1], "load": 0.5},
        {"rails": [-1], "load": 0.5},
        {"rails": [0], "load": 0.5, "period": "2s"},
        {"rails": [0], "load": 0.5, "duration": "2s", "period": "2s"},
    )
    check_messages({str(keys): partial(parse_model, BackgroundSpec, keys) for keys in specs})


def test_messages_of_backgrounds_on_missing_links(check_messages: CheckMessages) -> None:
    rail_only = FabricSpec(kind="rail-only", domains=2)
    single_switch = FabricSpec(kind="single-switch", domains=2)
    rails = [spec(rails=[0], load=0.2), spec(rails=[1, 4], load=0.2)]
    calls = {
        "rail": partial(check_background, rails, rail_only, "b"),
        "domain": partial(check_background, [spec(domains=[2], load=0.2)], rail_only, "b"),
        "spine": partial(check_background, [spec(spine=True, load=0.2)], single_switch, "b"),
    }
    check_messages(calls)


ON_2_OF_8 = {"duration": "2s", "period": "8s"}


@pytest.mark.parametrize(
    ("second", "sum_of"),
    [
        ({"rails": [0], "start": "1s", **ON_2_OF_8}, "rail 0"),
        ({"rails": [0], "start": "2s", **ON_2_OF_8}, None),
        ({"rails": [0], "start": "2s", "duration": "1s", "period": "9s"}, "rail 0"),  # they meet in the seventh period
        ({"rails": [1]}, None),
        ({"domains": [0]}, None),
        ({"spine": True}, "rail 0"),  # what crosses spines comes over the rails' links
    ],
)
def test_a_link_that_several_load_at_a_time_is_reported(second: dict[str, Any], sum_of: str | None) -> None:
    specs = [spec(rails=[0], load=0.5, **ON_2_OF_8), spec(load=0.5, **second)]
    fabric = FabricSpec(kind="rail-optimized")
    if sum_of is None:
        check_background(specs, fabric)
    else:
        with pytest.raises(BadInput, match=rf"background\.1\.load: 0\.5 .* 1 of {sum_of}"):
            check_background(specs, fabric)


def test_many_waves_are_checked_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a period of its own: they begin at 20,000 times."""
    calls, is_on = 0, Wave.is_on

    def counted(wave: Wave, at: float) -> bool:
        nonlocal calls
        calls += 1
        return is_on(wave, at)

    monkeypatch.setattr(Wave, "is_on", counted)
    monkeypatch.setattr("railyard.workloads.background.spec._CHECKED", 50_000)
    waves = [spec(rails=[0], load=0.001, duration=f"{n}ms", period=f"{1000 + 7 * n}ms") for n in range(1, 21)]
    check_background(waves, FabricSpec(kind="rail-optimized"))
    assert 20_000 < calls <= 50_000


@given(domains=st.integers(2, 5), rails=st.integers(2, 5), thin=st.sampled_from([1.0, 2.0, 3.0]), data=st.data())
def test_every_hot_link_has_its_share_in_both_directions(
    domains: int, rails: int, thin: float, data: st.DataObject
) -> None:
    plan = plan_of("rail-optimized", domains, rails, oversubscription=thin, spines=3)
    hot_rails = data.draw(st.sets(st.integers(0, rails - 1)))
    hot_domains = data.draw(st.sets(st.integers(0, domains - 1)))
    frames_due_by = spec(rails=[*hot_rails], domains=[*hot_domains], spine=True, load=0.4)
    out: dict[tuple[Gpu | int, str], float] = {}
    into = dict(out)
    for flow in flows_of(frames_due_by, plan):
        ends: list[tuple[Gpu | int, Gpu | int, str]] = [(flow.src, flow.dst, flow.device)]
        if flow.path == "spine":
            ends.append((flow.src.rank, flow.dst.rank, "uplinks"))
        for src, dst, side in ends:
            out[src, side] = out.get((src, side), 0.0) + flow.bps
            into[dst, side] = into.get((dst, side), 0.0) + flow.bps
    expected: dict[tuple[Gpu | int, str], float] = {(g, "uplinks"): 0.4 * 3 * plan.uplink_bps for g in range(rails)}
    for gpu in plan.gpus:
        expected[gpu, "rail0"] = plan.rail_bps * (0.4 * (gpu.rank in hot_rails) + 0.4 / thin)
        if gpu.domain in hot_domains:
            expected[gpu, "hb0"] = 0.4 * plan.hb_bps
    assert out == pytest.approx(expected, rel=1e-6)
    assert into == pytest.approx(expected, rel=1e-6)


def test_each_flow_stays_where_its_load_is() -> None:
    flows = flows_of(spec(rails=[1], domains=[0], load=0.5), plan_of(domains=3, rails=2))
    assert {(f.src.name, f.dst.name, f.device, f.path) for f in flows} == {
        ("d0g1", "d1g1", "rail0", "r"),
        ("d1g1", "d2g1", "rail0", "r"),
        ("d2g1", "d0g1", "rail0", "r"),
        ("d0g0", "d0g1", "hb0", "d"),
        ("d0g1", "d0g0", "hb0", "d"),
    }


@given(wave=waves(), until=st.integers(0, 2000))
def test_clock_of_a_wave_runs_only_during_its_load(wave: Wave, until: int) -> None:
    ran = sum(wave.is_on(n * TICK) for n in range(until)) * TICK
    assert wave.on_s(until * TICK) == pytest.approx(ran)


@given(wave=waves(), on=st.integers(0, 2000).map(lambda n: (n + 0.5) * TICK))
def test_time_for_a_load_time_inverts_the_clock(wave: Wave, on: float) -> None:
    at = wave.time_for_on_s(on)
    if math.isinf(at):
        assert not wave.every
        assert wave.on_s(1e6) < on
    else:
        assert wave.on_s(at) == pytest.approx(on)
        assert wave.is_on(at)


def paced(wave: Wave, turns: list[float], phase: float = 0.5) -> tuple[Pacer, list[float]]:
    """A flow of a frame a 10 ms, served at these times if something is due; the times at which frames were sent."""
    pacer, sent = Pacer(wave, 0.01, phase), list[float]()
    for now in turns:
        if pacer.next_due_s() <= now:
            frames_to_send = pacer.frames_to_send(now)
            pacer.mark_sent(frames_to_send)
            sent += [now] * frames_to_send
    return pacer, sent


@given(
    wave=waves(),
    pauses=st.lists(st.floats(0.001, 0.8 * MAX_LATENESS_S), min_size=1, max_size=200),
    phase=st.floats(0.01, 0.99),
)
def test_frames_are_sent_at_their_rate_whatever_the_turns(wave: Wave, pauses: list[float], phase: float) -> None:
    turns = [sum(pauses[: n + 1]) for n in range(len(pauses))]
    pacer, _ = paced(wave, turns, phase)
    assert abs(pacer.sent - pacer.frames_due_by(turns[-1])) <= 1  # rounding, at an edge
    assert abs(pacer.sent * 0.01 - wave.on_s(turns[-1])) <= 0.011


def test_a_wave_is_off_between_its_ends() -> None:
    wave = Wave(0.2, 0.3, 0.6)
    _, sent = paced(wave, [n / 500 for n in range(1000)])
    assert all(wave.is_on(at - 1 / 500) or wave.is_on(at) for at in sent)
    assert len(sent) == pytest.approx(0.9 / 0.01, abs=1)


def test_late_bytes_are_given_up() -> None:
    pacer, sent = paced(Wave(), [0.1, 1.0, 1.01])
    assert sent == [0.1] * 5 + [1.0] * 5 + [1.01]
    assert pacer.frames_due_by(1.01) == 101


def test_ended_background_asks_for_no_bytes() -> None:
    pacer, sent = paced(Wave(0, 0.1), [0.05, 0.1, 0.15])
    assert (len(sent), pacer.next_due_s()) == (10, math.inf)
