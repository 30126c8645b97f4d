"""What one rail does for one operation: which piece comes when, what becomes of it, and what may go out then.

A task knows no socket: `begin` and `on_received` return the pieces that may be sent now, `buffer_for` names where a
piece that comes belongs. Pieces come in order, on one connection, so nothing is added twice or left out.

- Ring (Nezha Eq. 1; Gloo's ring and ring-chunked): N chunks, and in step t a node sends what it received in step t - 1.
  First N - 1 steps add up (ReduceScatter), then N - 1 pass on (AllGather). A chunk goes in pieces, so that one is added
  up while the next is on its way; with pieces as long as a chunk it is the plain ring. What a step sends is a message:
  its first piece `starts_message` it, and waits for its set-up.
- Tree: pieces go to the aggregator of the rail and come back added up, no more than `WINDOW` ahead of what came back.
- Relay: one node's pieces go round the ring, each node keeping them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput

Array = NDArray[Any]

DTYPES: Final = tuple(
    np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The place in `DTYPES`. BadInput for a type that isn't summed here."""
    try:
        return DTYPES.index(dtype)
    except ValueError:
        raise BadInput("dtype", str(dtype), f"must be one of {', '.join(map(str, DTYPES))}") from None


def octets(array: Array, start: int, end: int) -> memoryview:
    """The bytes of elements `start` to `end`, in place."""
    view: memoryview = array[start:end].view(np.uint8).data
    return view


def scratch(size: int) -> memoryview:
    """`size` bytes of memory to receive into, with whatever was there before."""
    view: memoryview = np.empty(size, np.uint8).data
    return view


def flat(array: Array) -> Array:
    """One dimension, same memory. BadInput where that needs a copy: it would be the copy that got the result."""
    if not array.flags.c_contiguous:
        raise BadInput("array", f"strides {array.strides}", "must be contiguous")
    if not array.flags.writeable:
        raise BadInput("array", "read-only", "must be writable: the result goes there")
    dtype_code(array.dtype)
    return array.reshape(-1)


@dataclass
class Copies:
    """Bytes that were moved in memory beside the sums themselves, by why."""

    result: int = 0  # from the group's result to the caller's array
    own_part: int = 0  # AllGather: a node's part into its own result
    staged: int = 0  # beginnings of frames, which came together with their headers
    early: int = 0  # frames of an operation that this node hadn't begun


@dataclass
class Results:
    """Two buffers in turn, as large as the largest so far."""

    _slots: list[Array] = field(default_factory=lambda: [np.empty(0, np.uint8), np.empty(0, np.uint8)])

    def take(self, op: int, length: int, dtype: np.dtype[Any]) -> Array:
        """`length` elements for operation `op`; what operation `op` - 2 had is lost."""
        size = length * dtype.itemsize
        if len(self._slots[op % 2]) < size:
            self._slots[op % 2] = np.empty(size, np.uint8)
        return self._slots[op % 2][:size].view(dtype)


Span = tuple[int, int]
"""(start, end), the end not included."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` elements from `start` on, for `rail`."""

    rail: int
    start: int
    length: int


def split_by_share(length: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole elements by share, `length` in all: rounded down, and what is left to the largest remainders."""
    total = sum(shares)
    if length < 0 or total <= 0 or min(shares) < 0:
        raise ValueError(
            f"length {length}, shares {tuple(shares)}: need length 0 or more, shares 0 or more, one above 0"
        )
    exact = [length * share / total for share in shares]
    counts = [floor(part) for part in exact]
    order = sorted((i for i in range(len(shares)) if shares[i] > 0), key=lambda i: counts[i] - exact[i])
    index = 0
    while (left := length - sum(counts)) != 0:  # float rounding of huge lengths may be off by more than one
        step = 1 if left > 0 else -1
        if counts[order[index]] + step >= 0:
            counts[order[index]] += step
        index = (index + 1) % len(order)
    return tuple(counts)


def partition(length: int, shares: Sequence[float]) -> tuple[Segment, ...]:
    """One segment for each rail that gets an element; of an empty buffer an empty one, for the largest share."""
    if length == 0:
        return (Segment(max(range(len(shares)), key=lambda rail: shares[rail]), 0, 0),)
    segments, start = [], 0
    for rail, count in enumerate(split_by_share(length, shares)):
        if count:
            segments.append(Segment(rail, start, count))
        start += count
    return tuple(segments)


def split_evenly(start: int, length: int, count: int) -> list[Span]:
    """A range in `count` spans of nearly the same length; some are empty where it is short."""
    edges = [start + length * i // count for i in range(count + 1)]
    return list(pairwise(edges))


def pieces(start: int, length: int, longest: int) -> list[Span]:
    """A range in spans of nearly the same length, none above `longest`; of an empty range one empty span."""
    return split_evenly(start, length, max(1, -(-length // longest)))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Sorted, joined where they touch or overlap, empty ones left out."""
    out: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def common(first: Iterable[Span], second: Iterable[Span]) -> list[Span]:
    """What both have."""
    others = merged(second)
    return merged((max(a, c), min(b, d)) for a, b in merged(first) for c, d in others if max(a, c) < min(b, d))


def missing(start: int, end: int, done: Iterable[Span]) -> list[Span]:
    """What of `start` to `end` isn't done."""
    left, at = [], start
    for a, b in merged(done):
        if a > at:
            left.append((at, min(a, end)))
        at = max(at, b)
    return merged([*left, (at, end)])


PIECE_BYTES: Final = 128 * 1024
MIN_PIECE_BYTES: Final = 8 * 1024
"""Below that a piece costs more than it lets overlap."""
OVERLAP: Final = 4
"""Pieces in a ring's message, where that makes none too short or too long: one is added up while others travel."""
TREE_OVERLAP: Final = 32
TREE_PIECE_BYTES: Final = 32 * 1024
"""The same on a tree, and its longest piece: the last one has yet to come back when all have gone up."""
WINDOW: Final = 32
ALL: Final = -1


class Piece(NamedTuple):
    """To be sent: its number, its bytes in place, whether it opens a message, and whether an aggregator adds up all
    nodes' (or passes on one's)."""

    seq: int
    view: memoryview
    starts_message: bool
    summed: bool = True


class Task(Protocol):
    """`final` are the elements of the result that are right and stay so."""

    def begin(self) -> Iterator[Piece]: ...

    def buffer_for(self, seq: int) -> memoryview:
        """Where piece `seq` is to be received. ValueError if no such piece can come now."""
        ...

    def on_received(self, seq: int) -> Iterator[Piece]: ...

    @property
    def done(self) -> bool: ...

    def final(self) -> list[Span]: ...


def chunks_of(start: int, length: int, nodes: int) -> list[Span]:
    """A segment in as many chunks as nodes, of nearly the same length; empty ones where it is short."""
    return split_evenly(start, length, nodes)


def piece_length(length: int, itemsize: int, longest_bytes: int, overlap: int = OVERLAP) -> int:
    """Elements in a piece of a message of `length`."""
    target_bytes = min(longest_bytes, max(MIN_PIECE_BYTES, length * itemsize // overlap))
    return max(1, target_bytes // itemsize)


@dataclass
class Ring:
    """`chunks[c]`: where chunk c is, in `source` (the input, never written) and in `result`.

    After the adding up a node has the chunk of its own rank, so ReduceScatter is the first half alone, and AllGather
    the second.
    """

    rank: int
    chunks: Sequence[Span]
    source: Array
    result: Array
    reduces: bool = True
    gathers: bool = True
    piece_bytes: int = PIECE_BYTES
    _next: int = 0
    _final: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes = len(self.chunks)
        longest = max(end - start for start, end in self.chunks)
        self._pieces = max(1, -(-longest // piece_length(longest, self.source.itemsize, self.piece_bytes)))
        self._first = 0 if self.reduces else nodes - 1
        self._last = (2 * (nodes - 1) if self.gathers else nodes - 1) - 1
        self._next = self._first * self._pieces
        self._scratch = np.empty(-(-longest // self._pieces) if self.reduces else 0, self.source.dtype)

    def begin(self) -> Iterator[Piece]:
        """All of this node's own chunk, from the input."""
        own = self.source if self.reduces else self.result
        for number in range(self._pieces):
            start, end = self._span(self._first - 1, number)
            yield Piece(self._first * self._pieces + number, octets(own, start, end), number == 0)

    def buffer_for(self, seq: int) -> memoryview:
        step, number = self._step(seq)
        start, end = self._span(step, number)
        return octets(self._scratch, 0, end - start) if self._is_reduce_step(step) else octets(self.result, start, end)

    def on_received(self, seq: int) -> Iterator[Piece]:
        step, number = self._step(seq)
        start, end = self._span(step, number)
        nodes = len(self.chunks)
        if self._is_reduce_step(step):
            np.add(self._scratch[: end - start], self.source[start:end], out=self.result[start:end])
        if (step >= nodes - 2 and self.reduces) or step >= nodes - 1:
            self._final.append((start, end))
        self._next += 1
        if step < self._last:
            yield Piece(seq + self._pieces, octets(self.result, start, end), number == 0)

    @property
    def done(self) -> bool:
        return self._next == (self._last + 1) * self._pieces

    def final(self) -> list[Span]:
        return merged(self._final)

    def _is_reduce_step(self, step: int) -> bool:
        return step < len(self.chunks) - 1

    def _step(self, seq: int) -> tuple[int, int]:
        if seq != self._next or self.done:
            raise ValueError(f"piece {seq} came, {self._next} was due")
        return divmod(seq, self._pieces)

    def _span(self, step: int, number: int) -> Span:
        """Where the piece is that comes in `step`; what goes out in a step came in the one before."""
        nodes = len(self.chunks)
        start, end = self.chunks[(self.rank - 2 - step) % nodes]
        length = end - start
        return start + length * number // self._pieces, start + length * (number + 1) // self._pieces


@dataclass
class Tree:
    """`parts`: spans of the buffer, each with the rank whose elements they are, or ALL where they are added up."""

    rank: int
    parts: Sequence[tuple[Span, int]]
    source: Array
    result: Array
    piece_bytes: int = PIECE_BYTES
    _received_count: int = 0
    _sent: int = 0

    def __post_init__(self) -> None:
        length = sum(end - start for (start, end), _ in self.parts)
        longest = piece_length(length, self.source.itemsize, min(self.piece_bytes, TREE_PIECE_BYTES), TREE_OVERLAP)
        self._pieces = [
            (span, owner) for (start, end), owner in self.parts for span in pieces(start, end - start, longest)
        ]

    def begin(self) -> Iterator[Piece]:
        yield from self._next_pieces()

    def buffer_for(self, seq: int) -> memoryview:
        if seq != self._received_count or self.done:
            raise ValueError(f"piece {seq} came, {self._received_count} was due")
        start, end = self._pieces[seq][0]
        return octets(self.result, start, end)

    def on_received(self, seq: int) -> Iterator[Piece]:
        self._received_count += 1
        yield from self._next_pieces()

    @property
    def done(self) -> bool:
        return self._received_count == len(self._pieces)

    def final(self) -> list[Span]:
        return merged(span for span, _ in self._pieces[: self._received_count])

    def _next_pieces(self) -> Iterator[Piece]:
        while self._sent < min(len(self._pieces), self._received_count + WINDOW):
            (start, end), owner = self._pieces[self._sent]
            if owner == self.rank and self._sent > self._received_count and self._pieces[self._sent - 1][1] != owner:
                return  # what others send before must be back, or this would overtake it
            if owner in (ALL, self.rank):
                yield Piece(self._sent, octets(self.source, start, end), self._sent == 0, owner == ALL)
            self._sent += 1


@dataclass
class Relay:
    """`root`'s elements `start` to `end` to every node, round the ring."""

    rank: int
    nodes: int
    root: int
    span: Span
    result: Array
    piece_bytes: int = PIECE_BYTES
    _received_count: int = 0

    def __post_init__(self) -> None:
        start, end = self.span
        self._pieces = pieces(start, end - start, piece_length(end - start, self.result.itemsize, self.piece_bytes))

    def begin(self) -> Iterator[Piece]:
        if self.rank == self.root:
            for seq, (start, end) in enumerate(self._pieces):
                yield Piece(seq, octets(self.result, start, end), seq == 0)

    def buffer_for(self, seq: int) -> memoryview:
        if seq != self._received_count or self.done:
            raise ValueError(f"piece {seq} came, {self._received_count} was due")
        return octets(self.result, *self._pieces[seq])

    def on_received(self, seq: int) -> Iterator[Piece]:
        self._received_count += 1
        if (self.rank + 1) % self.nodes != self.root:
            yield Piece(seq, octets(self.result, *self._pieces[seq]), seq == 0)

    @property
    def done(self) -> bool:
        return self.rank == self.root or self._received_count == len(self._pieces)

    def final(self) -> list[Span]:
        return [self.span] if self.rank == self.root else merged(self._pieces[: self._received_count])
