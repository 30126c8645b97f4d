"""The decision by another road: look at every path there is, with the papers' ratios as fractions."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations
from math import inf, prod

from hypothesis import strategies as st

from railyard.controller.health.oracle import all_paths
from railyard.controller.health.policy import BEST, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path

# ties and zeros are what goes wrong: most scores are out of a few
SCORE = st.sampled_from([0, 1, 10, 49, 50, 51, 99, 100]) | st.integers(0, 100)


def scores(max_domains: int = 4, max_rails: int = 6, least: int = 0) -> st.SearchStrategy[Scores]:
    """`least`: of domains, whose 0 makes ratios infinite."""
    return st.builds(
        Scores,
        rails=st.lists(SCORE, min_size=2, max_size=max_rails).map(tuple),
        domains=st.lists(SCORE.filter(lambda h: h >= least), min_size=2, max_size=max_domains).map(tuple),
        spine=SCORE,
    )


def pairs(known: Scores) -> Iterator[tuple[Gpu, Gpu]]:
    """All ordered pairs of two GPUs."""
    return permutations([Gpu(d, g) for d in range(len(known.domains)) for g in range(len(known.rails))], 2)


def parts(path: Path, src: Gpu, dst: Gpu, known: Scores) -> list[int]:
    """The h-scores of what a path crosses, component by component."""
    rail, near, far = known.rails[path.rail], known.domains[src.domain], known.domains[dst.domain]
    spine = [known.rails[src.rank], known.spine, known.rails[dst.rank]]
    crossed = {
        "d": [near],
        "r": [rail],
        "dr": [near, rail],
        "rd": [rail, far],
        "drd": [near, rail, far],
        "spine": spine,
    }
    return crossed[path.kind]


def worth(path: Path, src: Gpu, dst: Gpu, known: Scores) -> int:
    """Product of the parts, in millionths."""
    return prod((*parts(path, src, dst, known), 100, 100)[:3])


def open_paths(src: Gpu, dst: Gpu, known: Scores, kind: str = "rail-only") -> list[Path]:
    """All paths that cross no blocked domain; fewest hops first, then by rail."""

    def crosses(path: Path) -> list[int]:
        ends = {"d": [src], "dr": [src], "rd": [dst], "drd": [src, dst]}.get(path.kind, [])
        return [known.domains[gpu.domain] for gpu in ends]

    return [path for path in all_paths(src, dst, len(known.rails), kind) if all(crosses(path))]


def ratio(gpu: Gpu, known: Scores) -> Fraction | float:
    """g(G) = H(rail) / H(domain)."""
    domain = known.domains[gpu.domain]
    return Fraction(known.rails[gpu.rank], domain) if domain else inf


def spine_condition(src: Gpu, scores: Scores) -> bool:
    """Return whether rail-optimized is worse: H(d1) H(g2) > H(g1) H(S) H(g2) if and only if g(G1) < 1 / H(S). Part 2.

    Both sides are 0 where H(g2) is, a case that dividing by it loses.
    """
    return scores.rails[src.rank] * scores.spine < scores.domains[src.domain] * BEST
