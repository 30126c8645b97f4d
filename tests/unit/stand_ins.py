"""Stand-ins for a built fabric and what its controller counts, for what an experiment makes of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.records import IntervalId
from railyard.experiments.run.session import FabricSession, Watch
from railyard.results.runs.records import Run
from railyard.topologies.addresses import UPLINK_PORT
from railyard.topologies.build.network import FabricNet
from railyard.topologies.measure import counters
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric

Counters = dict[str, dict[int, dict[str, int]]]


def plan_of(kind: str = "rail-only", domains: int = 2, rails: int = 2, **keys: Any) -> Plan:
    return make_plan(parse_fabric({"kind": kind, "domains": domains, "rails": rails, **keys}), 100_000_000)


def run_of(name: str = "mine") -> Run:
    return Run(name, {}, {}, "2026-11-21T01:00:00+00:00")


class CountingController:
    """Its ports have carried nothing until `carried` says so."""

    user_app = ""

    def __init__(self, plan: Plan) -> None:
        self.counters: Counters = {switch.name: {} for switch in plan.switches}
        self.asked_for: list[int] = []

    def carried(self, switch: str, port: int, rx_bytes: int = 0, tx_bytes: int = 0) -> None:
        self.counters[switch][port] = {"rx_bytes": rx_bytes, "tx_bytes": tx_bytes}

    def port_counters(self, switches: int) -> Counters:
        self.asked_for.append(switches)
        return {name: {port: dict(values) for port, values in ports.items()} for name, ports in self.counters.items()}


class QuietWatch(Watch):
    """A watch that records no load, as there are no namespaces to count in."""

    @contextmanager
    def record_load(self, run: Run, interval_id: IntervalId, faulted: bool = False) -> Iterator[Watch]:
        yield self


class QuietSession(FabricSession):
    """A stage on which nothing runs, and nothing is measured but by the test."""

    def watch(self, since: counters.Counters | None = None) -> Watch:
        return QuietWatch(self.net, since or counters.Counters(0, 0, 0), self.net.plan.dilation)


def session_of(plan: Plan, label: str = "a fabric") -> tuple[QuietSession, CountingController]:
    controller = CountingController(plan)
    names = [gpu.name for gpu in plan.gpus]
    net = SimpleNamespace(plan=plan, node_names=names)
    return QuietSession(label, cast(FabricNet, net), cast(ControllerProcess, controller)), controller


GPU_PORT, FIRST_UPLINK = 1, UPLINK_PORT
