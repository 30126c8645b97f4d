"""Independent transfers to another rank of the next domain, or as named: traffic for which a path has to be chosen.

Each sender has a destination of its own, so on an empty fabric by dr no two of them share a link.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from railyard.core.config import check_unique
from railyard.core.errors import BadInput
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import whole_bytes
from railyard.workloads.schedule import Iteration, Phase, Program, Schedule
from railyard.workloads.spec import WORKLOADS, Built, Count, Setting, Sized

RECEIPT: Final = "receipt"
RECEIPT_BYTES: Final = 1

MAX_STRIPES: Final = 64

Numbers = tuple[Annotated[int, Field(ge=0)], ...]
GpuPair = Annotated[tuple[str, str], Field(strict=False)]  # (source, destination), as d0g0 and d1g1
Pair = tuple[int, int]


def pairs(spec: "TransfersSpec", fabric: FabricSpec, seed: int, field: str) -> tuple[Pair, ...]:
    """(source, destination) by GPU number, each GPU at most once on either side.

    The seed draws for `shuffled`, for each domain anew. BadInput for what the fabric doesn't have.
    """
    if spec.pairs is not None:
        return _named_pairs(spec.pairs, fabric, field)
    domains = spec.domains or range(fabric.domains)
    ranks = spec.ranks or range(fabric.rails)
    _check_numbers(f"{field}.domains", domains, fabric.domains)
    _check_numbers(f"{field}.ranks", ranks, fabric.rails)
    rng = random.Random(seed)
    all_pairs: list[Pair] = []
    for domain in domains:
        next_domain = (domain + 1) % fabric.domains
        dst_ranks = derangement(ranks, rng) if spec.to == "shuffled" else (*ranks[1:], ranks[0])
        for src_rank, dst_rank in zip(ranks, dst_ranks, strict=True):
            all_pairs.append((domain * fabric.rails + src_rank, next_domain * fabric.rails + dst_rank))
    return tuple(all_pairs)


def _named_pairs(names: Sequence[tuple[str, str]], fabric: FabricSpec, field: str) -> tuple[Pair, ...]:
    """Return pairs of GPUs' names as pairs of numbers. BadInput for an unknown name or two GPUs of one domain."""
    numbers = {Gpu(*divmod(number, fabric.rails)).name: number for number in range(fabric.gpus)}
    all_pairs = []
    for i, pair in enumerate(names):
        for n, name in enumerate(pair):
            if name not in numbers:
                allowed = f"must be one of the GPUs d0g0 to {list(numbers)[-1]}"
                raise BadInput(f"{field}.pairs.{i}.{n}", name, allowed)
        src, dst = (numbers[name] for name in pair)
        if src // fabric.rails == dst // fabric.rails:
            raise BadInput(f"{field}.pairs.{i}", list(pair), "must be of two domains: else there is but one path")
        all_pairs.append((src, dst))
    return tuple(all_pairs)


def _check_numbers(field: str, numbers: Sequence[int], count: int) -> None:
    for n, number in enumerate(numbers):
        if number >= count:
            raise BadInput(f"{field}.{n}", number, f"must be {count - 1} or less")


def derangement(items: Sequence[int], rng: random.Random) -> tuple[int, ...]:
    """The items in an order in which none is at its place; all such orders are equally likely. It needs two or more."""
    order = list(items)
    while any(a == b for a, b in zip(items, order, strict=True)):
        # about one order in e will do
        rng.shuffle(order)
    return tuple(order)


def transfers_schedule(
    domains: int, rails: int, pairs: Sequence[Pair], size: int, stripes: int = 1, rounds: int = 1
) -> Schedule:
    """`size` bytes for each pair in even stripes, `rounds` times; every transfer is a run of its own."""
    program = Program(domains, rails)
    step = Phase("transfer", "collective", "point-to-point", 1, 2, size)
    receipt = replace(step, name=RECEIPT, data_bytes=RECEIPT_BYTES)
    shortest, longer_parts = divmod(size, stripes)
    parts = [shortest + 1] * longer_parts
    if shortest:
        parts += [shortest] * (stripes - longer_parts)
    sent: dict[Pair, list[int]] = {}
    for round_number in range(rounds):
        if round_number:
            # A source begins its next transfer when the last one's destination has sent a receipt: before that, much of
            # it may still wait in the source's own buffers.
            for (src, dst), tasks in sent.items():
                program.wait_for(src, [program.send(dst, src, RECEIPT_BYTES, program.phase(receipt), tasks)])
        for src, dst in pairs:
            number = program.phase(step)
            before = program.last(src)
            sent[src, dst] = [program.send(src, dst, part, number, before, n) for n, part in enumerate(parts)]
    iteration = None
    if rounds > 1:
        iteration = Iteration(1, 1, 1, 0.0, (replace(step, repeats=rounds),), None, ())
    return program.schedule("transfers", iteration)


@WORKLOADS.register("transfers")
class TransfersSpec(Sized):
    """Each GPU of these domains and ranks (left out: all) sends `bytes` to the next domain, to another of the ranks.

    The next domain is by number, after the last the first. next-rank: the one that follows in the list, after its last
    the first; shuffled: drawn from the seed. Each is once a destination. Or `pairs` says who sends to whom. `bytes`, or
    `duration` at the rail's rate, is of one transfer; it goes in `stripes` over as many connections. A source sends
    `rounds` of them, one after the other, to the same destination.
    """

    is_iteration = False
    is_independent = True

    domains: Annotated[Numbers, Field(min_length=1, strict=False), AfterValidator(check_unique)] | None = None
    ranks: Annotated[Numbers, Field(min_length=2, strict=False), AfterValidator(check_unique)] | None = None
    to: Literal["next-rank", "shuffled"] = "next-rank"
    pairs: Annotated[tuple[GpuPair, ...], Field(min_length=1, strict=False)] | None = None
    stripes: Annotated[int, Field(ge=1, le=MAX_STRIPES)] = 1
    rounds: Count = 1

    @field_validator("pairs")
    @classmethod
    def _check_pairs(
        cls, pairs: tuple[tuple[str, str], ...] | None, info: ValidationInfo
    ) -> tuple[tuple[str, str], ...] | None:
        if pairs is not None and (info.data.get("domains") is not None or info.data.get("ranks") is not None):
            raise ValueError("can't be given together with domains or ranks: it says all")
        if pairs is not None and any(len(set(side)) < len(pairs) for side in zip(*pairs, strict=True)):
            raise ValueError("must name each GPU once as a source, and once as a destination")
        return pairs

    def traits(self) -> dict[str, str]:
        return {"to": self.to, "stripes": f"stripes {self.stripes}", "rounds": f"rounds {self.rounds}"}

    def build(self, setting: Setting) -> Built:
        """As of a collective, the same bytes are projected to the real platform."""
        fabric = setting.fabric
        chosen = pairs(self, fabric, setting.seed, setting.field)
        size = self.bytes or whole_bytes(self.target_duration_s * setting.emulated.rail)
        schedule = transfers_schedule(fabric.domains, fabric.rails, chosen, size, self.stripes, self.rounds)
        return Built(schedule, setting.scale(self.kind))
