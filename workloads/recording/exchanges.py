"""All-to-alls with splits that are even after all.

Scripts give splits to every all-to-all of a mixture of experts. Whether an exchange is even can only be said of all its
ranks together: on a fabric, an even one can take the algorithms for such.
"""

from collections.abc import Mapping
from typing import Any

from railyard.workloads.recording.symmetry import Program


def with_even_exchanges(programs: Mapping[int, Program]) -> dict[int, Program]:
    """Return the programs of ranks, with each all-to-all whose splits are the same number everywhere without splits."""
    sizes_of_turn: dict[tuple[str, int], set[int]] = {}
    for program in programs.values():
        for key, operation in _exchanges(program):
            sizes_of_turn.setdefault(key, set()).update(operation["sends"], operation["receives"])
    result: dict[int, Program] = {}
    for rank, program in programs.items():
        changed = list(program)
        key_of_operation = {id(operation): key for key, operation in _exchanges(program)}
        for position, operation in enumerate(program):
            if id(operation) in key_of_operation:
                sizes = sizes_of_turn[key_of_operation[id(operation)]]
                if len(sizes) == 1:
                    changed[position] = _even(operation, min(sizes))
        result[rank] = changed
    return result


def _exchanges(program: Program) -> list[tuple[tuple[str, int], dict[str, Any]]]:
    """Return the all-to-alls with splits, by their communicator and turn."""
    turns: dict[str, int] = {}
    result: list[tuple[tuple[str, int], dict[str, Any]]] = []
    for operation in program:
        if operation["op"] == "all-to-allv":
            name = operation["communicator"]
            turns[name] = turns.get(name, 0) + 1
            result.append(((name, turns[name]), operation))
    return result


def _even(operation: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return an all-to-all without splits. `size`: bytes of each pair."""
    even = {key: value for key, value in operation.items() if key not in ("sends", "receives")}
    return {**even, "op": "all-to-all", "bytes": size}
