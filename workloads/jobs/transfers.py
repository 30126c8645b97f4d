"""Independent transfers to another rank of the next domain, or as named: traffic for which a path has to be chosen.

Each sender has a destination of its own, so on an empty fabric by dr no two of them share a link.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from railyard.core.errors import BadInput
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.spec import FabricSpec
from railyard.workloads.program import Program
from railyard.workloads.schedule import Iteration, Phase, Schedule
from railyard.workloads.spec import TransfersSpec

RECEIPT: Final = "receipt"
RECEIPT_BYTES: Final = 1

Pair = tuple[int, int]


def pairs(spec: TransfersSpec, fabric: FabricSpec, seed: int, field: str) -> tuple[Pair, ...]:
    """(source, destination) by GPU number, each GPU at most once on either side.

    The seed draws for `shuffled`, for each domain anew. BadInput for what the fabric doesn't have.
    """
    if spec.pairs is not None:
        return tuple(_pair_of_names(pair, fabric, f"{field}.pairs.{n}") for n, pair in enumerate(spec.pairs))
    domains, ranks = spec.domains or range(fabric.domains), spec.ranks or range(fabric.rails)
    _check_indices(domains, fabric.domains, f"{field}.domains")
    _check_indices(ranks, fabric.rails, f"{field}.ranks")
    rng, k = random.Random(seed), fabric.rails
    found: list[Pair] = []
    for domain in domains:
        to = derangement(ranks, rng) if spec.to == "shuffled" else (*ranks[1:], ranks[0])
        next_domain = (domain + 1) % fabric.domains
        found += [(domain * k + a, next_domain * k + b) for a, b in zip(ranks, to, strict=True)]
    return tuple(found)


def _check_indices(chosen: Sequence[int], count: int, field: str) -> None:
    for n, number in enumerate(chosen):
        if number >= count:
            raise BadInput(f"{field}.{n}", number, f"must be {count - 1} or less on this fabric")


def _pair_of_names(pair: tuple[str, str], fabric: FabricSpec, field: str) -> Pair:
    """By GPU number. BadInput for GPUs that aren't there, or aren't of two domains."""
    last, found = Gpu(fabric.domains - 1, fabric.rails - 1), []
    for n, name in enumerate(pair):
        try:
            gpu = gpu_of_name(name)
        except ValueError:
            gpu = Gpu(fabric.domains, 0)  # no such GPU
        if gpu.domain > last.domain or gpu.rank > last.rank or gpu.name != name:
            raise BadInput(f"{field}.{n}", name, f"is no GPU of this fabric: allowed are d0g0 to {last.name}")
        found.append(gpu)
    src, dst = found
    if src.domain == dst.domain:
        raise BadInput(field, list(pair), "must be of two domains: else there is but one path")
    return src.domain * fabric.rails + src.rank, dst.domain * fabric.rails + dst.rank


def derangement(items: Sequence[int], rng: random.Random) -> tuple[int, ...]:
    """The items in an order in which none is at its place; all such orders are equally likely. It needs two or more."""
    order = list(items)
    while any(a == b for a, b in zip(items, order, strict=True)):
        rng.shuffle(order)  # about one order in e will do
    return tuple(order)


def transfers_schedule(
    domains: int, rails: int, pairs: Sequence[Pair], size: int, stripes: int = 1, rounds: int = 1
) -> Schedule:
    """`size` bytes for each pair in even stripes, `rounds` times; every transfer is a run of its own.

    A source begins its next transfer when the last one's destination has sent a receipt: before that, much of it may
    still wait in the source's own buffers.
    """
    program = Program(domains, rails)
    step = Phase("transfer", "collective", "point-to-point", 1, 2, size)
    receipt = replace(step, name=RECEIPT, data_bytes=RECEIPT_BYTES)
    parts = [size // stripes + (n < size % stripes) for n in range(min(stripes, size))]
    sent: dict[Pair, list[int]] = {}
    for round_number in range(rounds):
        if round_number:
            for (src, dst), tasks in sent.items():
                program.wait_for(src, [program.send(dst, src, RECEIPT_BYTES, program.phase(receipt), tasks)])
        for src, dst in pairs:
            number, before = program.phase(step), program.last(src)
            sent[src, dst] = [program.send(src, dst, part, number, before, n) for n, part in enumerate(parts)]
    iteration = Iteration(1, 1, 1, 0.0, (replace(step, repeats=rounds),), None, ()) if rounds > 1 else None
    return program.schedule("transfers", iteration)
