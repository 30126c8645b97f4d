"""Work of one rail in one operation: which piece comes when, what becomes of it, and what may be sent then.

A task knows no socket: `begin` and `on_received` return the pieces that may be sent now, `buffer_for` returns where a
piece that comes belongs. Pieces come in order, on one connection, so nothing is added twice or left out. Rails share
one input and one result, each with a range of elements (Nezha sections 3.2 and 3.4: UnboundBuffer, Buffer).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from math import floor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput

Array = NDArray[Any]
Span = tuple[int, int]  # (start, end) of elements, the end not included

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_REALS = ("float16", "float32", "float64", "complex64", "complex128")
DTYPES: Final = tuple(np.dtype(name) for name in (*_INTEGERS, *_REALS))
PIECE_BYTES: Final = 128 * 1024
# a shorter piece costs more than it lets overlap
MIN_PIECE_BYTES: Final = 8 * 1024
# pieces in a ring's message, if none gets too short or long: one is added up while others travel
OVERLAP: Final = 4
# on a tree, whose last piece has yet to come back when all have gone up
TREE_OVERLAP: Final = 32
TREE_PIECE_BYTES: Final = 32 * 1024
WINDOW: Final = 32
ALL: Final = -1


def dtype_code(dtype: np.dtype[Any]) -> int:
    """Return the index in `DTYPES`. BadInput for a type that can't be summed."""
    try:
        return DTYPES.index(dtype)
    except ValueError:
        raise BadInput("dtype", str(dtype), f"must be one of {', '.join(map(str, DTYPES))}") from None


def octets(array: Array, start: int, end: int) -> memoryview:
    """Return the bytes of elements `start` to `end`, in place."""
    view: memoryview = array[start:end].view(np.uint8).data
    return view


def scratch(size: int) -> memoryview:
    """Return `size` bytes of uninitialised memory."""
    view: memoryview = np.empty(size, np.uint8).data
    return view


def flat(array: Array) -> Array:
    """Return an array with one dimension and the same memory. BadInput where that needs a copy, or is read-only."""
    if not array.flags.c_contiguous:
        raise BadInput("array", f"strides {array.strides}", "must be contiguous")
    if not array.flags.writeable:
        raise BadInput("array", "read-only", "must be writable: the result goes there")
    dtype_code(array.dtype)
    return array.reshape(-1)


@dataclass
class Copies:
    """Bytes that were moved in memory beside the sums themselves, by reason."""

    result: int = 0  # from the group's result to the caller's array
    own_part: int = 0  # AllGather: a node's part into its own result
    staged: int = 0  # beginnings of frames, which came together with their headers
    early: int = 0  # frames of an operation that this node had not begun


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` elements from `start` on, for `rail`."""

    rail: int
    start: int
    length: int


def partition(length: int, shares: Sequence[float]) -> tuple[Segment, ...]:
    """Return a segment for each rail that gets an element. An empty buffer has one, empty, for the largest share.

    Elements by share are rounded down, and the rest goes to the largest remainders. ValueError for impossible shares.
    """
    total = sum(shares)
    if length < 0 or total <= 0 or min(shares) < 0:
        raise ValueError(f"length {length}, shares {tuple(shares)}: each must be 0 or more, and one above 0")
    if length == 0:
        largest = max(range(len(shares)), key=shares.__getitem__)
        return (Segment(largest, 0, 0),)
    exact = [length * share / total for share in shares]
    counts = [floor(part) for part in exact]
    used_rails = [rail for rail, share in enumerate(shares) if share > 0]
    order = sorted(used_rails, key=lambda rail: counts[rail] - exact[rail])
    # float rounding of huge lengths may be off by more than one
    for rail in cycle(order):
        remaining = length - sum(counts)
        if remaining == 0:
            break
        if remaining > 0:
            counts[rail] += 1
        else:
            counts[rail] = max(0, counts[rail] - 1)
    segments: list[Segment] = []
    start = 0
    for rail, count in enumerate(counts):
        if count:
            segments.append(Segment(rail, start, count))
        start += count
    return tuple(segments)


def split_evenly(start: int, length: int, count: int) -> list[Span]:
    """Return a range in `count` spans of nearly the same length; some are empty where it is short."""
    ends = [start + length * number // count for number in range(count + 1)]
    return list(pairwise(ends))


def pieces(start: int, length: int, longest: int) -> list[Span]:
    """Split a range into spans of nearly the same length, none above `longest`. An empty range has one empty span."""
    return split_evenly(start, length, max(1, -(-length // longest)))


def piece_length(length: int, itemsize: int, longest_bytes: int, overlap: int = OVERLAP) -> int:
    """Return how many elements a piece of a message of `length` has."""
    target_bytes = min(longest_bytes, max(MIN_PIECE_BYTES, length * itemsize // overlap))
    return max(1, target_bytes // itemsize)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans sorted, joined where they touch or overlap, without empty ones."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def missing(start: int, end: int, done: Iterable[Span]) -> list[Span]:
    """Return the parts of `start` to `end` that are not in `done`."""
    gaps: list[Span] = []
    at = start
    for done_start, done_end in merged(done):
        if done_start > at:
            gaps.append((at, min(done_start, end)))
        at = max(at, done_end)
    return merged([*gaps, (at, end)])


class Piece(NamedTuple):
    """Piece to send: its number, its bytes in place, and whether it opens a message.

    `summed`: the aggregator adds up all nodes' pieces; it passes on one node's if not.
    """

    seq: int
    view: memoryview
    starts_message: bool
    summed: bool = True


@dataclass
class Ring:
    """Ring over `chunks`: the ranges of chunk 0, 1, ... in `source` (the input, never written) and in `result`.

    Source: Nezha Eq. 1; Gloo's ring and ring-chunked. In step t a node sends what it received in step t - 1. The first
    N - 1 steps add up (ReduceScatter), after which a node has the chunk of its own rank; the next N - 1 pass on
    (AllGather). What a step sends is a message, in pieces; the first waits for its set-up.
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
        self._last = nodes - 2
        if self.gathers:
            self._last += nodes - 1
        self._next = self._first * self._pieces
        # what is only passed on is received in its place
        scratch_length = -(-longest // self._pieces) if self.reduces else 0
        self._scratch = np.empty(scratch_length, self.source.dtype)

    def begin(self) -> Iterator[Piece]:
        """Yield all of this node's own chunk, from the input."""
        data = self.source if self.reduces else self.result
        for number in range(self._pieces):
            start, end = self._span(self._first - 1, number)
            yield Piece(self._first * self._pieces + number, octets(data, start, end), number == 0)

    def buffer_for(self, seq: int) -> memoryview:
        """Return the scratch buffer for a piece that is added up, else its place in the result."""
        step, number = self._step(seq)
        start, end = self._span(step, number)
        if step < len(self.chunks) - 1:
            return octets(self._scratch, 0, end - start)
        return octets(self.result, start, end)

    def on_received(self, seq: int) -> Iterator[Piece]:
        """Add a piece up or keep it, and pass it on unless the step was the last."""
        step, number = self._step(seq)
        start, end = self._span(step, number)
        nodes = len(self.chunks)
        if step < nodes - 1:
            np.add(self._scratch[: end - start], self.source[start:end], out=self.result[start:end])
        if (step >= nodes - 2 and self.reduces) or step >= nodes - 1:
            self._final.append((start, end))
        self._next += 1
        if step < self._last:
            yield Piece(seq + self._pieces, octets(self.result, start, end), number == 0)

    @property
    def done(self) -> bool:
        """True if all pieces have come."""
        return self._next == (self._last + 1) * self._pieces

    def final(self) -> list[Span]:
        """Return the elements that have all nodes' parts."""
        return merged(self._final)

    def _step(self, seq: int) -> tuple[int, int]:
        """Return the step of a piece and its number in it. ValueError if it is not due."""
        if seq != self._next or self.done:
            raise ValueError(f"piece {seq} came, {self._next} was due")
        return divmod(seq, self._pieces)

    def _span(self, step: int, number: int) -> Span:
        """Return the range of a piece that comes in `step`; what goes out in a step came in the one before."""
        start, end = self.chunks[(self.rank - 2 - step) % len(self.chunks)]
        length = end - start
        return start + length * number // self._pieces, start + length * (number + 1) // self._pieces


class _InOrder:
    """Task whose pieces all come once, in the order of `_spans`."""

    result: Array
    _spans: list[Span]
    _received_count: int = 0

    def buffer_for(self, seq: int) -> memoryview:
        """Return the place of piece `seq` in the result."""
        if seq != self._received_count or self._received_count == len(self._spans):
            raise ValueError(f"piece {seq} came, {self._received_count} was due")
        return octets(self.result, *self._spans[seq])

    @property
    def done(self) -> bool:
        """True if all pieces have come."""
        return self._received_count == len(self._spans)

    def final(self) -> list[Span]:
        """Return the elements that have come."""
        return merged(self._spans[: self._received_count])


@dataclass
class Tree(_InOrder):
    """Tree over `parts`: ranges, each with the rank whose elements they are, or ALL where they are added up.

    Pieces go to the rail's aggregator and come back added up, no more than `WINDOW` ahead of what came back.
    """

    rank: int
    parts: Sequence[tuple[Span, int]]
    source: Array
    result: Array
    piece_bytes: int = PIECE_BYTES
    _sent: int = 0

    def __post_init__(self) -> None:
        length = sum(end - start for (start, end), _ in self.parts)
        longest_bytes = min(self.piece_bytes, TREE_PIECE_BYTES)
        longest = piece_length(length, self.source.itemsize, longest_bytes, TREE_OVERLAP)
        self._spans: list[Span] = []
        self._owners: list[int] = []
        for (start, end), owner in self.parts:
            spans = pieces(start, end - start, longest)
            self._spans += spans
            self._owners += [owner] * len(spans)

    def on_received(self, seq: int) -> Iterator[Piece]:
        """Count a piece, and yield those that the window lets go."""
        self._received_count += 1
        yield from self.begin()

    def begin(self) -> Iterator[Piece]:
        """Yield this node's pieces that the window lets go."""
        while self._sent < min(len(self._spans), self._received_count + WINDOW):
            (start, end), owner = self._spans[self._sent], self._owners[self._sent]
            if owner == self.rank and self._sent > self._received_count and self._owners[self._sent - 1] != owner:
                # what others send before must be back, or this would overtake it
                return
            if owner in (ALL, self.rank):
                yield Piece(self._sent, octets(self.source, start, end), self._sent == 0, owner == ALL)
            self._sent += 1


@dataclass
class Relay(_InOrder):
    """Relay of `root`'s elements `start` to `end` to every node, round the ring."""

    rank: int
    nodes: int
    root: int
    span: Span
    result: Array
    piece_bytes: int = PIECE_BYTES

    def __post_init__(self) -> None:
        start, end = self.span
        self._spans = pieces(start, end - start, piece_length(end - start, self.result.itemsize, self.piece_bytes))

    def begin(self) -> Iterator[Piece]:
        """Yield all pieces on the root, none elsewhere."""
        if self.rank == self.root:
            for seq, (start, end) in enumerate(self._spans):
                yield Piece(seq, octets(self.result, start, end), seq == 0)
            self._received_count = len(self._spans)

    def on_received(self, seq: int) -> Iterator[Piece]:
        """Pass a piece on, unless the next node is the root."""
        self._received_count += 1
        if (self.rank + 1) % self.nodes != self.root:
            yield Piece(seq, octets(self.result, *self._spans[seq]), seq == 0)


Task = Ring | Tree | Relay
"""Work of one rail in an operation. `final` are the elements of the result that are right and stay so."""
