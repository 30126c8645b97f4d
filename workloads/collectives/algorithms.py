"""Collectives as tasks: pairwise all-to-all, and ring and hierarchical AllGather, ReduceScatter and AllReduce.

Every collective runs on a `Grid` of y HB domains by x ranks, and a ring is the grid with one column (on a rail) or
one row (in an HB domain). Sources: Rail-only section III-B and Eq. 1 (AllGather: rails first, then HB domains;
ReduceScatter the other way round), section IV-B and Eq. 2-3 (all-to-all; HB domain first, as in the section's
example).

Nothing here lets several senders meet at one receiver for long: all-to-all goes in rounds in which i sends to i + r,
and round n waits until round n - `in_flight` was both sent and received, which also keeps fast GPUs from running
ahead.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from typing import Final

from railyard.workloads.program import Grid, Program

IN_FLIGHT: Final = 8
SLICE_BYTES: Final = 64_000
"""A ring's chunk goes in two slices if each has this many bytes or more: the second is still being sent while the first
is already handed on, so the time a step takes to get through (0.2 to 1 ms here) leaves no gap. NCCL does the same."""


def columns(grid: Grid) -> Grid:
    """The rails of a grid: GPUs of one rank, domain by domain."""
    return tuple(zip(*grid, strict=True))


def whole_bytes(size: float) -> int:
    """Rounded up, and at least one: what a transfer can carry. Float noise is no byte."""
    return max(1, ceil(round(size, 3)))


MAX_SLICES: Final = 32

Round = list[tuple[int, int]]
"""(source, destination) for every GPU that takes part: each is once a source and once a destination."""


def shifts(group: Sequence[int]) -> list[Round]:
    """Every pair of a group: in round r its i-th GPU sends to the (i + r)-th."""
    n = len(group)
    return [[(src, group[(i + r) % n]) for i, src in enumerate(group)] for r in range(1, n)]


def grid_shifts(grid: Grid) -> list[Round]:
    """Every pair of a grid: G(d, g) sends to G(d + a, g + b), one round for each (a, b).

    So a round stays in the HB domains for all GPUs, or leaves them for all, and the two sorts alternate evenly. Rounds
    by GPU number (i to i + r) mix the sorts, which leaves rails idle: on a 4x4 grid they take a quarter longer.
    """
    y, x = len(grid), len(grid[0])
    intra_domain = [(0, b) for b in range(1, x)]
    inter_domain = [(a, b) for b in range(x) for a in range(1, y)]
    ordered_shifts = [
        ((i + 0.5) / len(part), shift) for part in (intra_domain, inter_domain) for i, shift in enumerate(part)
    ]
    return [
        [(grid[d][g], grid[(d + a) % y][(g + b) % x]) for d in range(y) for g in range(x)]
        for _, (a, b) in sorted(ordered_shifts)
    ]


def sliced(size: int) -> list[int]:
    """A pair's bytes in equal parts, as many as are still of a decent size, and not too many."""
    count = max(1, min(MAX_SLICES, size // SLICE_BYTES))
    return [size // count + (part < size % count) for part in range(count)]


def exchange(program: Program, rounds: list[Round], size: int, phase: int, in_flight: int = IN_FLIGHT) -> None:
    """`size` bytes for each pair of each round.

    All rounds run with the first slice of every pair, then with the second, and so on: pairs that share a link advance
    together, and none is left to finish alone while other links idle.
    """
    sent: defaultdict[int, list[int]] = defaultdict(list)
    received: defaultdict[int, list[int]] = defaultdict(list)
    sequence = [(part, pairs) for part in sliced(size) for pairs in rounds]
    for number, (part, pairs) in enumerate(sequence):
        window = number - in_flight
        for src, dst in pairs:
            after = program.last(src) if window < 0 else (sent[src][window], received[src][window])
            task = program.send(src, dst, part, phase, after)
            sent[src].append(task)
            received[dst].append(task)
    for gpu in sent:
        program.wait_for(gpu, sent[gpu][-in_flight:] + received[gpu][-in_flight:])


def ring(program: Program, group: Sequence[int], steps: int, chunk: int, phase: int) -> None:
    """`steps` steps: each GPU sends `chunk` bytes to the next one, first its own, then what it received last."""
    if len(group) < 2:
        return
    slices = (chunk - chunk // 2, chunk // 2) if chunk >= 2 * SLICE_BYTES else (chunk,)
    received: dict[tuple[int, int], int] = {}
    last_sent: dict[int, int] = {}
    for step in range(steps):
        received_now: dict[tuple[int, int], int] = {}
        for part, size in enumerate(slices):
            for place, src in enumerate(group):
                dst = group[(place + 1) % len(group)]
                ready = program.last(src) if step == 0 else (received[src, part],)
                own_previous = (last_sent[src],) if src in last_sent else ()
                last_sent[src] = received_now[dst, part] = program.send(src, dst, size, phase, (*ready, *own_previous))
        received = received_now
    for gpu in group:
        program.wait_for(gpu, (last_sent[gpu], *(received[gpu, part] for part in range(len(slices)))))


def all_gather(program: Program, grid: Grid, chunk: int, phase: int) -> None:
    """Rail-only Eq. 1: every GPU contributes `chunk` bytes; rings on the rails, then in the HB domains."""
    for rail in columns(grid):
        ring(program, rail, len(rail) - 1, chunk, phase)
    for domain in grid:
        ring(program, domain, len(domain) - 1, chunk * len(grid), phase)


def reduce_scatter(program: Program, grid: Grid, chunk: int, phase: int) -> None:
    """AllGather backwards: every GPU ends with `chunk` bytes; rings in the HB domains, then on the rails."""
    for domain in grid:
        ring(program, domain, len(domain) - 1, chunk * len(grid), phase)
    for rail in columns(grid):
        ring(program, rail, len(rail) - 1, chunk, phase)


def all_reduce(program: Program, grid: Grid, chunk: int, phase: int) -> None:
    """ReduceScatter, then AllGather: the rails' two rings meet, and go on as one of 2 (y - 1) steps."""
    for domain in grid:
        ring(program, domain, len(domain) - 1, chunk * len(grid), phase)
    for rail in columns(grid):
        ring(program, rail, 2 * (len(rail) - 1), chunk, phase)
    for domain in grid:
        ring(program, domain, len(domain) - 1, chunk * len(grid), phase)


def all_to_all_direct(program: Program, grid: Grid, size: int, phase: int, in_flight: int = IN_FLIGHT) -> None:
    """Rail-only Eq. 2: `size` bytes from every GPU of the grid straight to every other one."""
    exchange(program, grid_shifts(grid), size, phase, in_flight)


def all_to_all_in_rail(program: Program, grid: Grid, size: int, phase: int, in_flight: int = IN_FLIGHT) -> None:
    """`size` bytes between every two GPUs of a rail, all rails at once."""
    for rail in columns(grid):
        exchange(program, shifts(rail), size, phase, in_flight)


def all_to_all_two_phase(program: Program, grid: Grid, size: int, phase: int, in_flight: int = IN_FLIGHT) -> None:
    """Rail-only Eq. 3: `size` bytes for every pair of the grid, by way of the own domain's GPU of the right rank.

    First G(d, g) hands G(d, x) all that is meant for rank x, in whichever of the y domains; then G(d, x) sends on to
    G(e, x) what the x GPUs of its domain have for that GPU.
    """
    for domain in grid:
        exchange(program, shifts(domain), size * len(grid), phase, in_flight)
    for rail in columns(grid):
        exchange(program, shifts(rail), size * len(grid[0]), phase, in_flight)
