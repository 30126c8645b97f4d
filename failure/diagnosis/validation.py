"""Validation of a slow job's links and GPUs: a few passes in which pairs send to each other, and GPUs compute.

A ring over the links of a rail or an HB domain is tested in two passes, three if their number is odd: in each, a link
takes part in one pair at most, so that no pair waits for another one. A link is slow if all of its pairs are slow. A
link that met only slow ones is tested once more, with a healthy partner. Source: GREYHOUND (Wu et al., ATC 2025),
validation of rings.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Final, NamedTuple

from railyard.failure.diagnosis.definition import Part, Spans
from railyard.failure.diagnosis.groups import GpuLink
from railyard.topologies.plan import Plan
from railyard.workloads.schedule import Phase, Program, Schedule, payload_rates
from railyard.workloads.tasks import Compute

PASS_S: Final = 0.1
"""Seconds that a healthy pair sends, and that a healthy GPU computes."""
REPEATS: Final = 3
"""Times that each pair sends, and each GPU computes, in a pass: the fastest counts."""
RING: Final = 3
"""Links of a rail or domain that are tested at least: of two, no test can say which one is slow."""


class LinkPair(NamedTuple):
    """Two links of one rail or HB domain whose GPUs send to each other."""

    first: GpuLink
    second: GpuLink


def medium_of(link: GpuLink, rails: int) -> tuple[Part, int]:
    """Return what joins a link with others of its kind: the rail or the HB domain, by number.

    `rails`: GPUs of a domain.
    """
    domain, rank = divmod(link.gpu, rails)
    if link.part == "rail":
        return "rail", rank
    return "hb", domain


def rings(links: Iterable[GpuLink], plan: Plan) -> list[list[GpuLink]]:
    """Return a ring for each rail and each HB domain that has links to test; where these are few, it gets more of them.

    One rail and one domain without such links get a ring too: links that are taken to be healthy, to compare with.
    """
    by_medium = defaultdict[tuple[Part, int], set[GpuLink]](set)
    for link in links:
        by_medium[medium_of(link, plan.spec.rails)].add(link)
    counts: Mapping[Part, int] = {"rail": plan.spec.rails, "hb": plan.spec.domains}
    for part, count in counts.items():
        tested = {number for tested_part, number in by_medium if tested_part == part}
        free = [number for number in range(count) if number not in tested]
        if tested and free:
            # its links get filled in below, as those of a rail with few suspects do
            by_medium[part, free[0]] = set()
    result: list[list[GpuLink]] = []
    for (part, number), members in sorted(by_medium.items()):
        for gpu in _gpus_of(part, number, plan):
            if len(members) < RING:
                members.add(GpuLink(part, gpu))
        result.append(sorted(members))
    return result


def _gpus_of(part: Part, number: int, plan: Plan) -> range:
    """Return the GPUs of a rail, or of an HB domain, by its number."""
    rails = plan.spec.rails
    if part == "rail":
        return range(number, len(plan.gpus), rails)
    return range(number * rails, (number + 1) * rails)


def ring_passes(ring: Sequence[GpuLink]) -> list[list[LinkPair]]:
    """Return the pairs of neighbours on a ring, in passes in which each link is in one pair at most."""
    if len(ring) < 2:
        return []
    pairs = [LinkPair(*pair) for pair in zip(ring, [*ring[1:], ring[0]], strict=True)]
    if len(ring) == 2:
        return [pairs[:1]]
    passes = [pairs[: len(ring) // 2 * 2 : 2], pairs[1::2]]
    if len(ring) % 2:
        passes.append(pairs[-1:])
    return passes


def passes(links: Iterable[GpuLink], plan: Plan) -> list[list[LinkPair]]:
    """Return the passes that test links, of all rails and domains together."""
    merged: list[list[LinkPair]] = []
    for ring in rings(links, plan):
        for number, pairs in enumerate(ring_passes(ring)):
            if number == len(merged):
                merged.append([])
            merged[number] += pairs
    return merged


def pair_schedule(pairs: Sequence[LinkPair], plan: Plan, computing: Sequence[int] = ()) -> Schedule:
    """Return a schedule in which each pair sends both ways for `PASS_S`, several times, and GPUs compute meanwhile.

    `computing`: numbers of the GPUs that compute.
    """
    program = Program(plan.spec.domains, plan.spec.rails)
    rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    rate_of_part = {"rail": rates.rail, "hb": rates.hb}
    sent: dict[tuple[int, int], int] = {}
    for _ in range(REPEATS):
        # a phase of its own, so that a transfer begins when the one before has left its GPU
        phase = program.phase(Phase("validation", "validation", "", plan.spec.rails, plan.spec.domains, 0.0))
        for first, second in pairs:
            size = max(1, round(rate_of_part[first.part] * PASS_S))
            for ends in ((first.gpu, second.gpu), (second.gpu, first.gpu)):
                earlier = [sent[ends]] if ends in sent else []
                sent[ends] = program.send(*ends, size, phase, earlier)
    computations = program.phase(Phase("computing", "validation", "", 1, 1, 0.0))
    for _ in range(REPEATS):
        for gpu in computing:
            # not behind what it sends: a computation needs no link
            program.compute(gpu, PASS_S, computations)
    return program.schedule("validation")


def pair_ratios(pairs: Sequence[LinkPair], spans: Spans) -> dict[LinkPair, float]:
    """Return how many times as long as at the links' rates each pair took in its slower direction.

    The fastest of its transfers counts: a slow link makes all of them slow, and a busy machine some.
    """
    ratios: dict[LinkPair, float] = {}
    seconds = spans[:, 1] - spans[:, 0]
    for number, pair in enumerate(pairs):
        directions: list[float] = []
        for direction in (2 * number, 2 * number + 1):
            # the transfers of a direction are as far apart as a repeat has transfers
            transfers = seconds[direction : 2 * len(pairs) * REPEATS : 2 * len(pairs)]
            directions.append(float(transfers.min()))
        ratios[pair] = max(directions) / PASS_S
    return ratios


def computing_ratios(schedule: Schedule, spans: Spans) -> dict[int, float]:
    """Return how many times as long as the median GPU each GPU computed, by its number, when it was fastest."""
    fastest_s: dict[int, float] = {}
    for number, task in enumerate(schedule.tasks):
        if isinstance(task, Compute):
            start_s, end_s = spans[number].tolist()
            fastest_s[task.gpu] = min(end_s - start_s, fastest_s.get(task.gpu, inf))
    typical_s = median(fastest_s.values())
    return {gpu: gpu_s / typical_s for gpu, gpu_s in fastest_s.items()}


def link_ratios(ratios: Mapping[LinkPair, float]) -> dict[GpuLink, float]:
    """Return the ratio of each link: that of its fastest pair, as its partner may be the slow one.

    Ratios are divided by that of the fastest pair of their part, which is healthy: a busy machine slows all pairs.
    """
    fastest: dict[Part, float] = {}
    for part in ("rail", "hb"):
        of_part = [ratio for pair, ratio in ratios.items() if pair.first.part == part]
        fastest[part] = 1.0
        # of fewer pairs, all may share a slow link
        if len(of_part) >= RING:
            fastest[part] = max(1.0, min(of_part))
    by_link: dict[GpuLink, float] = {}
    for pair, pair_ratio in ratios.items():
        ratio = pair_ratio / fastest[pair.first.part]
        for link in pair:
            by_link[link] = min(ratio, by_link.get(link, ratio))
    return by_link


def second_tests(ratios: Mapping[GpuLink, float], slow: float, rails: int) -> list[list[LinkPair]]:
    """Return passes that test slow links again, if there are several: their partner or the machine may have been slow.

    Each gets a healthy partner; where none is known to be healthy, the one opposite on the ring. `ratios`: of the tests
    so far. `slow`: the ratio from which a link is slow. `rails`: GPUs of a domain.
    """
    by_medium = defaultdict[tuple[Part, int], list[GpuLink]](list)
    for link in sorted(ratios):
        by_medium[medium_of(link, rails)].append(link)
    merged: list[list[LinkPair]] = []
    # a single slow link is what the detector looks for
    if sum(ratio >= slow for ratio in ratios.values()) < 2:
        return merged
    for links in by_medium.values():
        suspects = [link for link in links if ratios[link] >= slow]
        healthy = [link for link in links if ratios[link] < slow]
        if not healthy:
            # of a pair that is fast, both are healthy
            half = len(links) // 2
            healthy = links[half:]
            suspects = links[:half]
            if half < 2:
                continue
        for number, suspect in enumerate(suspects):
            turn, place = divmod(number, len(healthy))
            if turn == len(merged):
                merged.append([])
            merged[turn].append(LinkPair(suspect, healthy[place]))
    return merged
