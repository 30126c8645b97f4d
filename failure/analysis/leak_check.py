"""What faults left behind: what a fabric's kernels have after the last repair, held against what they had. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

StateSnapshot = Mapping[str, frozenset[str]]
"""What each node's kernel has, by the node's name: a line for each route, neighbour, interface and table of rules."""
MAX_LISTED: Final = 3
"""So many are told by name."""


def state_differences(before: StateSnapshot, now: StateSnapshot) -> list[str]:
    """A line for each thing that is there and wasn't, or isn't and was. The order in which kernels tell is nothing."""
    return [line for node in sorted(before) for line in _differences(node, before[node], now[node])]


def _differences(node: str, before: frozenset[str], now: frozenset[str]) -> Iterator[str]:
    yield from (f"{node} still has {entry}" for entry in sorted(now - before))
    yield from (f"{node} still lacks {entry}" for entry in sorted(before - now))


def summarize(differences: list[str]) -> str:
    """All of it in a line, as far as there is room."""
    more = f" (and {len(differences) - MAX_LISTED} more)" if len(differences) > MAX_LISTED else ""
    return "; ".join(differences[:MAX_LISTED]) + more
