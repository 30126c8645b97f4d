"""Ranks that do the same: a few are run, and the others are derived from them.

Communicators that the same line of code makes for different ranks are one *family*, such as `tp`: a rank is in at most
one group of a family. Written with families and places in place of ranks, the programs of most ranks are equal. Only
sends and receives depend on a rank's place, so ranks that have the same places in the families of their sends and
receives are taken to be alike. Ranks beyond the necessary ones are run as samples: a program that differs from another
of its kind refutes the assumption.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railyard.core.errors import BadInput

WORLD = "world"
UNNAMED = ("", "undefined", "default_pg")  # PyTorch's descriptions of groups without one
Operation = dict[str, Any]
Families = Mapping[str, tuple[tuple[int, ...], ...]]
Program = list[Operation]


@dataclass(frozen=True)
class Recorded:
    """One rank that was run, with its operations as `Recorder.close` returns them."""

    rank: int
    operations: list[Operation]
    communicators: list[dict[str, Any]]
    steps: list[int]


def family_names(communicators: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the family of each communicator, in their order."""
    names: list[str] = []
    members: dict[str, set[int]] = {}
    latest: dict[tuple[str, str], str] = {}
    for index, communicator in enumerate(communicators):
        ranks = set(communicator["ranks"])
        description = str(communicator["description"])
        key = (str(communicator["place"]), description)
        name = latest.get(key, "")
        # a rank twice: the same line makes a family once more
        if not name or members[name] & ranks:
            name = _new_name(index, description, members)
            latest[key] = name
            members[name] = set()
        members[name] |= ranks
        names.append(name)
    return names


def _new_name(index: int, description: str, used: Mapping[str, object]) -> str:
    if index == 0:
        return WORLD
    base = description.removeprefix("mesh_") if description not in UNNAMED else "group"
    base = "".join(character if character.isalnum() or character in "_-." else "-" for character in base)[:60]
    name = base
    number = 2
    while name in used:
        name = f"{base}-{number}"
        number += 1
    return name


def families_of(records: Sequence[Recorded]) -> Families:
    """Return the groups of each family, from all ranks that were run."""
    groups: dict[str, dict[tuple[int, ...], None]] = {}
    for record in records:
        for name, communicator in zip(family_names(record.communicators), record.communicators, strict=True):
            groups.setdefault(name, {})[tuple(communicator["ranks"])] = None
    return {name: tuple(sorted(groups_of_name)) for name, groups_of_name in groups.items()}


def program_of(record: Recorded, operations: Sequence[Operation]) -> Program:
    """Return operations of a rank with the names of families in place of its communicators' numbers."""
    names = family_names(record.communicators)
    program: Program = []
    for operation in operations:
        renamed = dict(operation)
        if "communicator" in renamed:
            renamed["communicator"] = names[renamed["communicator"]]
        program.append(renamed)
    return program


class Symmetry:
    """The kinds of ranks of a job. `programs`: of the ranks that were run."""

    def __init__(self, ranks: int, families: Families, programs: Mapping[int, Program]) -> None:
        self._ranks = ranks
        self._families = families
        self._programs = programs
        self._deciding = _families_of_messages(programs.values())

    def kind(self, rank: int) -> tuple[int, ...]:
        """Return the places of a rank in the families of sends and receives; -1 where it is in none of its groups."""
        places: list[int] = []
        for name in self._deciding:
            place = -1
            for group in self._families[name]:
                if rank in group:
                    place = group.index(rank)
            places.append(place)
        return tuple(places)

    def missing(self) -> list[int]:
        """Return a rank of each kind of which none was run."""
        first_of_kind: dict[tuple[int, ...], int] = {}
        run_kinds = {self.kind(rank) for rank in self._programs}
        for rank in range(self._ranks):
            kind = self.kind(rank)
            if kind not in run_kinds:
                first_of_kind.setdefault(kind, rank)
        return list(first_of_kind.values())

    def sources(self, script: str) -> dict[int, int]:
        """Return for each rank the rank that was run whose program it has.

        BadInput if two ranks of a kind that were run differ, and others would have to be derived from them; or if a
        derived rank is in no group of a family that it needs.
        """
        runs_of_kind: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(self._programs):
            runs_of_kind.setdefault(self.kind(rank), []).append(rank)
        sources: dict[int, int] = {}
        for rank in range(self._ranks):
            if rank in self._programs:
                sources[rank] = rank
                continue
            run = runs_of_kind[self.kind(rank)]
            for other in run[1:]:
                self._check_equal(script, run[0], other)
            sources[rank] = run[0]
            self._check_groups(script, rank, run[0])
        return sources

    def _check_equal(self, script: str, first: int, other: int) -> None:
        program = self._programs[first]
        other_program = self._programs[other]
        if program == other_program:
            return
        number = 0
        for expected, operation in zip(program, other_program, strict=False):
            if expected != operation:
                break
            number += 1
        ours = _describe(program, number)
        theirs = _describe(other_program, number)
        difference = f"differs from rank {first} at operation {number + 1} ({theirs}, not {ours})"
        remedy = "run them all, --only all"
        if "all-to-allv" in ours:
            remedy += ", or route evenly, --routing balanced"
        raise BadInput(script, f"rank {other}", f"{difference}, so ranks can't be derived: {remedy}")

    def _check_groups(self, script: str, rank: int, source: int) -> None:
        """BadInput if a rank would call a family that it has no group of, as when only members make their groups."""
        for name in {operation["communicator"] for operation in self._programs[source] if "communicator" in operation}:
            if not any(rank in group for group in self._families[name]):
                allowed = f"is in no communicator {name} that rank {source} knows of: run all ranks, --only all"
                raise BadInput(script, f"rank {rank}", allowed)


def _families_of_messages(programs: Any) -> list[str]:
    names: dict[str, None] = {}
    for program in programs:
        for operation in program:
            if operation["op"] in ("send", "recv"):
                names[operation["communicator"]] = None
    return sorted(names)


def _describe(program: Program, number: int) -> str:
    if number >= len(program):
        return "nothing"
    operation = program[number]
    if operation["op"] == "compute":
        return f"{operation['flops']:,} FLOPs"
    size = operation.get("bytes", sum(operation.get("sends", ())))
    return f"{operation['op']} of {size:,} bytes in {operation['communicator']}"
