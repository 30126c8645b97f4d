"""Ways to send that only traces need: uneven exchanges, chains, and barriers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from railyard.workloads.collectives.algorithms import IN_FLIGHT, Round, sliced
from railyard.workloads.program import Program

BARRIER_BYTES: Final = 1


def exchange_sizes(program: Program, rounds: Sequence[Round], sizes: Mapping[tuple[int, int], int], phase: int) -> None:
    """As `collectives.exchange`, with bytes of its own for each pair; a pair that has none sends nothing.

    A slot is a round with one slice. What a GPU did in a slot, or waited for if it sent nothing then, is what it waits
    for `IN_FLIGHT` slots later.
    """
    slices = {pair: sliced(size) for pair, size in sizes.items()}
    max_slices = max((len(parts) for parts in slices.values()), default=0)
    slots: dict[int, list[tuple[int, ...]]] = {gpu: [] for pairs in rounds for pair in pairs for gpu in pair}
    for part in range(max_slices):
        for pairs in rounds:
            before = {
                gpu: done[-IN_FLIGHT] if len(done) >= IN_FLIGHT else program.last(gpu) for gpu, done in slots.items()
            }
            sent: dict[int, int] = {}
            received: dict[int, int] = {}
            for src, dst in pairs:
                parts = slices.get((src, dst), [])
                if part < len(parts):
                    sent[src] = received[dst] = program.send(src, dst, parts[part], phase, before[src])
            for gpu, done in slots.items():
                arrivals = (received[gpu],) if gpu in received else ()
                done.append((sent[gpu], *arrivals) if gpu in sent else tuple(dict.fromkeys((*before[gpu], *arrivals))))
    for gpu, done in slots.items():
        program.wait_for(gpu, [task for slot in done[-IN_FLIGHT:] for task in slot] or program.last(gpu))


def chain(program: Program, order: Sequence[int], size: int, phase: int) -> None:
    """`size` bytes from the first of `order` to the last by way of all between, each slice passed on as it comes."""
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for part in sliced(size):
        for src, dst in pairwise(order):
            before = (sent[src],) if src in sent else program.last(src)
            inbound = (received[src],) if src in received else ()
            sent[src] = received[dst] = program.send(src, dst, part, phase, (*before, *inbound))
    for gpu in order:
        ends = [done[gpu] for done in (sent, received) if gpu in done]
        program.wait_for(gpu, ends if gpu in sent else [*program.last(gpu), *ends])


def send_barrier(program: Program, group: Sequence[int], phase: int) -> None:
    """A barrier: in round k everyone tells the one 2^k places on, so that all know of all after log2 n rounds."""
    n, step = len(group), 1
    while step < n:
        barrier_sends = [
            program.send(src, group[(index + step) % n], BARRIER_BYTES, phase, program.last(src))
            for index, src in enumerate(group)
        ]
        for index, gpu in enumerate(group):
            program.wait_for(gpu, (barrier_sends[index], barrier_sends[index - step]))
        step *= 2
