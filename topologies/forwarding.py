"""Paths between two GPUs, and forwarding policies: by which path packets travel while nothing is broken.

A policy is one rule, `path(src, dst, fabric)`. Everything else is derived from it: route tables (routing.py), detours
around failures (controller/failover), expected traffic per port and predicted times (workloads/matrix), and the path
that `trace` expects. Built-in policies are the modules of topologies/policies; plugins register theirs the same way
(docs/extending.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import ClassVar, Final, Literal, NamedTuple

from railyard.core.registry import Registry
from railyard.topologies.addresses import Gpu, Side
from railyard.topologies.nics import RailOfRank
from railyard.topologies.prediction import Stated

PathKind = Literal["d", "r", "dr", "rd", "drd", "spine"]


@dataclass(frozen=True, slots=True)
class Path:
    """Route of a packet: its kind, and the rail that it crosses, by the rank of the GPUs at the rail's ends.

    Where GPUs share NICs, several ranks are on one rail.

    | kind  | hops from G(d1,g1) to G(d2,g2)                     | `rail` |
    |-------|----------------------------------------------------|--------|
    | d     | the HB domain (d1 = d2)                            | g1     |
    | r     | the rail (g1 and g2 are on the same)               | g1     |
    | dr    | HB domain to G(d1,g2), then its rail               | g2     |
    | rd    | own rail to G(d2,g1), then the HB domain           | g1     |
    | drd   | HB domain to G(d1,x), rail x to G(d2,x), HB domain | x      |
    | spine | the NIC network alone, from rail g1 to rail g2     | g1     |

    Source: Rail-only IV-B (dr), Outshift health routing, parts 1 and 2 (rd, drd).
    """

    kind: PathKind
    rail: int


path_of: Final = cache(Path)
"""Return the one Path object of a kind and a rail: there are few, and millions of requests for them."""


class Share(NamedTuple):
    """A path and its share of a pair's traffic: `weight` out of the sum of the pair's weights. Flows are hashed."""

    path: Path
    weight: int = 1


Shares = tuple[Share, ...]


class Hop(NamedTuple):
    """One step of a path: from GPU `a`'s interface of a side to GPU `b`'s."""

    a: Gpu
    b: Gpu
    side: Side


def rail_ends(path: Path, src: Gpu, dst: Gpu) -> tuple[Gpu, Gpu]:
    """Return the GPUs between which a path crosses its rail, or the NIC network."""
    enter = src
    leave = dst
    if path.kind in ("dr", "drd"):
        enter = Gpu(src.domain, path.rail)
    if path.kind in ("rd", "drd"):
        leave = Gpu(dst.domain, path.rail)
    return enter, leave


def hops(path: Path, src: Gpu, dst: Gpu) -> tuple[Hop, ...]:
    """Return the steps of a path in the order of travel."""
    if path.kind == "d":
        return (Hop(src, dst, "hb"),)
    enter, leave = rail_ends(path, src, dst)
    steps = (Hop(src, enter, "hb"), Hop(enter, leave, "rail"), Hop(leave, dst, "hb"))
    return tuple(step for step in steps if step.a != step.b)


def hb_ports(path: Path, src: Gpu, dst: Gpu) -> tuple[Gpu, ...]:
    """Return the GPUs whose HB ports a path crosses."""
    if path.kind == "d":
        return (src, dst)
    near, far = rail_ends(path, src, dst)
    ports: tuple[Gpu, ...] = ()
    if near != src:
        ports += (src, near)
    if far != dst:
        ports += (far, dst)
    return ports


def path_name(path: Path, nics: RailOfRank = ()) -> str:
    """Return `dr by rail 2`; where there is no choice of a rail, the kind alone.

    `nics`: the rail of each rank, where GPUs share NICs.
    """
    if path.kind in ("d", "spine"):
        return path.kind
    rail = nics[path.rail] if nics else path.rail
    return f"{path.kind} by rail {rail}"


def path_names(shares: Shares, nics: RailOfRank = ()) -> str:
    """Return `dr by rail 2 + rd by rail 1`; `none` where there is no path."""
    return " + ".join(path_name(share.path, nics) for share in shares) or "none"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The part of a fabric's specification that a rule may use: its kind, and its size.

    `nics`: the rail of each rank, where GPUs share NICs.
    """

    kind: str
    domains: int
    rails: int
    nics: RailOfRank = ()

    def rail_of(self, rank: int) -> int:
        """Return the rail that the GPUs of a rank are on."""
        return self.nics[rank] if self.nics else rank


fabric_of: Final = cache(Fabric)
"""Return the one Fabric object of a kind and a size: there are few, and millions of requests for them."""


class ForwardingPolicy:
    """Base of all forwarding policies. Rules must be deterministic and depend on their arguments alone."""

    by_rank: ClassVar[bool] = False
    """Whether a path depends on the two ranks alone. The rule is then asked once for two ranks, not for each pair."""
    forwards_in_domains: ClassVar[bool] = True
    """Whether GPUs forward for others over HB domains: on paths, backup routes and detours.

    If not, the rule may return () for a pair, which then has no path.
    """

    def fits(self, joins_rails: bool) -> bool:
        """Return whether a fabric kind can use this policy. `joins_rails`: its NIC network joins the rails."""
        return True

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path | Shares:
        """Return the path between two GPUs that differ in domain and rail, or several paths with weights.

        () if they have no path. Pairs of one domain always use their HB domain, and pairs of one rail that rail.
        """
        raise NotImplementedError

    def uplink(self, rank: int, dst: Gpu, fabric: Fabric) -> int | None:
        """Return by which uplink the rail switch of `rank` sends to a GPU on another rail; None: a hash decides.

        Any number of 0 or more: uplinks that are alive count in a circle.
        """
        return None

    @property
    def assigns_uplinks(self) -> bool:
        """Assignment of destinations to uplinks, in place of a hash."""
        return type(self).uplink is not ForwardingPolicy.uplink

    def stated(
        self, pair_bytes: Mapping[tuple[Gpu, Gpu], float], hb_rate: float, rail_rate: float, fabric: Fabric
    ) -> Stated | None:
        """Return what one run of a phase takes, or why that can't be predicted; None: the bound of the busiest link.

        `pair_bytes`: bytes by (source, destination). Rates of links in bytes of payload a second.
        """
        return None


def shares_of(choice: Path | Shares) -> Shares:
    """Return what a rule gave as shares."""
    return (Share(choice),) if isinstance(choice, Path) else choice


_TRIED: Final = (Fabric("rail-only", 2, 2), Fabric("rail-only", 3, 3))


def _problems(name: str, policy: ForwardingPolicy) -> Iterator[str]:
    """Try the rule for every pair of two small fabrics."""
    if type(policy).path is ForwardingPolicy.path:
        return
    for shape in _TRIED:
        by_ranks: dict[tuple[int, int], Path | Shares] = {}
        gpus = [Gpu(*place) for place in product(range(shape.domains), range(shape.rails))]
        for src, dst in permutations(gpus, 2):
            if src.domain != dst.domain and src.rank != dst.rank:
                problem = rule_problem(policy, src, dst, shape)
                if not problem and policy.by_rank:
                    choice = policy.path(src, dst, shape)
                    if by_ranks.setdefault((src.rank, dst.rank), choice) != choice:
                        problem = f"by_rank is set, but path({src.name}, {dst.name}) differs from that of other domains"
                if problem:
                    yield problem
                    return


def rule_problem(policy: ForwardingPolicy, src: Gpu, dst: Gpu, fabric: Fabric) -> str:
    """Return what is wrong with what a rule gives for a pair; "" if nothing is."""
    where = f"path({src.name}, {dst.name})"
    try:
        shares = shares_of(policy.path(src, dst, fabric))
        paths: list[object] = [path for path, weight in shares if weight >= 1]
        number = policy.uplink(src.rank, dst, fabric)
    except Exception as error:
        return f"{where} raises {type(error).__name__}: {error}"
    if number is not None and not (isinstance(number, int) and number >= 0):
        return f"uplink({src.rank}, {dst.name}) gives {number!r}: a number of 0 or more is needed, or None"
    if not shares and policy.forwards_in_domains:
        return f"{where} gives no path: only a policy with forwards_in_domains = False may leave pairs without one"
    if len(paths) != len(shares):
        return f"{where} gives {shares!r}: one path or more are needed, with weights of 1 or more"
    for path in paths:
        problem = _path_problem(path, policy, src, dst, fabric)
        if problem:
            return f"{where} gives {problem}"
    return ""


def _path_problem(path: object, policy: ForwardingPolicy, src: Gpu, dst: Gpu, fabric: Fabric) -> str:
    """Return why a policy can't have a path between two GPUs that differ in domain and rank; "" if it can."""
    if not isinstance(path, Path):
        return f"{path!r}, which is no Path"
    allowed = {"spine": [src.rank]}
    if policy.forwards_in_domains:
        further_rails = [rail for rail in range(fabric.rails) if rail not in (src.rank, dst.rank)]
        allowed = {"dr": [dst.rank], "rd": [src.rank], "spine": [src.rank], "drd": further_rails}
    if path.kind not in allowed:
        kinds = f"allowed are {', '.join(allowed)}"
        return f"a path of kind {path.kind!r} between two domains and ranks: {kinds}"
    if path.rail not in allowed[path.kind]:
        rails = " or ".join(map(str, allowed[path.kind]))
        return f"rail {path.rail}, but {path.kind} from {src.name} to {dst.name} crosses rail {rails}"
    return ""


FORWARDING_POLICIES: Final = Registry[ForwardingPolicy](
    "forwarding policy", "railyard.topologies.policies", ForwardingPolicy, ["path(src, dst, fabric)"], _problems
)


def policy_shares(policy: str, src: Gpu, dst: Gpu, fabric: Fabric) -> Shares:
    """Return the paths between two different GPUs by a policy's rule, with their weights; () if there is none."""
    if src.domain == dst.domain:
        return (Share(path_of("d", src.rank)),)
    if fabric.rail_of(src.rank) == fabric.rail_of(dst.rank):
        return (Share(path_of("r", src.rank)),)
    return shares_of(FORWARDING_POLICIES[policy].path(src, dst, fabric))
