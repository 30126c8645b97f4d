"""Which GPUs send to which, and how many bytes: pair by pair, or, where all of a group send alike, by the group.

An all-to-all among 16,384 GPUs has 268 million pairs: the group and the bytes of one pair say as much, in 64 kB.
Both forms have the same sums; `src`, `dst` and `bytes` of the short one are made when asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from railyard.workloads.placement.layout import Numbers

Bytes = NDArray[np.float64]
Scope = Literal["HB domain", "rail", "across rails"]
MAX_PAIRS: Final = 2**24
"""Pairs that an all-to-all is spelled out to: all of 4,096 GPUs, which takes 0.3 GB."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """`bytes[i]` go from GPU number `src[i]` to `dst[i]`: each pair is there once, and no GPU with itself."""

    src: Numbers
    dst: Numbers
    bytes: Bytes

    @property
    def count(self) -> int:
        return self.src.size

    @property
    def total(self) -> float:
        """Bytes of all pairs."""
        return float(self.bytes.sum())

    @property
    def min_bytes(self) -> float:
        """Bytes of the pair that has fewest; ValueError if there is none."""
        return float(self.bytes.min())

    @property
    def max_bytes(self) -> float:
        """Bytes of the pair that has most; ValueError if there is none."""
        return float(self.bytes.max())

    def where(self, mask: NDArray[np.bool_]) -> "Pairs":
        """Those of the mask."""
        return Pairs(self.src[mask], self.dst[mask], self.bytes[mask])

    def scaled(self, factor: float) -> "Pairs":
        """The same pairs with that many times the bytes."""
        return replace(self, bytes=self.bytes * factor)

    def between_first(self, gpus: int) -> "Pairs":
        """Those between the first GPUs."""
        return self.where((self.src < gpus) & (self.dst < gpus))

    def at(self, scope: Scope, rails: int) -> "Pairs":
        """Those in this place, with HB domains of `rails` GPUs."""
        return self.where(_scope_mask(scope, self.src, self.dst, rails))


@dataclass(frozen=True, eq=False)
class Uniform:
    """In each row of `groups`, every GPU sends `bytes_per_pair` bytes to every other.

    `scope` and `rails`: only to those in that place, with HB domains of `rails` GPUs.
    """

    groups: Numbers
    bytes_per_pair: float
    scope: Scope | None = None
    rails: int = 1

    @cached_property
    def count(self) -> int:
        """Pairs, without spelling them out."""
        rows, n = self.groups.shape
        all_pairs: int = rows * n * (n - 1)
        if self.scope is None:
            return all_pairs
        in_domains, on_rails = (
            _count_equal_pairs(self.groups // self.rails),
            _count_equal_pairs(self.groups % self.rails),
        )
        return {"HB domain": in_domains, "rail": on_rails, "across rails": all_pairs - in_domains - on_rails}[
            self.scope
        ]

    @property
    def total(self) -> float:
        """Bytes of all pairs."""
        return self.count * self.bytes_per_pair

    @property
    def min_bytes(self) -> float:
        """Bytes of every pair."""
        return self.bytes_per_pair

    @property
    def max_bytes(self) -> float:
        """Bytes of every pair."""
        return self.bytes_per_pair

    @property
    def src(self) -> Numbers:
        return self.expanded.src

    @property
    def dst(self) -> Numbers:
        return self.expanded.dst

    @property
    def bytes(self) -> Bytes:
        return self.expanded.bytes

    @cached_property
    def expanded(self) -> Pairs:
        """Pair by pair; ValueError above `MAX_PAIRS`."""
        return self._pairs(list(self.groups))

    def scaled(self, factor: float) -> "Uniform":
        """The same pairs with that many times the bytes."""
        return replace(self, bytes_per_pair=self.bytes_per_pair * factor)

    def between_first(self, gpus: int) -> Pairs:
        """Those between the first GPUs, pair by pair; ValueError above `MAX_PAIRS`."""
        return self._pairs([row[row < gpus] for row in self.groups])

    def at(self, scope: Scope, rails: int) -> "Uniform":
        """Those in this place, with HB domains of `rails` GPUs."""
        if self.scope is not None:
            raise ValueError(f"these are already only those of one place, {self.scope}")
        return replace(self, scope=scope, rails=rails)

    def _pairs(self, rows: Sequence[Numbers]) -> Pairs:
        pair_count = sum(row.size * (row.size - 1) for row in rows)
        if pair_count > MAX_PAIRS:
            raise ValueError(
                f"{pair_count:,} pairs of an all-to-all are too many to spell out: count and total say as much, "
                f"or ask for those among fewer GPUs; the limit is {MAX_PAIRS:,}"
            )
        src = np.concatenate([np.repeat(row, max(0, row.size - 1)) for row in rows])
        dst = np.concatenate([np.tile(row, (row.size, 1))[~np.eye(row.size, dtype=bool)] for row in rows])
        found = Pairs(src, dst, np.full(src.size, self.bytes_per_pair))
        return found if self.scope is None else found.at(self.scope, self.rails)


def _scope_mask(scope: Scope, src: Numbers, dst: Numbers, rails: int) -> NDArray[np.bool_]:
    same_domain = src // rails == dst // rails
    if scope == "HB domain":
        return np.asarray(same_domain)
    same_rail = src % rails == dst % rails
    return np.asarray(~same_domain & (same_rail if scope == "rail" else ~same_rail))


def _count_equal_pairs(labels: Numbers) -> int:
    """Ordered pairs of different columns that have the same label, in all rows."""
    ordered = np.sort(labels, axis=1)
    starts = np.ones(ordered.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    runs = np.diff(np.append(np.flatnonzero(starts), ordered.size)).astype(np.int64)
    return int((runs * (runs - 1)).sum())
