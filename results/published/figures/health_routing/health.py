"""Health routing's theorems and its condition for rail-only, over seeded scores (health routing, parts 1 and 2)."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import log2
from statistics import fmean
from typing import Final

import matplotlib.figure

from railyard.controller.health.policy import (
    BEST,
    DELTA,
    Context,
    Scores,
    choose_path,
    clos_path,
    fabric_score,
    first_routable,
    near_path,
    over_rail,
    path_score,
    spray_paths,
)
from railyard.results.plots import style
from railyard.results.published.catalogue import Claim, Figure
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import path_of

SEED: Final = 1
SAMPLES: Final = 2_000
SIZES: Final = (2, 4, 8, 16, 32, 64, 128, 256)
"""Rails, K."""
SPINE_SCORES: Final = (100, 90, 75, 50, 25)
SPINE: Final = 75
SOURCE: Final = Gpu(0, 0)
DESTINATION: Final = Gpu(1, 1)
Row = tuple[int, int, float, int, int, int]


def figure() -> Figure:
    """Scores of rails and domains are whole numbers, uniform from 1 to 100, independent of one another."""
    rows: list[Row] = []
    for rails in SIZES:
        rows += _rows(rails)
    return Figure(
        title="Health routing over seeded scores",
        source="Health routing, parts 1 and 2",
        columns=(
            "rails",
            "spine_score",
            "rail_only_healthier_pct",
            "remote_rails_used",
            "comparisons_at_most",
            "by_scan",
        ),
        rows=rows,
        draw=_draw,
        claims=tuple(_claims(rows)),
        notes=(
            "rail_only_healthier_pct: of all scores of a rail and a domain, those with g(G1) < 1/H(S). With the spines "
            "idle (100) that is H(g1) < H(d1).",
            f"remote_rails_used: of {SAMPLES:,} sets of scores (seed {SEED}), those in which best fit takes a third "
            "rail. comparisons_at_most: of scores, until the binary search has it. by_scan: by a search rail by rail.",
        ),
    )


def samples(rails: int) -> list[Scores]:
    """Return the seeded sets of scores of two domains and `rails` rails."""
    # of its own for each number of rails, so that the rows of one don't depend on the others
    chosen = random.Random(f"{SEED} {rails}")
    sets: list[Scores] = []
    for _ in range(SAMPLES):
        scores = chosen.choices(range(1, BEST + 1), k=rails + 2)
        sets.append(Scores(rails=tuple(scores[2:]), domains=tuple(scores[:2])))
    return sets


def is_rail_only_healthier(rail: int, domain: int, spine: int) -> bool:
    """Return whether g(G1) = H(g1)/H(d1) < 1/H(S), by which part 2 names the healthier topology."""
    return rail * spine < domain * BEST


def healthier_pct(spine: int) -> float:
    """Return the percentage of all scores of a rail and a domain with which rail-only has the healthier path."""
    scores = range(1, BEST + 1)
    healthier = sum(is_rail_only_healthier(rail, domain, spine) for rail, domain in product(scores, scores))
    return 100 * healthier / BEST**2


class _Counted:
    """A score that counts its comparisons."""

    def __init__(self, score: tuple[int, int], counts: list[int]) -> None:
        self._score = score
        self._counts = counts

    def __gt__(self, other: tuple[int, int]) -> bool:
        self._counts[0] += 1
        return self._score > other


def comparisons(scores: Scores) -> int:
    """Return how many scores of rails a search of the sorted list compares until it has the first routable one."""
    counts = [0]
    counted: Sequence[_Counted] = [_Counted(score, counts) for score in scores.sorted_rails]
    bisect_right(counted, (scores.rails[SOURCE.rank], len(scores.rails)))
    return counts[0]


def _rows(rails: int) -> Iterator[Row]:
    """Yield the rows of a number of rails, one for each score of the spines."""
    sets = samples(rails)
    remote = 0
    # of the policy itself, so that the figure is one of what runs
    most_comparisons = 0
    for scores in sets:
        path = choose_path(SOURCE, DESTINATION, scores)
        remote += path is not None and path.kind == "drd"
        most_comparisons = max(most_comparisons, comparisons(scores))
    for spine in SPINE_SCORES:
        # a scan has to look at all rails, since any may be the best fit
        yield rails, spine, healthier_pct(spine), remote, most_comparisons, rails


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    sets = samples(8)
    of_sets = f"of {SAMPLES:,} sets"
    yield Claim("sets in which the h-ratios choose the less healthy of rd and dr", 0, _wrong_by_ratio(sets), of_sets)
    yield Claim("sets in which a routable rail is no healthier than rd and dr", 0, _wrong_theorem(sets), of_sets)
    yield Claim("sets with an h-ratio above 1 in which a rail is routable", 0, _wrong_corollary(sets), of_sets)
    yield Claim("sets in which the binary search finds another rail than best fit", 0, _wrong_best_fit(sets), of_sets)
    by_size = {rails: comparisons_at_most for rails, *_, comparisons_at_most, _ in rows}
    largest = SIZES[-1]
    most = by_size[largest]
    yield Claim(f"comparisons to find the rail among {largest}, O(log K)", 9, most, "comparisons", bound="at most")
    above = sum(comparisons_at_most > log2(rails) + 1 for rails, comparisons_at_most in by_size.items())
    quantity = "numbers of rails K at which the search compares more than log2(K) + 1 scores"
    yield Claim(quantity, 0, above, f"of {len(SIZES)} numbers")
    least_ratio = largest / (log2(largest) + 1)
    yield Claim(
        f"comparisons of a scan of {largest} rails over those of the search", least_ratio, largest / most, "times",
        within=0.05, bound="at least", stated="K over log2(K) + 1",
    )  # fmt: skip
    yield from _condition_claims()
    note = "where the domains of both ends are loaded and a third one isn't: rdr crosses neither of the two"
    quantity = "sets in which rdr by a third domain is healthier than every other path"
    yield Claim(quantity, 0, healthier_by_rdr(sets), of_sets, note=note)
    note = "the window reaches below m, where by the Remote Rail Theorem's proof a rail's path is the less healthy one"
    quantity = f"sets in which rails within {DELTA} points of m have a path less healthy than the near one"
    yield Claim(quantity, 0, _less_healthy_sprays(sets), of_sets, note=note)
    quantity = "sets in which GPUs of one rail take neither r nor the best fit above it"
    yield Claim(quantity, 0, _wrong_on_one_rail(sets), of_sets)
    above, below = _wrong_on_clos(sets)
    yield Claim(
        "sets on a two-tier Clos in which a routable rail is no healthier than the near paths", 0, above, of_sets
    )
    yield Claim("sets on a two-tier Clos in which another path is healthier than best fit allows", 0, below, of_sets)
    wrong = sum(_is_condition_wrong(scores) for scores in sets)
    yield Claim("sets in which the condition names the topology of the lower score", 0, wrong, of_sets)


def _condition_claims() -> Iterator[Claim]:
    """Yield how often the condition for rail-only holds, over all scores of the spines and with single ones."""
    percentages: dict[str, float] = {}
    every_score = range(1, BEST + 1)
    quantity = "scores of a rail, a domain and the spines with which rail-only is healthier"
    percentages[quantity] = fmean(map(healthier_pct, every_score))
    for spine in SPINE_SCORES:
        quantity = f"scores of a rail and a domain with which rail-only is healthier, H(S) = {spine / BEST:g}"
        percentages[quantity] = healthier_pct(spine)
    note = "for scores that are independent and uniform; the paper says most cases, which we take as more than half"
    for quantity, percentage in percentages.items():
        yield Claim(quantity, 50, percentage, "%", bound="at least", note=note, stated="most cases means")


def _wrong_by_ratio(sets: Sequence[Scores]) -> int:
    wrong = 0
    for scores in sets:
        chosen = near_path(SOURCE, DESTINATION, scores)
        best = max(_score("rd", SOURCE.rank, scores), _score("dr", DESTINATION.rank, scores))
        wrong += chosen is None or path_score(chosen, SOURCE, DESTINATION, scores) < best
    return wrong


def _score(kind: str, rail: int, scores: Scores) -> int:
    path = path_of("rd" if kind == "rd" else "dr", rail)
    return path_score(path, SOURCE, DESTINATION, scores)


def _ratios(scores: Scores) -> tuple[float, float]:
    """Return g(G1) and g(G2)."""
    source = scores.rails[SOURCE.rank] / scores.domains[SOURCE.domain]
    return source, scores.rails[DESTINATION.rank] / scores.domains[DESTINATION.domain]


def _wrong_theorem(sets: Sequence[Scores]) -> int:
    wrong = 0
    for scores in sets:
        near = max(_score("rd", SOURCE.rank, scores), _score("dr", DESTINATION.rank, scores))
        for rail, score in enumerate(scores.rails):
            # a score is a share of 100, the ratio of two is none
            if score / BEST > max(_ratios(scores)):
                remote = path_score(path_of("drd", rail), SOURCE, DESTINATION, scores)
                wrong += remote <= near
    return wrong


def _wrong_corollary(sets: Sequence[Scores]) -> int:
    wrong = 0
    for scores in sets:
        near = near_path(SOURCE, DESTINATION, scores)
        if max(_ratios(scores)) > 1 and near is not None:
            wrong += first_routable(near, SOURCE, DESTINATION, scores) < len(scores.rails)
    return wrong


def _wrong_best_fit(sets: Sequence[Scores]) -> int:
    # by a linear search, of which nothing is shared with the binary one
    wrong = 0
    for scores in sets:
        chosen = choose_path(SOURCE, DESTINATION, scores)
        routable = [score for score in scores.rails if score / BEST > max(_ratios(scores))]
        if routable:
            wrong += chosen is None or scores.rails[chosen.rail] != min(routable) or chosen.kind != "drd"
        else:
            wrong += chosen is None or chosen.kind == "drd"
    return wrong


def _wrong_on_one_rail(sets: Sequence[Scores]) -> int:
    """Return in how many sets two GPUs of one rail do not take the lowest rail above r, or r where there is none."""
    far = Gpu(DESTINATION.domain, SOURCE.rank)
    wrong = 0
    for scores in sets:
        direct = path_score(path_of("r", SOURCE.rank), SOURCE, far, scores)
        healthier: list[int] = []
        for rail in range(len(scores.rails)):
            score = path_score(path_of("drd", rail), SOURCE, far, scores)
            if rail != SOURCE.rank and score > direct:
                healthier.append(score)
        chosen = choose_path(SOURCE, far, scores)
        chosen_score = 0 if chosen is None else path_score(chosen, SOURCE, far, scores)
        wrong += chosen_score != min(healthier, default=direct)
    return wrong


def healthier_by_rdr(sets: Sequence[Scores]) -> int:
    """Return in how many sets the path by the source's rail, a third domain and the destination's rail scores most."""
    # of its own, so that the sets of the other claims stay as they are
    third_domains = random.Random(f"{SEED} third domain")
    healthier = 0
    for scores in sets:
        third_domain = third_domains.randint(1, BEST)
        rdr = scores.rails[SOURCE.rank] * third_domain * scores.rails[DESTINATION.rank]
        paths = [over_rail(rail, SOURCE, DESTINATION) for rail in range(len(scores.rails))]
        best = max(path_score(path, SOURCE, DESTINATION, scores) for path in paths)
        healthier += rdr > best
    return healthier


def _less_healthy_sprays(sets: Sequence[Scores]) -> int:
    """Return in how many sets the window of rails for spraying has a path that scores less than the near one."""
    less_healthy = 0
    for scores in sets:
        near_score = max(_score("rd", SOURCE.rank, scores), _score("dr", DESTINATION.rank, scores))
        least = near_score
        for path in spray_paths(SOURCE, DESTINATION, scores, DELTA):
            least = min(least, path_score(path, SOURCE, DESTINATION, scores))
        less_healthy += least < near_score
    return less_healthy


def _wrong_on_clos(sets: Sequence[Scores]) -> tuple[int, int]:
    """Return in how many sets drd is chosen but no better than a near path, and a near path though drd is better.

    By the scores of all paths one by one, of which nothing is shared with the decision.
    """
    leaves = {Gpu(domain, rank): f"leaf{domain}" for domain in range(2) for rank in range(len(sets[0].rails))}
    context = Context(spine=True, leaves=leaves)
    near = (path_of("dr", DESTINATION.rank), path_of("rd", SOURCE.rank), path_of("spine", SOURCE.rank))
    above = 0
    below = 0
    for scores in sets:
        with_spines = replace(scores, spine=SPINE)
        chosen = clos_path(SOURCE, DESTINATION, with_spines, context)
        score_of = partial(fabric_score, src=SOURCE, dst=DESTINATION, scores=with_spines, context=context)
        best_near = max(map(score_of, near))
        remote = [score_of(path_of("drd", rail)) for rail in range(len(scores.rails)) if rail > DESTINATION.rank]
        is_remote = chosen is not None and chosen.kind == "drd"
        better = [score for score in remote if score > best_near]
        expected = min(better, default=best_near)
        chosen_score = 0 if chosen is None else score_of(chosen)
        above += is_remote and chosen_score <= best_near
        below += chosen_score != expected
    return above, below


def _is_condition_wrong(scores: Scores) -> bool:
    """Return whether the condition and the scores of dr and of the path over the spines name different topologies."""
    with_spines = replace(scores, spine=SPINE)
    over_spines = path_score(path_of("spine", SOURCE.rank), SOURCE, DESTINATION, with_spines)
    by_score = _score("dr", DESTINATION.rank, scores) > over_spines
    return by_score != is_rail_only_healthier(scores.rails[SOURCE.rank], scores.domains[SOURCE.domain], SPINE)


def _draw(drawn: matplotlib.figure.Figure) -> None:
    axes = drawn.subplots()
    spines = range(1, BEST + 1)
    axes.plot([spine / BEST for spine in spines], [healthier_pct(spine) for spine in spines], color=style.SERIES[0])
    axes.axhline(50, color=style.GREY, linestyle=":", linewidth=1)
    axes.set(ylim=(0, 100))
    style.quiet(axes, "y", title="Rail-only has the healthier path", xlabel="H(S)", ylabel="of all scores, %")
