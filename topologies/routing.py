"""The three route tables of a GPU, with backup routes (docs/topologies.md). A policy or a fault adds routes on top.

One address per GPU on unnumbered links, so that a path follows from its source's choice of next hop alone: G(d1,g2)
over hb0 makes a dr path, G(d2,g1) over rail0 rd, G(d1,x) over hb0 drd by rail x. A packet that starts here is sent to
the policy's next hop (main). One that came in from hb0 is carried across this GPU's own rail (table 101): to its
destination if that is on the rail, else to the GPU of the destination's domain. One from rail0 is delivered over hb0
(table 102).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Final, NamedTuple

from railyard.topologies import forwarding
from railyard.topologies.addresses import BLOCK_PREFIXES, Gpu, rail_device, rank_prefixes
from railyard.topologies.forwarding import FORWARDING_POLICIES, Path, Shares
from railyard.topologies.plan import Plan

Device = str  # hb0, or rail0, rail1, ...: a rail link for each plane
MAIN: Final = 254
FROM_HB: Final = 101
FROM_RAIL: Final = 102
# lower wins: a choice made while running overrides these routes, and backups stand behind them
METRIC: Final = 20
BACKUP_METRIC: Final = 1000
MAX_WEIGHT: Final = 256


class Hop(NamedTuple):
    """A next hop: out of `device`, by way of GPU `via` (None: the destination is on the link itself).

    `weight`: its share of the flows (1 to 256) beside those of the route's other hops.
    """

    device: Device
    via: Gpu | None = None
    weight: int = 1

    @property
    def command(self) -> str:
        """The words for it in a line of `ip -batch`."""
        if self.via is None:
            return f"dev {self.device}"
        return f"via {self.via.ip} dev {self.device} onlink"


@dataclass(frozen=True, slots=True)
class Route:
    """Route to `prefix` by one next hop or several: the kernel hashes a flow's addresses and ports, so a flow keeps to
    one. ValueError without a hop, or for a weight that the kernel doesn't know.
    """

    prefix: str
    hops: tuple[Hop, ...]
    table: int = MAIN
    metric: int = METRIC

    def __post_init__(self) -> None:
        if not self.hops:
            raise ValueError(f"{self.prefix}: a route needs a next hop")
        if not all(1 <= hop.weight <= MAX_WEIGHT for hop in self.hops):
            raise ValueError(f"{self.prefix}: weights must be 1 to {MAX_WEIGHT}: {self.hops}")

    def command(self, source: Gpu) -> str:
        """Return the line for `ip -batch`, without its verb."""
        options = f"src {source.ip} table {self.table} metric {self.metric}"
        scope = " scope link" if self.is_on_link else ""
        if len(self.hops) == 1:
            return f"{self.prefix} {self.hops[0].command}{scope} {options}"
        next_hops = [f"nexthop {hop.command} weight {hop.weight}" for hop in self.hops]
        return f"{self.prefix}{scope} {options} {' '.join(next_hops)}"

    @property
    def is_on_link(self) -> bool:
        """Presence of the destination on the link itself, by every next hop."""
        return all(hop.via is None for hop in self.hops)

    @property
    def key(self) -> str:
        """Prefix and table: unique among the routes of a GPU with one metric."""
        if self.table == MAIN:
            return self.prefix
        return f"{self.prefix} table {self.table}"


ON_HB: Final = (Hop("hb0"),)
ON_RAIL: Final = (Hop("rail0"),)  # to the destination's own NIC


def host_prefix(gpu: Gpu) -> str:
    """Return the prefix of one GPU."""
    return f"{gpu.ip}/32"


def source_routes(plan: Plan, gpu: Gpu) -> list[Route]:
    """Return the main table, by the fabric's forwarding policy: own domain over hb0, own rail over rail0, and the
    rest by the policy's rule.
    """
    # A route for each of 1,024 GPUs at each of them takes 28 s to put in. So there is one route for a rank, or for all,
    # where the next hop is the same for many destinations.
    domains = plan.spec.domains
    other_domains = [domain for domain in range(domains) if domain != gpu.domain]
    other_ranks = [rank for rank in range(plan.spec.rails) if rank != gpu.rank]
    routes = [Route(host_prefix(Gpu(gpu.domain, rank)), ON_HB) for rank in other_ranks]
    routes += [Route(prefix, ON_RAIL) for prefix in rank_prefixes(gpu.rank, domains)]
    hops_by_rank = {rank: _next_hops_by_domain(plan, gpu, rank, other_domains) for rank in other_ranks}
    all_hops = set(chain.from_iterable(hops_by_rank.values()))
    # where everything leaves by rail0, one route or two for all GPUs do
    if all_hops <= {ON_RAIL}:
        routes += [Route(block, ON_RAIL) for block in BLOCK_PREFIXES[: len(rank_prefixes(0, domains))]]
        return over_planes(routes, plan)
    for rank, hops_by_domain in hops_by_rank.items():
        usual_hops = _usual_hops(gpu, hops_by_domain)
        if usual_hops:
            routes += [Route(prefix, usual_hops) for prefix in rank_prefixes(rank, domains)]
        routes += _routes_besides(usual_hops, rank, dict(zip(other_domains, hops_by_domain, strict=True)))
    return over_planes(routes, plan)


def _routes_besides(
    usual_hops: tuple[Hop, ...], rank: int, hops_of_domain: Mapping[int, tuple[Hop, ...]]
) -> list[Route]:
    """Return a route to each GPU of a rank whose next hops are not the usual ones, and that has a path."""
    unusual = {domain: hops for domain, hops in hops_of_domain.items() if hops and hops != usual_hops}
    return [Route(host_prefix(Gpu(domain, rank)), hops) for domain, hops in unusual.items()]


def _usual_hops(gpu: Gpu, hops_by_domain: Sequence[tuple[Hop, ...]]) -> tuple[Hop, ...]:
    """Return the next hops that most domains of a rank have in common; () if there are none.

    Also () if any domain's GPU of the rank has no path: a route for the whole rank would lead there too.
    """
    if not all(hops_by_domain):
        return ()
    counts = Counter(hops_by_domain)
    common: list[tuple[Hop, ...]] = []
    for hops in counts:
        # a GPU of another domain forwards for its own domain alone
        if all(hop.via is None or hop.via.domain == gpu.domain for hop in hops):
            common.append(hops)
    return max(common, key=counts.__getitem__, default=())


def _next_hops_by_domain(plan: Plan, gpu: Gpu, rank: int, domains: Sequence[int]) -> list[tuple[Hop, ...]]:
    """Return the next hops to the GPU of a rank in each of these domains."""

    def to(domain: int) -> tuple[Hop, ...]:
        return next_hops(plan.spec.paths(gpu, Gpu(domain, rank)), gpu, Gpu(domain, rank))

    if FORWARDING_POLICIES[plan.spec.chosen_policy].by_rank:
        first = to(domains[0])
        if all(hop.via is None or hop.via.domain == gpu.domain for hop in first):
            # the same for every domain
            return [first] * len(domains)
    return [to(domain) for domain in domains]


def on_planes(hops: tuple[Hop, ...], planes: tuple[int, ...]) -> tuple[Hop, ...]:
    """Return the hops with those by rail0 spread over the rail links of these planes."""
    if planes == (0,):
        return hops
    spread_hops: list[Hop] = []
    for hop in hops:
        if hop.device == "rail0":
            spread_hops += [Hop(rail_device(plane), hop.via, hop.weight) for plane in planes]
        else:
            spread_hops.append(hop)
    return tuple(spread_hops)


def over_planes(routes: Sequence[Route], plan: Plan) -> list[Route]:
    """Return the routes with those by rail0 spread over the planes that carry traffic."""
    planes = plan.spec.definition.carrying(plan.spec.definition.all_planes)
    if planes == (0,):
        return list(routes)
    return [replace(route, hops=on_planes(route.hops, planes)) for route in routes]


def next_hop(path: Path, src: Gpu, dst: Gpu) -> tuple[Device, Gpu | None]:
    """Return what the source's main table needs for a path: the interface, and the GPU that forwards (None: `dst`)."""
    first = forwarding.hops(path, src, dst)[0]
    device = "hb0" if first.side == "hb" else "rail0"
    via = None if first.b == dst else first.b
    return device, via


def next_hops(shares: Shares, src: Gpu, dst: Gpu) -> tuple[Hop, ...]:
    """Return the next hops of several paths, each once, with weights that the kernel knows; () without a path."""
    if not shares:
        return ()
    if len(shares) == 1:
        return (Hop(*next_hop(shares[0].path, src, dst)),)
    weights: defaultdict[tuple[Device, Gpu | None], int] = defaultdict(int)
    for path, weight in shares:
        weights[next_hop(path, src, dst)] += weight
    if len(weights) == 1:
        return (Hop(*next(iter(weights))),)
    scale = min(1.0, MAX_WEIGHT / max(weights.values()))
    return tuple(Hop(device, via, max(1, round(weight * scale))) for (device, via), weight in weights.items())


def transit_routes(plan: Plan, gpu: Gpu) -> list[Route]:
    """Return tables 101 and 102: what this GPU forwards for others."""
    if not plan.spec.forwards_in_domains:
        return []
    carried: list[Route] = []
    for domain in range(plan.spec.domains):
        if domain != gpu.domain:
            carried += carried_routes(plan, gpu.rank, domain)
    return local_transit_routes(plan, gpu) + over_planes(carried, plan)


def local_transit_routes(plan: Plan, gpu: Gpu) -> list[Route]:
    """Return the part of tables 101 and 102 that leads to the GPU's rail and to its HB domain."""
    if not plan.spec.forwards_in_domains:
        return []
    routes: list[Route] = []
    for rank in _ranks_on_rail(plan, gpu.rank):
        routes += [Route(prefix, ON_RAIL, FROM_HB) for prefix in rank_prefixes(rank, plan.spec.domains)]
    for rank in range(plan.spec.rails):
        if rank != gpu.rank:
            routes.append(Route(host_prefix(Gpu(gpu.domain, rank)), ON_HB, FROM_RAIL))
    return over_planes(routes, plan)


def carried_routes(plan: Plan, rank: int, domain: int) -> list[Route]:
    """Return the part of table 101 that every GPU of a rank has for another domain: through the rail's GPU there."""
    if not plan.spec.forwards_in_domains:
        return []
    hops = (Hop("rail0", Gpu(domain, rank)),)
    on_rail = _ranks_on_rail(plan, rank)
    return [Route(host_prefix(Gpu(domain, g)), hops, FROM_HB) for g in range(plan.spec.rails) if g not in on_rail]


def _ranks_on_rail(plan: Plan, rank: int) -> tuple[int, ...]:
    """Return the ranks on the rail of a rank: itself, and those that share its NIC."""
    by_rank = plan.spec.rail_of_rank
    if not by_rank:
        return (rank,)
    return tuple(other for other, rail in enumerate(by_rank) if rail == by_rank[rank])


def backup_routes(plan: Plan, gpu: Gpu) -> list[Route]:
    """Return routes to a neighbour in the domain for all that would leave by rail0 while that has no carrier (drd).

    An empty list for a GPU of a domain with a single NIC, or where GPUs forward nothing.
    """
    if plan.spec.rail_count == 1 or not plan.spec.forwards_in_domains:
        return []
    # These serve transit too: a packet that finds nothing alive in table 101 is looked up in main next. One dead link
    # makes no loop, since the neighbour's own rail lives; the packet's source may be that neighbour, which then carries
    # its own packet.
    on_rail = _ranks_on_rail(plan, gpu.rank)
    # GPUs of one NIC have different neighbours, where another NIC has as many
    further_ranks = [(gpu.rank + len(on_rail) + step) % plan.spec.rails for step in range(plan.spec.rails)]
    neighbour = Gpu(gpu.domain, next(rank for rank in further_ranks if rank not in on_rail))
    blocks = BLOCK_PREFIXES[: len(rank_prefixes(0, plan.spec.domains))]
    return [Route(block, (Hop("hb0", neighbour),), metric=BACKUP_METRIC) for block in blocks]


def neighbours(plan: Plan, gpu: Gpu) -> list[tuple[Gpu, Device]]:
    """Return the GPUs whose MAC this GPU must know, and on which link: its domain, its rail or all joined rails."""
    domains = plan.spec.domains
    rails = plan.spec.rails
    kind = plan.spec.definition
    in_domain = [Gpu(gpu.domain, rank) for rank in range(rails) if rank != gpu.rank]
    result: list[tuple[Gpu, Device]] = [(other, "hb0") for other in in_domain]
    if kind.is_graph and kind.joins_rails:
        # for heartbeats, which cross all switches
        result += [(other, "rail0") for other in in_domain]
    ranks = range(rails) if kind.joins_rails else _ranks_on_rail(plan, gpu.rank)
    other_domains = [domain for domain in range(domains) if domain != gpu.domain]
    # there may be a thousand: one loop takes less time than a comprehension for each pair
    for domain, rank, device in product(other_domains, ranks, plan.devices[1:]):
        result.append((Gpu(domain, rank), device))
    return result


def route_commands(plan: Plan, gpu: Gpu, backups: bool) -> str:
    """Return neighbours and routes for `ip -batch` in the GPU's namespace: what it loses with its interfaces."""
    routes = [*source_routes(plan, gpu), *transit_routes(plan, gpu)]
    if backups:
        routes += backup_routes(plan, gpu)
    lines: list[str] = []
    for neighbour, device in neighbours(plan, gpu):
        mac = neighbour.mac_of(device)
        lines.append(f"neigh replace {neighbour.ip} lladdr {mac} dev {device} nud permanent")
    lines += [f"route replace {route.command(gpu)}" for route in routes]
    return "\n".join(lines) + "\n"


def gpu_commands(plan: Plan, gpu: Gpu, backups: bool) -> str:
    """Return everything for one `ip -batch` in the GPU's namespace, once its interfaces exist."""
    rails = plan.devices[1:]
    lines = ["link set lo up", f"addr add {gpu.ip}/32 dev lo"]
    lines += [f"link set {device} up" for device in plan.devices]
    lines.append(f"rule add iif hb0 lookup {FROM_HB} pref 100")
    lines += [f"rule add iif {device} lookup {FROM_RAIL} pref 101" for device in rails]
    return "\n".join(lines) + "\n" + route_commands(plan, gpu, backups)
