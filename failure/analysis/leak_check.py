"""Compare the kernel state of a fabric after the last repair with the state before the first fault. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

StateSnapshot = Mapping[str, frozenset[str]]
"""Kernel state by node: a line for each route, neighbour, interface and table of rules."""
MAX_LISTED: Final = 3
"""The number of differences that a message lists."""


def state_differences(before: StateSnapshot, now: StateSnapshot) -> list[str]:
    """Return a line for each difference. The order of entries doesn't matter."""
    return [line for node in sorted(before) for line in _differences(node, before[node], now[node])]


def _differences(node: str, before: frozenset[str], now: frozenset[str]) -> Iterator[str]:
    yield from (f"{node} still has {entry}" for entry in sorted(now - before))
    yield from (f"{node} still lacks {entry}" for entry in sorted(before - now))


def summarize(differences: list[str]) -> str:
    """Return the first differences in one line."""
    more = f" (and {len(differences) - MAX_LISTED} more)" if len(differences) > MAX_LISTED else ""
    return "; ".join(differences[:MAX_LISTED]) + more
