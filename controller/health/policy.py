"""Health scores of each rail, HB domain and the spine layer, and the health-routing policies that decide by them.

A policy is a pure function from two GPUs and the health scores to weighted paths between them; one file of policies/
each. A policy of one's own, in a plugin file: docs/examples/widest_policy.py.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from railyard.core.registry import Registry
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, Share, Shares, path_of

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


def idle(domains: int, rails: int) -> Scores:
    """Return the scores before the first report: all idle."""
    return Scores((BEST,) * rails, (BEST,) * domains)


DELTA: Final = 10


@dataclass(frozen=True, slots=True)
class Context:
    """Input of a policy besides the scores.

    `spine`: whether the NIC network joins rails. `delta`: points of h-score for `health-spray`, percent of the best
    score for `health-best...`. `assigned`: the oracle's answer (`oracle.by_pair`). ValueError for a delta outside 0 to
    100.
    """

    spine: bool = False
    seed: int = 0
    delta: int = DELTA
    assigned: Mapping[tuple[Gpu, Gpu], Shares] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= BEST:
            raise ValueError(f"delta is 0 to {BEST}, not {self.delta}")


Choose = Callable[[Gpu, Gpu, Scores, Context], Shares]
"""choose(src, dst, scores, context): the paths with weights; () where there is none. It must be deterministic."""


@dataclass(frozen=True)
class HealthPolicy:
    """A health-routing policy: its decision, whose docstring's first line describes it, and what that needs."""

    choose: Choose
    order: int = 100
    """Position in the default list of an experiment's policies, lowest first."""
    uses_scores: bool = True
    """Whether paths depend on scores: reports plot the scores of its intervals."""
    is_rate_aware: bool = False
    """Whether a pair that gets its fair share keeps its path, whatever the scores are (not in the papers): its own
    traffic lowers the scores of its path, which it would leave because of itself. See steering.is_satisfied.
    """
    is_damped: bool = True
    """Whether margin, noise and dwell time limit how often a pair changes its path (agent/steering.py)."""
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
    """Return the names of all policies in their default order."""
    return tuple(sorted(HEALTH_POLICIES, key=lambda name: HEALTH_POLICIES[name].order))


def direct_path(src: Gpu, dst: Gpu) -> Path | None:
    """Return the path of one hop between GPUs of one domain or one rail (part 1, cases 1 and 2); None for others."""
    if src.domain == dst.domain:
        return path_of("d", src.rank)
    return path_of("r", src.rank) if src.rank == dst.rank else None


def single(path: Path | None) -> Shares:
    """Return all traffic on one path; () for None."""
    return () if path is None else (Share(path),)
