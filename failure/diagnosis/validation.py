"""Validation of a slow job's links and GPUs: a few passes in which pairs send to each other, and GPUs compute.

A ring over the links of a rail or an HB domain is tested in two passes, three if their number is odd: in each, a link
takes part in one pair at most, so that no pair waits for another one. A link is slow if all of its pairs are slow. A
link that met only slow ones is tested once more, with a healthy partner. Source: GREYHOUND (Wu et al., ATC 2025),
validation of rings.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from railyard.failure.diagnosis.definition import Spans
from railyard.failure.diagnosis.groups import GpuLink
from railyard.topologies.plan import Plan
from railyard.workloads.schedule import Phase, Program, Schedule, payload_rates
from railyard.workloads.tasks import Compute

PASS_S: Final = 0.1
"""Seconds that a healthy pair sends, and that a healthy GPU computes."""
COMPUTATIONS: Final = 3
"""Times that each GPU computes: the median counts."""
RING: Final = 3
"""Links of a rail or domain that are tested at least: of two, no test can say which one is slow."""


class LinkPair(NamedTuple):
    """Two links of one rail or HB domain whose GPUs send to each other."""

    first: GpuLink
    second: GpuLink


def medium_of(link: GpuLink, rails: int) -> tuple[str, int]:
    """Return what joins a link with others of its kind: the rail, or the HB domain. `rails`: GPUs of a domain."""
    domain, rank = divmod(link.gpu, rails)
    return ("rail", rank) if link.part == "rail" else ("hb", domain)


def rings(links: Iterable[GpuLink], plan: Plan) -> list[list[GpuLink]]:
    """Return the links of each rail and each HB domain, with healthy ones or unknown ones where there are few."""
    by_medium = defaultdict[tuple[str, int], set[GpuLink]](set)
    for link in links:
        by_medium[medium_of(link, plan.spec.rails)].add(link)
    result: list[list[GpuLink]] = []
    for (part, number), members in sorted(by_medium.items()):
        rails = plan.spec.rails
        same_rail = range(number, len(plan.gpus), rails)
        same_domain = range(number * rails, (number + 1) * rails)
        candidates = same_rail if part == "rail" else same_domain
        for gpu in candidates:
            if len(members) < RING:
                members.add(GpuLink("rail" if part == "rail" else "hb", gpu))
        result.append(sorted(members))
    return result


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
    """Return a schedule in which each pair sends both ways for `PASS_S`, and GPUs compute meanwhile.

    `computing`: numbers of the GPUs that compute.
    """
    program = Program(plan.spec.domains, plan.spec.rails)
    rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    sending = program.phase(Phase("validation", "validation", "", plan.spec.rails, plan.spec.domains, 0.0))
    for first, second in pairs:
        rate = rates.rail if first.part == "rail" else rates.hb
        size = max(1, round(rate * PASS_S))
        program.send(first.gpu, second.gpu, size, sending, ())
        program.send(second.gpu, first.gpu, size, sending, ())
    for _ in range(COMPUTATIONS):
        for gpu in computing:
            program.compute(gpu, PASS_S, sending)
    return program.schedule("validation")


def pair_ratios(pairs: Sequence[LinkPair], spans: Spans) -> dict[LinkPair, float]:
    """Return how many times as long as at the links' rates each pair took in its slower direction."""
    ratios: dict[LinkPair, float] = {}
    for number, pair in enumerate(pairs):
        there = spans[2 * number]
        back = spans[2 * number + 1]
        seconds = max(there[1] - there[0], back[1] - back[0])
        ratios[pair] = seconds / PASS_S
    return ratios


def computing_ratios(schedule: Schedule, spans: Spans) -> dict[int, float]:
    """Return how many times as long as the median GPU each GPU computed, by its number."""
    seconds = defaultdict[int, list[float]](list)
    for number, task in enumerate(schedule.tasks):
        if isinstance(task, Compute):
            start_s, end_s = spans[number]
            seconds[task.gpu].append(end_s - start_s)
    medians = {gpu: median(times) for gpu, times in seconds.items()}
    typical_s = median(medians.values())
    return {gpu: gpu_s / typical_s for gpu, gpu_s in medians.items()}


def link_ratios(ratios: Mapping[LinkPair, float]) -> dict[GpuLink, float]:
    """Return the ratio of each link: that of its fastest pair, as its partner may be the slow one."""
    by_link: dict[GpuLink, float] = {}
    for pair, ratio in ratios.items():
        for link in pair:
            by_link[link] = min(ratio, by_link.get(link, ratio))
    return by_link


def second_tests(ratios: Mapping[GpuLink, float], slow: float, rails: int) -> list[list[LinkPair]]:
    """Return passes that test slow links again, where a rail or domain has several.

    Each gets a healthy partner; where none is known to be healthy, the one opposite on the ring. `ratios`: of the tests
    so far. `slow`: the ratio from which a link is slow. `rails`: GPUs of a domain.
    """
    by_medium = defaultdict[tuple[str, int], list[GpuLink]](list)
    for link in sorted(ratios):
        by_medium[medium_of(link, rails)].append(link)
    merged: list[list[LinkPair]] = []
    for links in by_medium.values():
        suspects = [link for link in links if ratios[link] >= slow]
        healthy = [link for link in links if ratios[link] < slow]
        if len(suspects) < 2:
            continue
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
