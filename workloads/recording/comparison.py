"""A recording compared with the same script really run over Gloo, operation for operation."""

from dataclasses import dataclass, replace

from railyard.workloads.recording.launcher import Recording, Request
from railyard.workloads.recording.symmetry import Program


@dataclass(frozen=True)
class Comparison:
    """Operations that were compared, and the first that differs: "" if none does."""

    ranks: int
    operations: int
    difference: str


def real_request(request: Request, ranks: int) -> Request:
    """Return the request of a real run of all ranks."""
    per_node = min(request.ranks_per_node, ranks)
    everyone = tuple(range(ranks))
    return replace(request, ranks=ranks, ranks_per_node=per_node, only=everyone, real=True, fake=False)


def recorded_request(request: Request, ranks: int) -> Request:
    """Return the request of the recording to compare it with; --only counts if it means all ranks."""
    per_node = min(request.ranks_per_node, ranks)
    is_all = request.only is not None and len(request.only) == request.ranks
    only = tuple(range(ranks)) if is_all else None
    return replace(request, ranks=ranks, ranks_per_node=per_node, only=only, fake=False)


def compare(recorded: Recording, real: Recording) -> Comparison:
    """Compare all ranks: derived ones too. Each operation must be equal in all its keys, and in what it waits for."""
    count = 0
    for rank, source in sorted(recorded.sources.items()):
        expected = recorded.programs[source]
        program = real.programs[rank]
        difference = _first_difference(rank, expected, program)
        if difference:
            return Comparison(len(recorded.sources), count, difference)
        count += len(program)
    if recorded.families != real.families:
        return Comparison(len(recorded.sources), count, "communicators have other ranks")
    return Comparison(len(recorded.sources), count, "")


def _first_difference(rank: int, expected: Program, program: Program) -> str:
    for number, (operation, real_operation) in enumerate(zip(expected, program, strict=False)):
        if operation != real_operation:
            return f"rank {rank}: operation {number}: recorded {operation}, really {real_operation}"
    if len(expected) != len(program):
        return f"rank {rank}: recorded {len(expected)} operations, really {len(program)}"
    return ""
