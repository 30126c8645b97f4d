"""A recording as the data of a trace file (workloads/traces/formats/recorded.py reads it), and its totals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from railyard.workloads.recording.launcher import Recording
from railyard.workloads.recording.symmetry import Program
from railyard.workloads.traces import common
from railyard.workloads.traces.formats import recorded
from railyard.workloads.traces.steps import steps


@dataclass(frozen=True)
class CommunicatorTotal:
    """Operations and bytes of an iteration over the groups of one name, of the rank that sends most."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    operations: Mapping[str, tuple[int, int]]


def trace_data(recording: Recording) -> dict[str, Any]:
    """Return the content of the trace file."""
    request = recording.request
    used = _used_communicators(recording)
    iteration = recording.iteration
    data: dict[str, Any] = {
        "format": recorded.FORMAT,
        "version": recorded.VERSION,
        "command": [request.command.script, *request.command.arguments],
        "torch": recording.torch_version,
        "ranks": request.ranks,
        "ranks_per_node": request.ranks_per_node,
        "run": sorted(recording.programs),
        "contents": "none of large tensors" if request.fake else "real",
        "routing": "balanced" if request.balanced else "real",
        "steps": None if iteration is None else [iteration.first + 1, iteration.last],
        "notes": notes(recording),
        "communicators": {name: [list(group) for group in recording.families[name]] for name in used},
        "programs": [],
    }
    for ranks, program in _programs(recording):
        data["programs"].append({"ranks": ranks, "operations": program})
    return data


def check_agreement(content: bytes) -> None:
    """Raise BadInput unless the ranks of a trace file can run: all call the same, and none waits for ever.

    Calls with large tensors don't wait for each other while they are recorded, so a deadlock of them shows here.
    """
    files = common.Files(recorded.FILE, (recorded.FILE,), (content,), shared=True)
    unused = common.ReplayOn(gpus=1, rails=1, flops_per_s=1.0, groups={})
    steps(common.TRACE_FORMATS["railyard"].read(files, unused))


def notes(recording: Recording) -> list[str]:
    """Return what a reader of the trace must know of how it was made."""
    run = sorted(recording.programs)
    derived = recording.request.ranks - len(run)
    lines: list[str] = []
    if derived:
        shown = ", ".join(str(rank) for rank in run[:8]) + (", ..." if len(run) > 8 else "")
        lines.append(f"recorded by running ranks {shown}; {derived:,} ranks are derived from them")
    uneven = {
        operation["communicator"]
        for program in recording.programs.values()
        for operation in program
        if operation["op"] == "all-to-allv"
    }
    if recording.request.balanced:
        lines.append("topk takes its columns in turn, so that every expert gets the same number of tokens")
    if uneven:
        names = ", ".join(sorted(uneven))
        lines.append(f"splits of all-to-alls on {names} are those of the recorded data, and others with other data")
    return lines


def _programs(recording: Recording) -> list[tuple[list[int], Program]]:
    """Return each different program with the ranks that have it."""
    programs: list[tuple[list[int], Program]] = []
    number_of_run: dict[int, int] = {}
    for rank in sorted(recording.programs):
        program = recording.programs[rank]
        equal = [number for number, (_, other) in enumerate(programs) if other == program]
        if not equal:
            programs.append(([], program))
        number_of_run[rank] = equal[0] if equal else len(programs) - 1
    for rank, source in sorted(recording.sources.items()):
        programs[number_of_run[source]][0].append(rank)
    return programs


def _used_communicators(recording: Recording) -> list[str]:
    """Return the names of the communicators that something is sent over, in the order of their making."""
    used: set[str] = set()
    for program in recording.programs.values():
        used.update(operation["communicator"] for operation in program if "communicator" in operation)
    return [name for name in recording.families if name in used]


def data_bytes(operation: Mapping[str, Any], ranks: int) -> int:
    """Return the bytes of an operation: of an all-to-all, of a rank's parts for all `ranks` together."""
    if "sends" in operation:
        return sum(operation["sends"])
    if operation["op"] == "all-to-all":
        return int(operation["bytes"]) * ranks
    return int(operation.get("bytes", 0))


def totals(recording: Recording) -> list[CommunicatorTotal]:
    """Return for each communicator the operations and bytes of the rank that sends most over it."""
    result: list[CommunicatorTotal] = []
    for name in _used_communicators(recording):
        busiest: dict[str, tuple[int, int]] = {}
        for program in recording.programs.values():
            of_rank = _totals_of_program(program, name, len(recording.families[name][0]))
            if _sum(of_rank) > _sum(busiest) or not busiest:
                busiest = of_rank
        result.append(CommunicatorTotal(name, recording.families[name], busiest))
    return result


def _totals_of_program(program: Program, name: str, ranks: int) -> dict[str, tuple[int, int]]:
    """Return the number and the bytes of each kind of operation of a rank on one communicator."""
    by_op: dict[str, tuple[int, int]] = {}
    for operation in program:
        if operation.get("communicator") == name:
            count, size = by_op.get(operation["op"], (0, 0))
            by_op[operation["op"]] = (count + 1, size + data_bytes(operation, ranks))
    return by_op


def _sum(by_op: Mapping[str, tuple[int, int]]) -> int:
    return sum(size for _, size in by_op.values())
