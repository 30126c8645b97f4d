"""What faults left behind: what a fabric's kernels have after the last repair, held against what they had. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

Marks = Mapping[str, frozenset[str]]
"""What each node's kernel has, by the node's name: a line for each route, neighbour, interface and table of rules."""
NAMED: Final = 3
"""So many are told by name."""


def leftovers(before: Marks, now: Marks) -> list[str]:
    """A line for each thing that is there and wasn't, or isn't and was. The order in which kernels tell is nothing."""
    return [line for node in sorted(before) for line in _differences(node, before[node], now[node])]


def _differences(node: str, before: frozenset[str], now: frozenset[str]) -> Iterator[str]:
    yield from (f"{node} still has {mark}" for mark in sorted(now - before))
    yield from (f"{node} still lacks {mark}" for mark in sorted(before - now))


def said(left: list[str]) -> str:
    """All of it in a line, as far as there is room."""
    more = f" (and {len(left) - NAMED} more)" if len(left) > NAMED else ""
    return "; ".join(left[:NAMED]) + more
