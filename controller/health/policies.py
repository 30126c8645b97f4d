"""Policies by name: pure functions from two GPUs and the scores to the paths between them, with weights.

Yours is one function more, and its name in `POLICIES`. It gets what all get (see `Policy`), must be deterministic, and
returns () where there is no path.

| name                | scores | paths                                                                              |
|---------------------|--------|------------------------------------------------------------------------------------|
| `dr`, `rd`          | no     | always that one                                                                    |
| `ecmp`              | no     | all with the fewest hops, flows hashed over them                                   |
| `random`            | no     | by a rail drawn for each pair                                                      |
| `health`            | yes    | dr or rd, by h-ratio (part 1)                                                      |
| `health-drd`        | yes    | the same, or drd by best fit (part 2)                                              |
| `health-spray`      | yes    | the same, or all rails within delta of m (part 2)                                  |
| `health-best`       | yes    | the best, pairs spread over rails that are as good (not in the papers)             |
| `health-best-spray` | yes    | the best, each pair over all rails that are as good (not in the papers)            |
| `oracle`            | no     | what oracle.py assigned to this pair, from the load that it knows                  |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from railyard.controller.failover.paths import Path
from railyard.controller.health.decision import choose_path, near_path, over_rail, path_of, spray_paths
from railyard.controller.health.improved import best_path, best_paths
from railyard.controller.health.scores import BEST, Scores
from railyard.core.errors import BadInput, unknown_name_hint
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import Kind

DELTA: Final = 10


class Share(NamedTuple):
    """A path and its part of a pair's traffic: `weight` out of the sum of all its weights."""

    path: Path
    weight: int = 1


Shares = tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """What a policy may know besides the scores.

    `delta`: points of h-score for `health-spray`, percent of the best score for `health-best...`. `assigned`: the
    oracle's answer (`oracle.by_pair`). ValueError for a delta outside 0 to 100.
    """

    kind: Kind = "rail-only"
    seed: int = 0
    delta: int = DELTA
    assigned: Mapping[tuple[Gpu, Gpu], Shares] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= BEST:
            raise ValueError(f"delta is 0 to {BEST}, not {self.delta}")

    @property
    def spine(self) -> bool:
        """Does the NIC network join rails?"""
        return self.kind != "rail-only"


Policy = Callable[[Gpu, Gpu, Scores, Context], Shares]


def dr(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Own HB domain first (Rail-only IV-B)."""
    return _one(_direct(src, dst) or path_of("dr", dst.rank))


def rd(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Own rail first."""
    return _one(_direct(src, dst) or path_of("rd", src.rank))


def ecmp(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Equal cost: dr and rd have two hops each. Where a spine joins rails it is the spine, whose switches hash."""
    direct = _direct(src, dst)
    if direct or context.spine:
        return _one(direct or path_of("spine", src.rank))
    return Share(path_of("dr", dst.rank)), Share(path_of("rd", src.rank))


def random(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """A rail drawn for each pair, the ends' own among them, from the seed and the pair alone."""
    if src.domain == dst.domain:
        return _one(_direct(src, dst))
    number = int.from_bytes(blake2b(repr((context.seed, *src, *dst)).encode(), digest_size=8).digest(), "big")
    return _one(over_rail(number % len(scores.rails), src, dst))


def health(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Part 1: dr or rd by h-ratio."""
    return _one(near_path(src, dst, scores))


def health_drd(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Part 2: drd by the best fit where a rail is routable."""
    return _one(choose_path(src, dst, scores))


def health_spray(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Part 2: evenly over the rails of the window."""
    return tuple(map(Share, spray_paths(src, dst, scores, context.delta)))


def health_best(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """The path of the highest score."""
    return _one(best_path(src, dst, scores, context.delta, context.spine))


def health_best_spray(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Evenly over the rails of the highest score."""
    return tuple(map(Share, best_paths(src, dst, scores, context.delta, context.spine)))


def oracle(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """What was assigned; dr for a pair that had no flow then, and so nothing to gain."""
    return context.assigned.get((src, dst)) or dr(src, dst, scores, context)


POLICIES: Final[dict[str, Policy]] = {
    "dr": dr,
    "rd": rd,
    "ecmp": ecmp,
    "random": random,
    "health": health,
    "health-drd": health_drd,
    "health-spray": health_spray,
    "health-best": health_best,
    "health-best-spray": health_best_spray,
    "oracle": oracle,
}


RATE_AWARE_POLICIES: Final = {"health-best", "health-best-spray"}
"""Policies under which a pair that has its share stays where it is, whatever scores say (not in the papers).

A pair's own traffic lowers the scores of its path: by scores alone it runs from itself, and most where all is well and
links are full. So a source looks at what its connections deliver before it changes a path: steering.is_satisfied."""


def policy_named(name: str, field_name: str = "policy") -> Policy:
    """BadInput names the field and what is allowed."""
    if name not in POLICIES:
        raise BadInput(field_name, name, unknown_name_hint(name, POLICIES))
    return POLICIES[name]


def _direct(src: Gpu, dst: Gpu) -> Path | None:
    """Cases 1 and 2: what needs one hop."""
    if src.domain == dst.domain:
        return path_of("d", src.rank)
    return path_of("r", src.rank) if src.rank == dst.rank else None


def _one(path: Path | None) -> Shares:
    return () if path is None else (Share(path),)
