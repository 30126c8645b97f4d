"""Chains and barriers: patterns that only traces need."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from railyard.workloads.collectives.stages import sliced
from railyard.workloads.program import Program

BARRIER_BYTES: Final = 1


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
