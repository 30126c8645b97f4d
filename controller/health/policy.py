"""Health scores of each rail, HB domain and the spine layer, and the health-routing policies that decide by them.

A policy is a pure function from two GPUs and the health scores to weighted paths; one file of policies/ each. Sources:
health routing part 1 (path score, h-ratio, cases 1 to 3), part 2 (Remote Rail Theorem, Corollary, best fit, spraying);
docs/health-routing.md has the reasons for the rest. H-scores are whole percents, and a path's score is the product of
its parts in millionths (a part that it lacks counts 100), so comparisons are exact. A path through a blocked domain is
no path; a blocked rail scores 0. Ties: dr before rd, near paths before drd, and the lowest of several rails.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final

from railyard.core.registry import Registry
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, Share, Shares, path_of, rail_ends

BEST: Final = 100
BLOCKED: Final = 0


@dataclass(frozen=True)
class Scores:
    """Integers from 0 (blocked) to 100 (idle). `rails[g]` is H(rail g) x 100, `domains[d]` H(domain d) x 100.

    `spine`: of the spine layer as a whole; 100 where there is none. `version` grows by one with every change.
    ValueError for a score outside 0 to 100.
    """

    rails: tuple[int, ...]
    domains: tuple[int, ...]
    spine: int = BEST
    version: int = 0

    def __post_init__(self) -> None:
        for score in (*self.rails, *self.domains, self.spine):
            if not BLOCKED <= score <= BEST:
                raise ValueError(f"an h-score is {BLOCKED} to {BEST}, not {score}")

    @cached_property
    def sorted_rails(self) -> tuple[tuple[int, int], ...]:
        """(score, rail), lowest score first: the list that best fit searches (part 2)."""
        return tuple(sorted((score, rail) for rail, score in enumerate(self.rails)))


@cache
def idle(domains: int, rails: int) -> Scores:
    """Return the scores before the first report: all idle."""
    return Scores((BEST,) * rails, (BEST,) * domains)


DELTA: Final = 10


@dataclass(frozen=True, slots=True)
class Context:
    """Input of a policy besides the scores.

    `spine`: whether the NIC network joins rails.
    `delta`: points of h-score for `health-spray`, percent of the best score for `health-best...`.
    `assigned`: the oracle's answer (`oracle.by_pair`).
    `leaves`: the switch of each GPU, where switches are no rails; empty: GPUs of a rank are on a switch of their own.
    """

    spine: bool = False
    seed: int = 0
    delta: int = DELTA
    assigned: Mapping[tuple[Gpu, Gpu], Shares] = field(default_factory=dict)
    leaves: Mapping[Gpu, str] = field(default_factory=dict)

    def crosses_spine(self, a: Gpu, b: Gpu) -> bool:
        """Return whether the NIC network's path between two GPUs crosses its second tier."""
        if not self.leaves:
            return a.rank != b.rank
        return self.leaves[a] != self.leaves[b]


Choose = Callable[[Gpu, Gpu, Scores, Context], Shares]
"""choose(src, dst, scores, context): the paths with weights; () where there is none. It must be deterministic."""


@dataclass(frozen=True)
class HealthPolicy:
    """A health-routing policy: its decision, whose docstring's first line describes it, and what that needs."""

    choose: Choose
    order: int = 100  # position in the default list of an experiment's policies, lowest first
    uses_scores: bool = True  # whether paths depend on scores: reports plot the scores of its intervals
    is_rate_aware: bool = False
    """Whether a pair that gets its fair share keeps its path, whatever the scores are (not in the papers): its own
    traffic lowers the scores of its path, which it would leave because of itself. See steering.is_satisfied.
    """
    is_damped: bool = True
    """Whether margin, noise and dwell time limit how often a pair changes its path (agent/steering.py)."""
    is_default: bool = True
    """Whether it is among the policies of an experiment that names none."""
    knows_load: bool = False
    """Whether `context.assigned` has the best paths for the load of the whole interval (oracle.py)."""


def _problems(_name: str, policy: HealthPolicy) -> Iterator[str]:
    """Ask the policy for the paths of an idle 2x2 fabric."""
    if not policy.choose.__doc__:
        yield "has no docstring, whose first line describes it"
    try:
        shares = policy.choose(Gpu(0, 0), Gpu(1, 1), idle(2, 2), Context())
    except Exception as error:
        yield f"fails on an idle 2x2 fabric: {type(error).__name__}: {error}"
        return
    if not (isinstance(shares, tuple) and all(isinstance(s, Share) and isinstance(s.path, Path) for s in shares)):
        yield f"must return a tuple of Share(Path), not {shares!r}"


HEALTH_POLICIES: Final = Registry[HealthPolicy](
    "health-routing policy", "railyard.controller.health.policies", HealthPolicy, check=_problems
)


def health_policy(name: str, **options: Any) -> Callable[[Choose], Choose]:
    """Register the function below as the policy of this name. `options`: fields of HealthPolicy."""

    def decorate(choose: Choose) -> Choose:
        HEALTH_POLICIES.add(name, HealthPolicy(choose, **options), stacklevel=2)
        return choose

    return decorate


def default_policies() -> tuple[str, ...]:
    """Return the names of the policies of an experiment that names none, in their order."""
    names = [name for name, policy in HEALTH_POLICIES.items() if policy.is_default]
    return tuple(sorted(names, key=lambda name: HEALTH_POLICIES[name].order))


def direct_path(src: Gpu, dst: Gpu) -> Path | None:
    """Return the path of one hop between GPUs of one domain or one rail (part 1, cases 1 and 2); None for others."""
    if src.domain == dst.domain:
        return path_of("d", src.rank)
    return path_of("r", src.rank) if src.rank == dst.rank else None


def single(path: Path | None) -> Shares:
    """Return all traffic on one path; () for None."""
    return () if path is None else (Share(path),)


def path_score(path: Path, src: Gpu, dst: Gpu, scores: Scores) -> int:
    """Return the product of the h-scores that a path crosses, in millionths (0 blocked, 1,000,000 idle). Part 1."""
    rail = scores.rails[path.rail]
    near = scores.domains[src.domain]
    far = scores.domains[dst.domain]
    match path.kind:
        case "d":
            return near * BEST * BEST
        case "r":
            return rail * BEST * BEST
        case "dr":
            return near * rail * BEST
        case "rd":
            return rail * far * BEST
        case "drd":
            return near * rail * far
        case "spine":
            return rail * scores.spine * scores.rails[dst.rank]


def fabric_score(path: Path, src: Gpu, dst: Gpu, scores: Scores, context: Context) -> int:
    """Return the product of the h-scores that a path crosses on the context's fabric, in hundred-millionths.

    On a fabric of two tiers r, dr, rd and drd cross the spine layer too where they go from one leaf to another. On
    other fabrics this is `path_score` in another unit.
    """
    crossed = path_score(path, src, dst, scores)
    if path.kind == "spine":
        crossed = scores.rails[src.rank] * scores.rails[dst.rank] * BEST
    if path.kind != "d" and context.crosses_spine(*rail_ends(path, src, dst)):
        return crossed * scores.spine
    return crossed * BEST


def clos_path(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Path | None:
    """Return the papers' decision on a fabric of two tiers: the near path may be the NIC network's own path as well.

    The Remote Rail Theorem holds with m = max(near scores) / (H(d1) H(d2)), divided by H(S) where drd crosses spines,
    which it does for all rails or for none. Best fit is among the rails above m. O(log K).
    """
    near = near_path(src, dst, scores)
    if near is not None and near.kind == "d":
        return near
    options: list[Path] = []
    if near is not None:
        options.append(near)
    if context.spine and src.domain != dst.domain and src.rank != dst.rank:
        options.append(path_of("spine", src.rank))
    if not options:
        return None
    best = max(options, key=lambda path: fabric_score(path, src, dst, scores, context))
    best_score = fabric_score(best, src, dst, scores, context)
    remote = _remote_score(src, dst, scores, context)
    if not remote:
        return best
    rails = len(scores.rails)
    first = bisect_right(scores.sorted_rails, (best_score // remote, rails))
    if first == rails:
        return best
    return path_of("drd", scores.sorted_rails[first][1])


def _remote_score(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> int:
    """Return the score of drd without that of its rail, the same for all rails. Units as of `fabric_score`."""
    domains = scores.domains[src.domain] * scores.domains[dst.domain]
    if context.crosses_spine(src, Gpu(dst.domain, src.rank)):
        return domains * scores.spine
    return domains * BEST


def near_path(src: Gpu, dst: Gpu, scores: Scores) -> Path | None:
    """Return the path without a third rail: d; r; rd if g(G1) > g(G2), else dr. None: it needs a blocked domain.

    Part 1, cases 1 to 3. ValueError from a GPU to itself.
    """
    if src == dst:
        raise ValueError(f"{src.name} -> {dst.name}: a path needs two GPUs")
    near = scores.domains[src.domain]
    far = scores.domains[dst.domain]
    if direct := direct_path(src, dst):
        return direct if near or direct.kind == "r" else None
    if not near:
        return path_of("rd", src.rank) if far else None
    # H(g1)/H(d1) > H(g2)/H(d2), which with H(d2) = 0 is false: dr, the only one left
    rd = scores.rails[src.rank] * far > scores.rails[dst.rank] * near
    return path_of("rd", src.rank) if rd else path_of("dr", dst.rank)


def first_routable(near: Path, src: Gpu, dst: Gpu, scores: Scores) -> int:
    """Return where the routable rails begin in `sorted_rails`; its length if there is none.

    Part 2, Remote Rail Theorem: x is routable if H(x) > m = max(g(G1), g(G2)), that is, if drd by x scores higher than
    both dr and rd. This form holds for case 2 as well, where m = H(r) / (H(d1) H(d2)). No end's own rail is routable.
    """
    rails = len(scores.rails)
    domains = scores.domains[src.domain] * scores.domains[dst.domain]
    if near.kind == "d" or not domains:
        return rails
    # m rounded down: a whole H(x) above m is above that too
    whole = path_score(near, src, dst, scores) // domains
    # Corollary: m > 1, no drd
    return rails if whole >= BEST else bisect_right(scores.sorted_rails, (whole, rails))


def choose_path(src: Gpu, dst: Gpu, scores: Scores) -> Path | None:
    """Return drd by the routable rail of the lowest score (best fit), or the near path without one. Parts 1 and 2."""
    near = near_path(src, dst, scores)
    if near is None:
        return None
    first = first_routable(near, src, dst, scores)
    return near if first == len(scores.rails) else path_of("drd", scores.sorted_rails[first][1])


def spray_paths(src: Gpu, dst: Gpu, scores: Scores, delta: int) -> tuple[Path, ...]:
    """Part 2, spraying: the paths over all rails with m - delta <= H(x) <= m + delta, in the order of rails.

    `delta` is in points of h-score. The window reaches below m, so it can hold an end's own rail, as r, rd or dr, but
    never a blocked rail. Where it ends below the first routable rail, best fit alone is the answer.
    """
    near = near_path(src, dst, scores)
    if near is None:
        return ()
    first = first_routable(near, src, dst, scores)
    rails = scores.sorted_rails
    if first == len(rails):
        return (near,)
    domains = scores.domains[src.domain] * scores.domains[dst.domain]
    m, remainder = divmod(path_score(near, src, dst, scores), domains)
    end = bisect_right(rails, (m + delta, len(rails)))
    if end <= first:
        return (path_of("drd", rails[first][1]),)
    begin = bisect_left(rails, (max(1, m + bool(remainder) - delta),))
    return tuple(over_rail(rail, src, dst) for rail in sorted(rail for _, rail in rails[begin:end]))


def over_rail(rail: int, src: Gpu, dst: Gpu) -> Path:
    """Return the path between two domains that crosses this rail: drd, or by an end's own rail r, rd or dr."""
    if rail == src.rank:
        return path_of("r" if rail == dst.rank else "rd", rail)
    return path_of("dr" if rail == dst.rank else "drd", rail)


def best_path(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Path | None:
    """The near path, the NIC network's own, or drd: the first that scores within `delta` percent of the best of all.

    Pairs spread over the rails that do. `delta` is the context's. O(log K).
    """
    best = _best(src, dst, scores, context)
    if not isinstance(best, int):
        return best
    rails = scores.sorted_rails
    place = best + spread(src, dst) % (len(rails) - best)
    return path_of("drd", rails[place][1])


def best_paths(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> tuple[Path, ...]:
    """Return the paths over all rails among which `best_path` chooses, in the order of rails."""
    best = _best(src, dst, scores, context)
    if best is None:
        return ()
    if not isinstance(best, int):
        return (best,)
    rails = sorted(rail for _, rail in scores.sorted_rails[best:])
    return tuple(path_of("drd", rail) for rail in rails)


def spread(src: Gpu, dst: Gpu) -> int:
    """Return a number that differs, modulo any n, between pairs that meet at a port, so that n rails share them."""
    # Coefficients 1 and -2 distinguish the sources of one destination, and pairs whose ends shift together. The
    # destinations of one source use every rail if n is odd, every second one if it is even. No choice of coefficients
    # serves all three for even n.
    return src.rank - 2 * dst.rank + src.domain + dst.domain


def _best(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Path | int | None:
    """A path, or where in `sorted_rails` those begin that are to be taken by drd."""
    near = near_path(src, dst, scores)
    by_spine: Path | None = None
    if context.spine and src.domain != dst.domain and src.rank != dst.rank:
        by_spine = path_of("spine", src.rank)
    if near is None or near.kind == "d":
        return near or by_spine
    near_score = fabric_score(near, src, dst, scores, context)
    spine_score = fabric_score(by_spine, src, dst, scores, context) if by_spine else 0
    remote = _remote_score(src, dst, scores, context)
    best_remote_score = remote * scores.sorted_rails[-1][0]
    threshold = max(near_score, spine_score, best_remote_score) * (BEST - context.delta)
    if near_score * BEST >= threshold:
        return near
    if spine_score * BEST >= threshold:
        return by_spine
    # rounded up: the lowest H(x) that is as good
    min_score = -(-threshold // (remote * BEST))
    return bisect_left(scores.sorted_rails, (min_score,))
