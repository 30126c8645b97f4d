"""The agents' process, with a stand-in for the GPUs' kernels."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from railyard.controller.agent.route_agent import Outcome, RouteAgent
from railyard.controller.agent.steering import Steering
from railyard.controller.health.policy import HEALTH_POLICIES, Context, HealthPolicy, Scores, idle
from railyard.controller.health.registry.client import connect
from railyard.controller.health.registry.unix_socket import SocketServer
from railyard.controller.processes.agents_main import Agents, Emit
from railyard.controller.processes.messages import Steer
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares
from railyard.topologies.measure.counters import TcpRates
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric

PLAN = make_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 2}), 10_000_000)


class Quiet:
    """Kernels that accept every change, without traffic."""

    def change_all(self, changes: Mapping[Gpu, Any]) -> Outcome:
        return Outcome(sum(len(put) + len(tuple(remove)) for remove, put in changes.values()), {})

    def read(self, node: str) -> dict[str, float | None]:
        return {}


def fails_when_hot(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """dr, until a rail is hot."""
    if min(scores.rails) <= 50:
        raise LookupError("no such rail")
    return HEALTH_POLICIES["dr"].choose(src, dst, scores, context)


def test_policy_that_raises_is_reported_and_ends_steering(tmp_path: Path) -> None:
    HEALTH_POLICIES.add("mine", HealthPolicy(fails_when_hot))
    server, reported = SocketServer(tmp_path / "s"), list[tuple[str, dict[str, Any]]]()
    server.start()
    healthd = connect(server.address)
    healthd.put(idle(2, 2))
    emit = cast(Emit, lambda what, detail: reported.append((what, detail)))
    steer = Steer(steering=Steering("mine"), address=server.address, stale_s=1.0, watched=frozenset())
    agents = Agents(PLAN, cast(RouteAgent, Quiet()), cast(TcpRates, Quiet()), steer, emit)
    agents.start()
    try:
        await_event(reported, "steering")
        healthd.put(Scores((10, 100), (100, 100), version=1))
        failed = await_event(reported, "failed")
        assert failed == {"policy": "mine", "why": "LookupError: no such rail"}
    finally:
        HEALTH_POLICIES.remove("mine")
        agents.stop()
        healthd.close()
        server.stop()


def await_event(reported: list[tuple[str, dict[str, Any]]], wanted: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while not (found := [detail for what, detail in reported if what == wanted]):
        assert time.monotonic() < deadline, reported
        time.sleep(0.01)
    return found[0]
