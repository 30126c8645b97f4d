"""healthd: counters as switches and bridges give them, missing, late, repeated or begun anew, become scores."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.health.estimator import HealthSpec, Links
from railyard.controller.health.monitor import Healthd
from railyard.controller.health.policy import Scores
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.addresses import RAIL_DPID, SINGLE_DPID, SPINE_DPID, UPLINK_PORT
from railyard.topologies.measure.counters import PortStats
from railyard.topologies.plan import Plan
from tests.unit.broken_fabrics import plan
from tests.unit.controller.health_settings import parse_health

MS = 1_000_000
PERIOD_MS = 50
FULL = 625_000  # bytes of a 100 Mbit/s rail in a period
QUIET = PortStats(up=True, traffic=(0,) * 6)
PLAN = plan("rail-only", "dr", 4, 2, rail_rate="100Mbit", hb_rate="100Mbit")
AT_ONCE = parse_health({"smoothing": "none"})


def stats(dpid: int, at_ms: float, sent: Mapping[int, int], dropped: int = 0, frames: int = 0) -> SwitchEvent:
    """Return what a switch has sent by port since it started."""
    rest = {"rx_bytes": 0, "rx_packets": 0, "tx_packets": frames, "rx_dropped": 0, "tx_dropped": dropped}
    counters = {port: {"tx_bytes": total} | rest for port, total in sent.items()}
    return SwitchEvent("stats", dpid, round(at_ms * MS), counters=counters)


def spec(**message: str) -> HealthSpec:
    return parse_health(message)


def bridge(sent: int = 0, received: int = 0, **more: int | bool) -> PortStats:
    return replace(QUIET, traffic=(received, sent, 0, 0, 0, 0), **more)  # type: ignore[arg-type]


class Lab:
    """A healthd, and the time in ms."""

    def __init__(self, fabric: Plan = PLAN, spec: HealthSpec = AT_ONCE) -> None:
        self.healthd = Healthd(fabric, spec)

    def on_event(self, *reports: SwitchEvent) -> None:
        for report in reports:
            self.healthd.on_event(report)

    def at(self, ms: float) -> Scores:
        return self.healthd.scores(round(ms * MS))


def all_ports(total: int) -> dict[int, int]:
    return dict.fromkeys(range(1, 5), total)


def test_a_rail_scores_what_its_ports_leave_free() -> None:
    lab = Lab()
    assert lab.at(0) == Scores((100, 100), (100,) * 4)
    lab.on_event(stats(RAIL_DPID, 0, all_ports(10**12)), stats(RAIL_DPID, 50, all_ports(10**12 + FULL * 9 // 10)))
    assert lab.at(50) == Scores((10, 100), (100,) * 4, version=1)


def test_the_busier_direction_counts() -> None:
    lab = Lab()
    lab.healthd.read("hb1", {"d1g0": bridge(), "d1g1": bridge()}, 0)
    seen = {"d1g0": bridge(sent=FULL * 4 // 10, received=FULL * 6 // 10), "d1g1": bridge(sent=FULL * 2 // 10)}
    lab.healthd.read("hb1", seen, 50 * MS)
    assert lab.at(50).domains == (100, 60, 100, 100)  # of two links with 0.6 and 0.2, by their mean
    worst = Lab(spec=spec(smoothing="none", links="worst"))
    worst.healthd.read("hb1", {"d1g0": bridge(), "d1g1": bridge()}, 0)
    worst.healthd.read("hb1", seen, 50 * MS)
    assert worst.at(50).domains == (100, 40, 100, 100)


HALF = FULL // 2


@pytest.mark.parametrize(
    ("reports", "scores"),
    [
        # a report after a missing one covers both periods
        ([(0, 0), (50, HALF), (150, HALF + FULL)], {50: 50, 100: 50, 150: 50}),
        # A report that repeats, comes late or too close says nothing. The last of these was held up and reached us at
        # 60 ms: its successor is no burst.
        ([(0, 0), (50, HALF), (20, FULL), (150, HALF + FULL)], {70: 50, 150: 50}),
        ([(0, 0), (50, HALF), (50, FULL), (150, HALF + FULL)], {70: 50, 150: 50}),
        ([(0, 0), (50, HALF), (60, FULL), (150, HALF + FULL)], {70: 50, 150: 50}),
        # counters that begin anew are no load: the last load counts
        ([(0, 10**9), (50, 10**9 + FULL // 4), (100, 1000), (150, 1000 + FULL)], {100: 75, 150: 1}),
    ],
)
def test_reports_of_a_rail_become_scores(reports: list[tuple[int, int]], scores: dict[int, int]) -> None:
    lab = Lab()
    for at_ms, score in scores.items():
        while reports and reports[0][0] <= at_ms:
            lab.on_event(stats(RAIL_DPID, reports[0][0], all_ports(reports[0][1])))
            reports = reports[1:]
        assert lab.at(at_ms).rails == (score, 100), at_ms


def test_a_port_that_appears_later_counts_from_its_second_report() -> None:
    lab = Lab()
    for at_ms in (0, 50):
        lab.on_event(stats(RAIL_DPID, at_ms, dict.fromkeys(range(1, 4), 0)))
    lab.on_event(stats(RAIL_DPID, 100, all_ports(10**9) | dict.fromkeys(range(1, 4), 0)))
    assert lab.at(100).rails == (100, 100)


def test_cut_links_show_at_once_and_return_without_history() -> None:
    lab = Lab(spec=spec(smoothing="1s"))
    lab.on_event(stats(RAIL_DPID, 0, all_ports(0)), stats(RAIL_DPID, 50, all_ports(FULL)))
    lab.at(50)
    lab.on_event(SwitchEvent("port", RAIL_DPID + 1, 51 * MS, port=2, up=False))
    assert lab.at(51).rails[1] == 75
    lab.on_event(SwitchEvent("switch-down", RAIL_DPID, 52 * MS))
    assert lab.at(52).rails == (0, 75)
    lab.on_event(SwitchEvent("switch-up", RAIL_DPID, 53 * MS, up_ports=frozenset({1, 2, 3, UPLINK_PORT})))
    lab.on_event(SwitchEvent("port", RAIL_DPID + 1, 53 * MS, port=2, up=True))
    assert lab.at(53).rails == (75, 100)


def test_a_domain_without_carrier_is_blocked() -> None:
    lab = Lab()
    lab.healthd.read("hb3", {"d3g0": replace(QUIET, up=False), "d3g1": replace(QUIET, up=False)}, 0)
    assert lab.at(0).domains == (100, 100, 100, 0)


def test_version_grows_only_with_changes_of_whole_scores() -> None:
    lab = Lab()
    lab.on_event(stats(RAIL_DPID, 0, all_ports(0)))
    sent, versions = 0, []
    for look, share in enumerate([0.5, 0.5, 0.501, 0.2, 0.2, 0.0], start=1):
        sent += round(FULL * share)
        lab.on_event(stats(RAIL_DPID, look * 50, all_ports(sent)))
        versions.append(lab.at(look * 50).version)
    assert versions == [1, 1, 1, 2, 2, 3]


def test_smoothing_goes_by_the_clock() -> None:
    lab = Lab(spec=spec(smoothing="100ms"))
    lab.on_event(stats(RAIL_DPID, 0, all_ports(0)))
    lab.at(0)
    lab.on_event(stats(RAIL_DPID, 50, all_ports(FULL)))
    assert lab.at(50).rails[0] == 61  # exp(-0.5)
    assert lab.at(100).rails[0] == 37  # exp(-1), though nothing was reported in between


def test_spine_layer_is_measured_at_the_spines_uplinks() -> None:
    fabric = plan("rail-optimized", "spine", 4, 2, rail_rate="100Mbit", spines=2)  # uplinks of 200 Mbit/s
    lab = Lab(fabric)
    uplinks = {UPLINK_PORT: 0, UPLINK_PORT + 1: 0}
    for dpid, ports in ((SPINE_DPID, {1: 0, 2: 0}), (SPINE_DPID + 1, {1: 0, 2: 0}), (RAIL_DPID, uplinks)):
        lab.on_event(stats(dpid, 0, ports), stats(dpid, 50, dict.fromkeys(ports, FULL)))
    assert lab.at(50) == Scores((100, 100), (100,) * 4, spine=50, version=1)
    lab.on_event(SwitchEvent("switch-down", SPINE_DPID, 60 * MS))
    assert lab.at(60).spine == 25


def test_the_single_switch_is_every_rail() -> None:
    fabric = plan("single-switch", "spine", 4, 2, rail_rate="100Mbit")
    lab = Lab(fabric)
    rank_1 = {1 + 256 * d + 1: FULL // 2 for d in range(4)}
    lab.on_event(stats(SINGLE_DPID, 0, dict.fromkeys(rank_1, 0)), stats(SINGLE_DPID, 50, rank_1))
    assert lab.at(50).rails == (100, 50)


@pytest.mark.parametrize("node", ["rail0", "d2g0"])
def test_backlog_counts_queues_at_both_ends_of_a_rail(node: str) -> None:
    lab = Lab(spec=spec(smoothing="none", estimator="backlog", full_queue="8ms"))  # 100,000 bytes
    interface = "d2g0" if node == "rail0" else "rail0"
    waiting = bridge(sent=10**9, up=False, backlog_bytes=50_000)
    lab.healthd.read(node, {interface: waiting, "hole": waiting}, 0)
    assert lab.at(0) == Scores((88, 100), (100,) * 4, version=1)  # half of one of four links


def test_drops_at_a_port_and_in_a_shaper_are_both_losses() -> None:
    lab = Lab(spec=spec(smoothing="none", estimator="loss"))
    lab.on_event(stats(RAIL_DPID, 0, {1: 0}), stats(RAIL_DPID, 50, {1: 0}, dropped=2, frames=995))
    for at_ms, dropped in ((0, 70), (50, 73)):
        lab.healthd.read("rail0", {"d0g0": bridge(queue_dropped=dropped)}, at_ms * MS)
    assert lab.at(50).rails == (50, 100)  # 5 of 1000


def test_reports_of_another_fabric_are_ignored() -> None:
    lab = Lab()
    lab.on_event(stats(RAIL_DPID + 7, 0, {1: 0}), SwitchEvent("port", RAIL_DPID, 0, port=99, up=False))
    lab.on_event(SwitchEvent("switch-down", SPINE_DPID, 0), stats(RAIL_DPID, 0, {UPLINK_PORT: 5}))
    lab.healthd.read("hb9", {"d9g0": bridge(up=False)}, 0)
    assert lab.at(0).version == 0


events = st.one_of(
    st.tuples(st.just("stats"), st.integers(0, 1), st.integers(0, 10**7)),
    st.tuples(st.sampled_from(["switch-down", "switch-up", "port"]), st.integers(0, 1), st.integers(0, 5)),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
)


@given(st.lists(st.tuples(events, st.integers(-20, 120)), max_size=40), st.sampled_from(["mean", "worst"]))
def test_whatever_comes_in_whatever_order_scores_are_scores(
    reported: list[tuple[tuple[str, int, int], int]], links: Links
) -> None:
    """Scores refuses what is outside 0 to 100. Versions go up by one, and 0 means that nothing is up, and only that."""
    lab, now, version = Lab(spec=spec(links=links)), 1000, 0
    up = [{1, 2, 3, 4}, {1, 2, 3, 4}]
    for (what, rail, number), later in reported:
        at = now + min(later, 0)
        match what:
            case "stats":
                lab.on_event(stats(RAIL_DPID + rail, at, all_ports(number)))
            case "port":
                lab.on_event(SwitchEvent("port", RAIL_DPID + rail, at * MS, port=number, up=later % 2 == 0))
                up[rail] = up[rail] - {number} | ({number} & {1, 2, 3, 4} if later % 2 == 0 else set())
            case "switch-up":
                lab.on_event(SwitchEvent("switch-up", RAIL_DPID + rail, at * MS, up_ports=frozenset(range(number))))
                up[rail] = {1, 2, 3, 4} & set(range(number))
            case "switch-down":
                lab.on_event(SwitchEvent("switch-down", RAIL_DPID + rail, at * MS))
                up[rail] = set()
            case "look":
                now += max(later, 0)
                scores = lab.at(now)
                assert scores.version in (version, version + 1)
                assert [score == 0 for score in scores.rails] == [not ports for ports in up]
                version = scores.version
