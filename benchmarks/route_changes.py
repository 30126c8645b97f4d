"""How long the route agent takes to change routes at all GPUs of a fabric, beside two other ways to do the same.

    sudo .venv/bin/python -m benchmarks.route_changes [--domains 8] [--rails 8] [--repeats 11]

All take their turn in every repeat, on one rail-only fabric in a sandbox, and have to leave the kernel with the routes
that were asked for. See docs/benchmarks.md.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Final

import typer
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from benchmarks.measurements import spread
from railyard.controller.agent.route_agent import RouteAgent
from railyard.core.errors import BadInput
from railyard.core.host import datapath_choice, detect, require
from railyard.core.sandbox import init, launcher
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces, rtnetlink
from railyard.topologies.build.network import FabricNet
from railyard.topologies.forwarding import Path
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import Device, Hop, Route, host_prefix, next_hop
from railyard.topologies.spec import parse_fabric

RAIL_BPS: Final = 100_000_000
METRIC: Final = 15
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

RoutesByGpu = Mapping[Gpu, Sequence[Route]]
Way = Callable[[RoutesByGpu], None]


@dataclass(frozen=True, slots=True)
class Turns:
    """Milliseconds of each repeat: `changes` route changes made in this way."""

    changes: int
    way: str
    times_ms: tuple[float, ...]


def pyroute2_message(route: Route, source: Gpu, index: Mapping[Device, int], sequence: int) -> bytes:
    """What `rtnetlink.put_message` packs, by pyroute2."""
    address, length = route.prefix.split("/")
    message = rtmsg()
    message["family"], message["dst_len"], message["table"] = socket.AF_INET, int(length), route.table
    message["proto"], message["type"] = rtnetlink.PROTOCOL, rtnetlink.UNICAST
    attributes: list[tuple[str, Any]] = [("RTA_DST", address), ("RTA_PRIORITY", route.metric)]
    attributes.append(("RTA_PREFSRC", source.ip))
    message["scope"] = rtnetlink.SCOPE_LINK if route.is_on_link else rtnetlink.SCOPE_UNIVERSE
    if len(route.hops) > 1:
        attributes.append(("RTA_MULTIPATH", [_pyroute2_hop(hop, index) for hop in route.hops]))
    else:
        device, via, _ = route.hops[0]
        attributes.append(("RTA_OIF", index[device]))
        if via is not None:
            message["flags"] = rtnetlink.ONLINK
            attributes.append(("RTA_GATEWAY", via.ip))
    message["attrs"] = attributes
    message["header"]["type"] = rtnetlink.RTM_NEWROUTE
    message["header"]["flags"] = rtnetlink.REQUEST | rtnetlink.CREATE_REPLACE
    message["header"]["sequence_number"] = sequence
    message.encode()
    return bytes(message.data)


def _pyroute2_hop(hop: Hop, index: Mapping[Device, int]) -> dict[str, Any]:
    gateway = [("RTA_GATEWAY", hop.via.ip)] if hop.via else []
    flags = rtnetlink.ONLINK if hop.via else 0
    return {"oif": index[hop.device], "hops": hop.weight - 1, "flags": flags, "attrs": gateway}


class Pyroute2:
    """A socket a GPU, as the agent has them, and batches cut alike; pyroute2 encodes."""

    def __init__(self, plan: Plan) -> None:
        self._sockets: dict[Gpu, socket.socket] = {}
        self._index: dict[Gpu, dict[Device, int]] = {}
        for gpu in plan.gpus:
            with namespaces.inside(gpu.name):
                self._sockets[gpu] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
                self._index[gpu] = {"hb0": socket.if_nametoindex("hb0"), "rail0": socket.if_nametoindex("rail0")}

    def change(self, routes_by_gpu: RoutesByGpu) -> None:
        """OSError for the first answer that isn't a good one."""
        for gpu, routes in routes_by_gpu.items():
            messages = [pyroute2_message(route, gpu, self._index[gpu], i) for i, route in enumerate(routes)]
            for _, _, data in rtnetlink.batches(messages):
                self._sockets[gpu].send(data)
                sequence, code = rtnetlink.answer_of(self._sockets[gpu].recv(4096))
                if code:
                    raise OSError(code, f"{gpu.name}: route {routes[sequence]}")


def by_agent(agent: RouteAgent, routes_by_gpu: RoutesByGpu) -> None:
    """OSError for the first GPU that refuses one."""
    outcome = agent.change_all({gpu: ((), routes) for gpu, routes in routes_by_gpu.items()})
    for refusal in outcome.refused.values():
        raise refusal


def by_programs(routes_by_gpu: RoutesByGpu) -> None:
    """An `ip -batch` in each GPU's namespace. RuntimeError with what it says if it fails."""

    def change(gpu: Gpu) -> None:
        lines = (f"route replace {route.command(gpu)} proto {rtnetlink.PROTOCOL}\n" for route in routes_by_gpu[gpu])
        with namespaces.inside(gpu.name):
            namespaces.run(["ip", "-batch", "-"], "".join(lines))

    namespaces.in_threads(change, list(routes_by_gpu))


def host_routes(plan: Plan, rails: Sequence[int], shifted: bool) -> dict[Gpu, list[Route]]:
    """At each GPU: to those on these rails in other domains, by their rail (dr, or r), or if `shifted` by the next."""
    found = {}
    for src in plan.gpus:
        far = (Gpu(domain, rail) for domain in range(plan.spec.domains) if domain != src.domain for rail in rails)
        found[src] = [_host_route(src, dst, (dst.rank + shifted) % plan.spec.rails) for dst in far]
    return found


def _host_route(src: Gpu, dst: Gpu, rail: int) -> Route:
    path = Path("r" if rail == src.rank == dst.rank else "rd" if rail == src.rank else "drd", rail)
    return Route(host_prefix(dst), (Hop(*next_hop(path, src, dst)),), metric=METRIC)


def check(routes_by_gpu: RoutesByGpu) -> None:
    """RuntimeError if any GPU's routes differ from these."""
    for gpu, routes in routes_by_gpu.items():
        with namespaces.inside(gpu.name):
            output = json.loads(namespaces.run(["ip", "-j", "route", "show", "proto", str(rtnetlink.PROTOCOL)]))
        kernel_routes = {(entry["dst"], entry["dev"], entry.get("gateway"), entry["metric"]) for entry in output}
        expected_routes = {
            (route.prefix.removesuffix("/32"), hop.device, hop.via.ip if hop.via else None, route.metric)
            for route in routes
            for hop in route.hops
        }
        if not expected_routes <= kernel_routes:
            raise RuntimeError(f"{gpu.name} lacks routes: {sorted(map(str, expected_routes - kernel_routes))[:3]}")


def measure(ways: Mapping[str, Way], sides: Sequence[RoutesByGpu], repeats: int) -> list[Turns]:
    """Each way in turn, from one side of the two to the other, so that every route does change."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    turn = 0
    for _ in range(repeats):
        for name, way in ways.items():
            turn += 1
            routes_by_gpu = sides[turn % 2]
            begun = time.perf_counter()
            way(routes_by_gpu)
            times[name].append((time.perf_counter() - begun) * 1e3)
            check(routes_by_gpu)
    changes = sum(map(len, sides[0].values()))
    return [Turns(changes, name, tuple(own)) for name, own in times.items()]


def table_of(turns: Sequence[Turns], title: str) -> Table:
    """A row a number of changes and way: ms, us for each change, and how many times the first way's ms, the agent's."""
    table = Table(title=title, title_justify="left")
    for column in ("changes", "by", "ms", "µs a change", "factor"):
        table.add_column(column, justify="left" if column == "by" else "right", no_wrap=True)
    for turn in turns:
        first = next(other for other in turns if other.changes == turn.changes)
        factor = median(own / base for own, base in zip(turn.times_ms, first.times_ms, strict=True))
        table.add_row(
            str(turn.changes),
            turn.way,
            str(spread(turn.times_ms)),
            f"{median(turn.times_ms) / turn.changes * 1e3:.1f}",
            "1" if turn is first else f"× {factor:.1f}",
        )
    return table


def inside() -> int:
    """The inner half: build the fabric, and measure."""
    task = init.prepare()
    try:
        init.install_signal_handlers()
        console = Console(width=None if sys.stdout.isatty() else 120)
        plan = make_plan(parse_fabric(_fabric(task["domains"], task["rails"])), RAIL_BPS)
        net = FabricNet(plan, datapath_choice(detect())[0])  # routes need no controller, and it would take time
        with console.status("building the fabric"):
            net.start()
        agent, pyroute2 = RouteAgent(plan), Pyroute2(plan)
        agent.learn_interfaces()
        ways: dict[str, Way] = {
            "the agent": lambda routes_by_gpu: by_agent(agent, routes_by_gpu),
            "pyroute2's encoding": pyroute2.change,
            "ip -batch, a process a GPU": by_programs,
        }
        turns = []
        for rails in (range(1), range(plan.spec.rails)):
            sides = [host_routes(plan, rails, shifted) for shifted in (False, True)]
            with console.status(f"{sum(map(len, sides[0].values()))} changes"):
                turns += measure(ways, sides, task["repeats"])
        net.stop()
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    title = f"Routes changed at {plan.spec.gpus} GPUs, {plan.spec.domains} domains x {plan.spec.rails} rails"
    console.print(table_of(turns, title))
    console.print("ms: median (least–most) of the repeats. Factors: repeat by repeat, the median.", highlight=False)
    return 0


def _fabric(domains: int, rails: int) -> dict[str, Any]:
    return {"kind": "rail-only", "domains": domains, "rails": rails}


@app.command()
def route_changes(
    domains: Annotated[int, typer.Option(help="HB domains.")] = 8,
    rails: Annotated[int, typer.Option(help="GPUs in each.")] = 8,
    repeats: Annotated[int, typer.Option(help="How often each way takes its turn.")] = 11,
) -> None:
    """Change the routes to one rail at every GPU, and to all rails, in three ways, in turns."""
    parse_fabric(_fabric(domains, rails))
    if repeats < 1:
        raise BadInput("--repeats", repeats, "must be 1 or more")
    require(detect())
    task = {"domains": domains, "rails": rails, "repeats": repeats}
    raise typer.Exit(launcher.enter([sys.executable, "-m", "benchmarks.route_changes", *sys.argv[1:]], task))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments, inside)


if __name__ == "__main__":
    sys.exit(main())
