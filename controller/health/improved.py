"""What does better than the papers' rule, which decision.py keeps as it is. docs/health-routing.md has the reasons.

The papers' best fit takes the rail that is *least* better than the near path, and all sources take the same one; and a
difference of one point is enough for it to leave a near path for one with an HB hop more. Here a difference of `delta`
percent or less is none, the best is what counts, and sources spread over what is as good.
"""

from bisect import bisect_left

from railyard.controller.health.decision import near_path, path_score
from railyard.controller.health.scores import BEST, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, path_of


def best_path(src: Gpu, dst: Gpu, scores: Scores, delta: int, spine: bool) -> Path | None:
    """The near path, the spine's, or drd: the first that scores within `delta` percent of the best of all paths.

    Pairs spread over the rails that do. `spine`: the fabric has a NIC network that joins rails. O(log K).
    """
    found = _best(src, dst, scores, delta, spine)
    if not isinstance(found, int):
        return found
    rails = scores.sorted_rails
    return path_of("drd", rails[found + spread(src, dst) % (len(rails) - found)][1])


def best_paths(src: Gpu, dst: Gpu, scores: Scores, delta: int, spine: bool) -> tuple[Path, ...]:
    """The same, but over all of those rails at once, in the order of rails."""
    found = _best(src, dst, scores, delta, spine)
    if isinstance(found, int):
        return tuple(path_of("drd", rail) for rail in sorted(rail for _, rail in scores.sorted_rails[found:]))
    return () if found is None else (found,)


def spread(src: Gpu, dst: Gpu) -> int:
    """A number that differs, modulo any n, between pairs that meet at a port, so that n rails get the same of them.

    What meets in a domain differs in one end, or both ends shift together (all ranks to the next one): coefficients 1
    and -2 tell apart both sources of one destination and pairs that shift, a hash would not; several destinations of
    one source fall on every rail if n is odd, on every second one if it is even. No choice serves all three for even n.
    """
    return src.rank - 2 * dst.rank + src.domain + dst.domain


def _best(src: Gpu, dst: Gpu, scores: Scores, delta: int, spine: bool) -> Path | int | None:
    """A path, or where in `sorted_rails` those begin that are to be taken by drd."""
    near = near_path(src, dst, scores)
    by_spine = path_of("spine", src.rank) if spine and src.domain != dst.domain and src.rank != dst.rank else None
    if near is None or near.kind == "d":
        return near or by_spine
    near_score = path_score(near, src, dst, scores)
    spine_score = path_score(by_spine, src, dst, scores) if by_spine else 0
    domains = scores.domains[src.domain] * scores.domains[dst.domain]
    threshold = max(near_score, spine_score, domains * scores.sorted_rails[-1][0]) * (BEST - delta)
    if near_score * BEST >= threshold:
        return near
    if spine_score * BEST >= threshold:
        return by_spine
    min_score = -(-threshold // (domains * BEST))  # rounded up: the lowest H(x) that is as good
    return bisect_left(scores.sorted_rails, (min_score,))
