"""How long it takes from a change of scores to the last route that follows from it, at all GPUs of a fabric.

    sudo .venv/bin/python -m benchmarks.scores_to_routes [--domains 8] [--rails 8] [--rounds 4] [--policy health-drd]

One rail goes hot on a rail-only fabric, in a sandbox: the clock starts when its scores are put into a registry, and
stops when the kernel of the last GPU has acknowledged its routes. Both registries take turns with their peer, one
central process that decides for all and changes all, with no registry between. See docs/benchmarks.md.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any, Final, Protocol

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from benchmarks.route_changes import RAIL_BPS, check
from railyard.controller.agent.route_agent import RouteAgent
from railyard.controller.agent.steering import Damping, Source, Steering
from railyard.controller.health.policy import BEST, HEALTH_POLICIES, Context, Scores
from railyard.controller.health.registry.client import Registry, connect
from railyard.controller.health.registry.etcd import EtcdServer
from railyard.controller.health.registry.unix_socket import SocketServer
from railyard.controller.processes.clients import AgentsProcess
from railyard.core.errors import BadInput, RailyardError, unknown_name_hint
from railyard.core.host import datapath_choice, detect, require
from railyard.core.sandbox import init, launcher
from railyard.topologies.addresses import Gpu
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import Route
from railyard.topologies.spec import parse_fabric

HOT: Final = 10
CHANGES: Final = 5
"""In each round: so many times the next rail goes hot, and idle again."""
PAUSE_S: Final = 0.15
WAIT_S: Final = 10.0
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
RoutesByGpu = Mapping[Gpu, Sequence[Route]]


@dataclass(frozen=True, slots=True)
class Series:
    """Milliseconds of every change, by one way of making it; `routes`: of each change."""

    way: str
    routes: int
    times_ms: tuple[float, ...]


class Way(Protocol):
    """`change` brings the GPUs' routes to what follows from the scores; ms from the put to the last one."""

    name: str

    def change(self, scores: Scores, sources: int) -> float: ...


class Central:
    """One process that knows the scores, decides for every source in turn, and writes all routes together."""

    name = "one process, no registry"

    def __init__(self, plan: Plan, agent: RouteAgent, steering: Steering) -> None:
        self._agent = agent
        self._sources = {gpu: Source(plan, gpu, steering) for gpu in plan.gpus}

    def decide(self, scores: Scores) -> dict[Gpu, tuple[Sequence[Any], Sequence[Any]]]:
        """{gpu: (routes to remove, routes to put)} where anything changes."""
        now_ns = time.monotonic_ns()
        decided = {gpu: source.decide(scores, now_ns) for gpu, source in self._sources.items()}
        return {gpu: (found.remove, found.put) for gpu, found in decided.items() if found.remove or found.put}

    def change(self, scores: Scores, sources: int) -> float:
        begun = time.perf_counter()
        for refusal in self._agent.change_all(self.decide(scores)).refused.values():
            raise refusal
        return (time.perf_counter() - begun) * 1e3


class Agents:
    """An agent a GPU, as in a run: each has a cache of the registry's, and decides for itself."""

    def __init__(self, name: str, registry: Registry, change_log: "ChangeLog") -> None:
        self.name, self._registry, self._change_log = name, registry, change_log

    def change(self, scores: Scores, sources: int) -> float:
        put_ns = time.monotonic_ns()
        self._registry.put(scores)
        return (self._change_log.last_ns(scores.version, sources) - put_ns) / 1e6


class ChangeLog:
    """What agents tell of routes that they changed, by the version of the scores."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._changes: list[tuple[int, int, int]] = []  # version, sources, ns

    def on_event(self, ns: int, what: str, detail: dict[str, Any]) -> None:
        if what == "changed":
            with self._condition:
                self._changes.append((detail["version"], detail["sources"], ns))
                self._condition.notify_all()

    def last_ns(self, version: int, sources: int) -> int:
        """When so many sources had their routes. RailyardError if they don't within WAIT_S."""

        def done() -> bool:
            return (
                sum(
                    changed_sources
                    for changed_version, changed_sources, _ in self._changes
                    if changed_version == version
                )
                >= sources
            )

        with self._condition:
            if not self._condition.wait_for(done, WAIT_S):
                raise RailyardError(f"of {sources} agents some had no routes {WAIT_S:.0f} s after the scores")
            return max(ns for changed_version, _, ns in self._changes if changed_version == version)


def hot(plan: Plan, rail: int | None, version: int) -> Scores:
    """All idle but one rail."""
    rails = tuple(HOT if g == rail else BEST for g in range(plan.spec.rails))
    return Scores(rails, (BEST,) * plan.spec.domains, version=version)


class Bench:
    """A fabric that stands, and the three ways."""

    def __init__(self, plan: Plan, steering: Steering) -> None:
        self._plan, self._steering = plan, steering
        self._routes = RouteAgent(plan)
        self._routes.learn_interfaces()
        self._change_log = ChangeLog()
        self._agents = AgentsProcess(plan, self._change_log.on_event)
        socket_server, etcd = SocketServer(Path("/run/scores.sock")), EtcdServer(Path("/run/etcd"))
        self._registries: dict[str, tuple[str, Registry]] = {}
        for name, server in (("embedded registry", socket_server), ("etcd", etcd)):
            server.start()
            self._registries[name] = (server.address, connect(server.address))
        self._version = 0

    def rounds(self, count: int) -> list[Series]:
        """Each way in turn, `CHANGES` changes each time."""
        times: dict[str, list[float]] = {}
        routes = 0
        for turn in range(count):
            for name in (Central.name, *self._registries):
                with self._steered(name) as way:
                    for n in range(CHANGES):
                        took_ms, routes = self._measure_change(way, (turn * CHANGES + n) % self._plan.spec.rails)
                        times.setdefault(name, []).append(took_ms)
        return [Series(name, routes, tuple(own)) for name, own in times.items()]

    @contextmanager
    def _steered(self, name: str) -> Iterator[Way]:
        idle = hot(self._plan, None, self._next())
        if name == Central.name:
            central = Central(self._plan, self._routes, self._steering)
            central.decide(idle)
            yield central
            return
        address, registry = self._registries[name]
        registry.put(idle)
        self._agents.steer(self._steering, address)
        yield Agents(name, registry, self._change_log)
        self._agents.release()

    def _measure_change(self, way: Way, rail: int) -> tuple[float, int]:
        """A rail goes hot (this counts) and idle again (this doesn't); ms, and how many routes that were."""
        expected = Central(self._plan, self._routes, self._steering)
        expected.decide(hot(self._plan, None, 0))
        routes_by_gpu = {gpu: list(put) for gpu, (_, put) in expected.decide(hot(self._plan, rail, 0)).items()}
        time.sleep(PAUSE_S)
        took_ms = way.change(hot(self._plan, rail, self._next()), len(routes_by_gpu))
        check(routes_by_gpu)
        way.change(hot(self._plan, None, self._next()), len(routes_by_gpu))
        return took_ms, sum(map(len, routes_by_gpu.values()))

    def _next(self) -> int:
        self._version += 1
        return self._version


def p95(values: Sequence[float]) -> float:
    """The value that one in twenty is above, between the two nearest."""
    return quantiles(values, n=20, method="inclusive")[-1]


def table_of(series: Sequence[Series], title: str) -> Table:
    """A row a way: median, p95, least and most of its milliseconds, and its median beside the first's."""
    table = Table(title=title, title_justify="left")
    for column in ("by", "routes", "median ms", "p95 ms", "least–most", "more than the first, ms"):
        table.add_column(column, justify="left" if column == "by" else "right", no_wrap=True)
    for each in series:
        median_ms, minimum, maximum = median(each.times_ms), min(each.times_ms), max(each.times_ms)
        more = f"{median_ms - median(series[0].times_ms):.1f}" if each is not series[0] else ""
        table.add_row(
            each.way,
            str(each.routes),
            f"{median_ms:.1f}",
            f"{p95(each.times_ms):.1f}",
            f"{minimum:.1f}–{maximum:.1f}",
            more,
        )
    return table


def run_in_sandbox() -> int:
    """The inner half: build the fabric, and measure."""
    task = init.prepare()
    try:
        init.install_signal_handlers()
        with suppress(PermissionError):  # as the controller, in whose process the embedded registry is otherwise
            os.nice(-15)
        console = Console(width=None if sys.stdout.isatty() else 120)
        plan = make_plan(parse_fabric(_fabric(task["domains"], task["rails"])), RAIL_BPS)
        net = FabricNet(plan, datapath_choice(detect())[0])  # routes need no controller, and it would take time
        with console.status("building the fabric"):
            net.start()
        steering = Steering(task["policy"], Context(plan.spec.definition.joins_rails), Damping(margin=None, dwell_ns=0))
        with console.status("changing scores"):
            series = Bench(plan, steering).rounds(task["rounds"])
        net.stop()
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    size = f"{plan.spec.gpus} GPUs, {plan.spec.domains} domains x {plan.spec.rails} rails"
    title = f"From scores to routes by {task['policy']} at {size}"
    console.print(table_of(series, title))
    console.print(f"{len(series[0].times_ms)} changes each: a rail goes hot.", highlight=False)
    return 0


def _fabric(domains: int, rails: int) -> dict[str, Any]:
    return {"kind": "rail-only", "domains": domains, "rails": rails}


def _check_policy(name: str, plan: Plan) -> None:
    """BadInput unless routes change under it when a rail goes hot."""
    if name not in HEALTH_POLICIES:
        raise BadInput("--policy", name, unknown_name_hint(name, HEALTH_POLICIES))
    choose, gpus, context = HEALTH_POLICIES[name].choose, plan.gpus, Context(plan.spec.definition.joins_rails)
    idle, one_hot = hot(plan, None, 0), hot(plan, 1, 0)
    if all(choose(gpus[0], dst, idle, context) == choose(gpus[0], dst, one_hot, context) for dst in gpus[1:]):
        raise BadInput("--policy", name, "must be one that goes by scores: under it nothing changes")


@app.command()
def scores_to_routes(
    domains: Annotated[int, typer.Option(help="HB domains.")] = 8,
    rails: Annotated[int, typer.Option(help="GPUs in each.")] = 8,
    rounds: Annotated[int, typer.Option(help="How often each way takes its turn, of five changes.")] = 4,
    policy: Annotated[str, typer.Option(help="By which routes follow scores, such as health-drd.")] = "health-drd",
) -> None:
    """Time from scores that are put to routes that are acknowledged, by both registries and without one, in turns."""
    _check_policy(policy, make_plan(parse_fabric(_fabric(domains, rails)), RAIL_BPS))
    if rounds < 1:
        raise BadInput("--rounds", rounds, "must be 1 or more")
    require(detect())
    task = {"domains": domains, "rails": rails, "rounds": rounds, "policy": policy}
    raise typer.Exit(launcher.enter([sys.executable, "-m", "benchmarks.scores_to_routes", *sys.argv[1:]], task))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments, run_in_sandbox)


if __name__ == "__main__":
    sys.exit(main())
