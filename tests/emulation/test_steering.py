"""Routes that follow scores, on real packets: taken is what was chosen, and nothing is lost by a change.

Rail-only, 3 domains x 4 rails:

    d0g0 ── rail0 ── d1g0, d2g0        d0g0 ── hb0 ── d0g1, d0g2, d0g3        and so on
"""

import os
import signal
import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from railyard.controller.agent.steering import Damping, ask
from railyard.controller.health.estimator import HealthSpec, RegistryKind
from railyard.controller.health.policy import default_policies, over_rail
from railyard.core.errors import RailyardError
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, Share, Shares
from railyard.topologies.measure.capture import Capture
from railyard.topologies.measure.counters import TRAFFIC, PortReader
from railyard.workloads.background.flows import Background
from railyard.workloads.background.spec import BackgroundSpec
from tests.emulation.fabrics import Fabric, build, eventually
from tests.emulation.steered import (
    AT_ONCE,
    FIRST_STAYS,
    SLOW_RATES,
    Agents,
    Scoreboard,
    Stream,
    assert_taken_as_chosen,
    chosen,
    far_pairs,
    pid_of_agents,
    steered_routes,
    traced,
)

pytestmark = pytest.mark.sandbox
UNEVEN: dict[str, Any] = {"rails": (90, 15, 55, 100), "domains": (100, 45, 85)}
HOT: list[dict[str, Any]] = [
    {"rails": rails, "domains": (100,) * 3} for rails in ((100, 10, 90, 90), (10, 100, 90, 90))
]
"""Either end's rail of the pair d0g0, d1g1, in turns."""
STALE_S = 0.5
SOON_S = 10.0  # how soon it is measured elsewhere: benchmarks/scores_to_routes.py
SRC, DST = Gpu(0, 0), Gpu(1, 1)


def hot(rail: int, **when: str) -> BackgroundSpec:
    return BackgroundSpec.model_validate({"rails": [rail], "load": 0.9, **when})


def by_rail_2(fabric: Fabric) -> dict[tuple[Gpu, Gpu], Shares]:
    """Return what an oracle may assign: every other pair goes over rail 2."""
    return {(src, dst): (Share(over_rail(2, src, dst)),) for src, dst in far_pairs(fabric)[::2]}


def assert_each_policy_is_followed(fabric: Fabric, policies: list[str], kind: RegistryKind, **scores: Any) -> set[str]:
    """Steer by each, trace all pairs, and release: then every GPU has the routes that it had. The kinds of path."""
    board, agents, before = Scoreboard(kind), Agents(fabric), fabric.routes()
    board.put(**scores)
    kinds = set()
    for policy in policies:
        agents.steer(policy, board.address, FIRST_STAYS, assigned=by_rail_2(fabric) if policy == "oracle" else {})
        kinds |= assert_taken_as_chosen(fabric)
        agents.process.release()
        assert ask(SRC, DST) is None
        assert fabric.routes() == before
    return kinds


@pytest.mark.long
def test_packets_follow_each_policy_and_release_restores_routes() -> None:
    kinds = assert_each_policy_is_followed(build("rail-only", 3, 4), list(default_policies()), "embedded", **UNEVEN)
    assert kinds == {"d", "r", "dr", "rd", "drd"}


def test_packets_go_as_chosen_with_etcd_too() -> None:
    assert_each_policy_is_followed(build("rail-only", 3, 4), list(default_policies()), "etcd", **UNEVEN)


@pytest.mark.parametrize("base", ["spine", "pxn"])
def test_packets_go_as_chosen_where_spines_join_rails(base: str) -> None:
    policies = ["dr", "rd", "ecmp", "health-drd", "health-best", "health-best-spray"]
    scores: dict[str, Any] = {"rails": (20, 90, 100), "domains": (95, 90), "spine": 95}
    kinds = assert_each_policy_is_followed(build("rail-optimized", 2, 3, policy=base), policies, "embedded", **scores)
    assert kinds == {"d", "r", "dr", "rd", "spine", "drd"}


def test_packets_go_as_chosen_on_a_clos_of_two_tiers() -> None:
    scores: dict[str, Any] = {"rails": (20, 90, 100), "domains": (95, 90), "spine": 95}
    fabric = build("clos", 2, 3)
    kinds = assert_each_policy_is_followed(fabric, ["base", "dr", "health-clos"], "embedded", **scores)
    assert kinds == {"d", "r", "dr", "rd", "spine", "drd"}


@pytest.mark.quiet
def test_a_hot_rail_is_left_and_an_idle_fabric_needs_no_routes() -> None:
    """Pairs return despite a margin: r and drd differ in hops, so that no worse is good enough for the way back."""
    fabric = build("rail-only", 3, 4, **SLOW_RATES)
    agents, address = Agents(fabric), fabric.controller.start_health(HealthSpec())
    agents.steer("health", address, Damping(None, 50_000_000))
    assert steered_routes(fabric) == 0
    to_rail_1 = [(src, dst) for src, dst in far_pairs(fabric) if dst.rank == 1 != src.rank]
    with Background(fabric.net.plan, [hot(1)]) as load:
        eventually(lambda: all(ask(src, dst) == [Path("rd", src.rank)] for src, dst in to_rail_1), SOON_S)
        with Capture(fabric.net.plan) as capture:
            # a machine that keeps the load waiting makes the rail look idle for a moment
            eventually(lambda: {traced(capture, src, dst)[0].kind for src, dst in to_rail_1} == {"rd"})
        eventually(lambda: steered_routes(fabric) == len(to_rail_1))
        load.stop()
    eventually(lambda: steered_routes(fabric) == 0, SOON_S)
    assert_taken_as_chosen(fabric)
    agents.process.release()
    agents.steer("health-drd", address, Damping(20, 50_000_000))
    along_rail_1 = [(src, dst) for src, dst in far_pairs(fabric) if src.rank == dst.rank == 1]
    with Background(fabric.net.plan, [hot(1)]):
        eventually(lambda: all((ask(*pair) or [])[0].kind == "drd" for pair in along_rail_1), SOON_S)
    eventually(lambda: all(ask(*pair) == [Path("r", 1)] for pair in along_rail_1), SOON_S)


def test_connection_survives_changes_of_scores_and_policies() -> None:
    fabric = build("rail-only", 3, 4)
    board, agents = Scoreboard("embedded"), Agents(fabric)
    board.put(**HOT[1])
    with Stream(SRC, DST) as stream, closing(PortReader([SRC.name, DST.name])) as reader:
        before = reader.read()
        for policy in ("health", "health-spray", "rd", "health-best"):
            agents.steer(policy, board.address, AT_ONCE, [(SRC, DST), (DST, SRC)])
            for turn in range(10):
                known = len(agents.reported)
                board.put(**HOT[turn % 2])
                if policy != "rd":  # which doesn't ask for scores
                    eventually(lambda known=known: {src for src, _ in choices(agents, known)} == {SRC.name, DST.name})  # type: ignore[misc]
                time.sleep(0.02)
                stream.assert_flows()
            agents.process.release()
        after = reader.read()
    assert stream.check() > 200_000
    reported = choices(agents)
    assert min(reported[SRC.name, DST.name], reported[DST.name, SRC.name]) > 15
    sent = TRAFFIC.index("tx_bytes")
    for gpu in (SRC.name, DST.name):  # it did go both ways, from both ends
        for device in ("hb0", "rail0"):
            assert after[gpu][device].traffic[sent] - before[gpu][device].traffic[sent] > 20_000


def choices(agents: Agents, since: int = 0) -> Counter[tuple[str, str]]:
    """Return how many choices were reported for each pair, after so many events."""
    reported = [detail for _, what, detail in agents.reported[since:] if what == "choice"]
    return Counter((detail["src"], detail["dst"]) for detail in reported)


@pytest.mark.parametrize("registry", ["embedded", "etcd"])
def test_traffic_flows_without_registry_and_scores_return(registry: RegistryKind) -> None:
    fabric = build("rail-only", 3, 4, **SLOW_RATES)
    agents, everybody = Agents(fabric), {gpu.name for gpu in fabric.gpus}
    address = fabric.controller.start_health(HealthSpec.model_validate({"registry": registry, "stale": "500ms"}))
    agents.steer("health", address, Damping(None, 50_000_000), stale_s=STALE_S)
    # of the paths from SRC to DST, its load is on rd alone: dr stays the better one
    with Stream(Gpu(1, 2), Gpu(2, 3)) as stream:
        fabric.controller.set_registry(up=False)
        fabric.await_event("registry-crashed")
        eventually(lambda: agents.gpus_that_told("stale") == everybody)
        with Background(fabric.net.plan, [hot(1)]):
            time.sleep(0.5)
            stream.assert_flows()
            assert ask(SRC, DST) == [Path("dr", 1)]  # the load of rail 1 has no score yet
            assert_taken_as_chosen(fabric)
            seen = len(agents.reported)
            fabric.controller.set_registry(up=True)
            fabric.await_event("registry-restarted")
            eventually(lambda: agents.gpus_that_told("fresh", seen) == everybody)
            eventually(lambda: ask(SRC, DST) == [Path("rd", 0)])
            stream.assert_flows()
    stream.check()


def test_fabric_without_agents_keeps_routes_and_controller() -> None:
    fabric = build("rail-only", 3, 4)
    board, agents = Scoreboard("embedded"), Agents(fabric)
    board.put(**UNEVEN)
    agents.steer("health-drd", board.address, FIRST_STAYS)
    routes, held = fabric.routes(), chosen(fabric)
    with Stream(SRC, DST) as stream:
        os.kill(pid_of_agents(), signal.SIGKILL)
        eventually(lambda: ask(SRC, DST) is None)
        stream.assert_flows()
        assert fabric.routes() == routes
        with Capture(fabric.net.plan) as capture:
            for (src, dst), message in held.items():
                path = eventually(lambda src=src, dst=dst: traced(capture, src, dst)[0].path)  # type: ignore[misc]
                assert message == [path]  # of a packet that a busy machine has captured everywhere
        with pytest.raises(RailyardError, match=r"^the agents died"):
            agents.process.release()
        fabric.set_link(Gpu(2, 3), "down")
        fabric.await_event("rerouted")
        stream.assert_flows()
    stream.check()


@pytest.mark.quiet
def test_alternating_load_changes_no_pair_within_its_dwell_time() -> None:
    fabric, dwell_s, watched_s = build("rail-only", 3, 4, **SLOW_RATES), 0.4, 3.0
    agents, pairs = Agents(fabric), far_pairs(fabric)
    address = fabric.controller.start_health(HealthSpec(smoothing="none"))
    agents.steer("health", address, Damping(None, round(dwell_s * 1e9)), pairs)
    first, begun = len(agents.reported), time.monotonic()
    with Background(fabric.net.plan, [hot(1, duration="150ms", period="300ms")]):
        time.sleep(watched_s)
        eventually(lambda: choices(agents, first)[SRC.name, DST.name] >= 3)  # it does go to and fro
        most = max(choices(agents, first).values())
        took_s = time.monotonic() - begun
    assert most <= 1 + took_s / dwell_s
