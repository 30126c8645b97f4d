"""Railyard's own traces, as `railyard record` writes them: one file for all ranks, docs/recording.md describes it.

Communicators have names, each with groups of ranks; a rank is in at most one group of a name. A program is written once
for all ranks that run it: it names communicators, and counts roots and peers by their place in the rank's group.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces import common

FILE: Final = "trace.json"
FORMAT: Final = "railyard-trace"
VERSION: Final = 1
COLLECTIVES: Final[tuple[common.Op, ...]] = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "all-to-allv", "all-gatherv", "reduce-scatterv",
    "broadcast", "reduce", "gather", "scatter", "barrier",
)  # fmt: skip
WITH_SPLITS: Final = ("all-to-allv", "all-gatherv", "reduce-scatterv")
WITH_ROOT: Final = ("broadcast", "reduce", "gather", "scatter")
OPERATIONS: Final = ("compute", "send", "recv", *COLLECTIVES)
Groups = Mapping[str, tuple[tuple[int, ...], ...]]


@common.TRACE_FORMATS.register("railyard")
class Recorded(common.TraceFormat):
    """Recordings of training scripts."""

    folder_file = FILE

    def recognizes(self, files: common.Files) -> bool:
        """Return whether it is JSON that says so in its first key."""
        start = common.text_of(files.content[0][:256], files.names[0]) if files.shared else ""
        return f'"{FORMAT}"' in start

    def read(self, files: common.Files, on: common.ReplayOn) -> common.Trace:
        """Return the trace; computing takes its operations at the GPU's rate."""
        where = files.names[0]
        data = common.parse_json(files.content[0], where)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise BadInput(where, "format", f"must be {FORMAT!r}")
        if data.get("version") != VERSION:
            raise BadInput(where, data.get("version"), f"is its version: {VERSION} can be read")
        ranks = common.parse_whole(where, "ranks", data.get("ranks"), 1, common.MAX_OPERATIONS)
        groups = _groups(where, data.get("communicators"), ranks)
        nodes_of_rank: dict[int, tuple[common.Node, ...]] = {}
        total = 0
        for number, program in enumerate(_list(where, data, "programs")):
            place = f"{where}: program {number}"
            members = common.ranks_of(place, _item(place, program, "ranks"), ranks)
            operations = _list(place, program, "operations")
            total += len(members) * len(operations)
            common.check_operations(place, 1, total)
            for rank in members:
                if rank in nodes_of_rank:
                    raise BadInput(place, rank, "is a rank of another program too")
                reader = _RankReader(rank, groups, on.flops_per_s, f"{where}: rank {rank}")
                nodes_of_rank[rank] = tuple(reader.node(i, operation) for i, operation in enumerate(operations))
        for rank in range(ranks):
            if rank not in nodes_of_rank:
                raise BadInput(where, rank, "is a rank without a program")
        in_order = tuple(nodes_of_rank[rank] for rank in range(ranks))
        notes = tuple(str(note) for note in data.get("notes", ()))
        per_node = data.get("ranks_per_node")
        if per_node is not None:
            per_node = common.parse_whole(where, "ranks_per_node", per_node, 1)
        return common.Trace(files.name, in_order, _rewriter(data), notes, per_node)


def _rewriter(data: Mapping[str, Any]) -> Callable[[common.AllMeasured], dict[str, bytes]]:
    """Return what writes the file again with `measured`: of each rank and operation its start and duration, s."""

    def rewrite(measured: common.AllMeasured) -> dict[str, bytes]:
        by_rank: dict[str, dict[str, list[float]]] = {}
        for (rank, position), operation in measured.items():
            by_rank.setdefault(str(rank), {})[str(position)] = [operation.start_s, operation.seconds]
        return {FILE: encode({**data, "measured": by_rank})}

    return rewrite


def encode(data: Mapping[str, Any]) -> bytes:
    """Return the bytes of a trace file: a line for each operation, so that two recordings can be compared by diff."""
    lines_of_fields: list[str] = []
    for key, value in data.items():
        if key not in ("programs", "communicators"):
            lines_of_fields.append(f" {json.dumps(key)}: {json.dumps(value)}")
    communicators: list[str] = []
    for name, groups in data["communicators"].items():
        communicators.append(f"  {json.dumps(name)}: {json.dumps(groups)}")
    lines_of_fields.append(' "communicators": {\n' + ",\n".join(communicators) + "\n }")
    text = "{\n" + ",\n".join(lines_of_fields) + ',\n "programs": [\n'
    programs: list[str] = []
    for program in data["programs"]:
        lines = ",\n    ".join(json.dumps(operation) for operation in program["operations"])
        others = json.dumps({key: value for key, value in program.items() if key != "operations"})[:-1]
        programs.append(f'  {others}, "operations": [\n    {lines}\n  ]}}')
    return (text + ",\n".join(programs) + "\n ]\n}\n").encode()


def _item(where: str, data: Any, key: str) -> Any:
    if not isinstance(data, dict) or key not in data:
        raise BadInput(where, key, "is missing")
    return data[key]


def _list(where: str, data: Any, key: str) -> list[Any]:
    value = _item(where, data, key)
    if not isinstance(value, list):
        raise BadInput(where, key, "must be a list")
    return value


def _groups(where: str, data: object, ranks: int) -> Groups:
    """Return the groups of each communicator. BadInput for a rank that is twice in those of one."""
    if not isinstance(data, dict):
        raise BadInput(where, "communicators", "must be names with lists of groups")
    groups: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name, listed in data.items():
        place = f"{where}: communicator {name}"
        if not isinstance(listed, list):
            raise BadInput(place, listed, "must be a list of groups of ranks")
        groups[name] = tuple(common.ranks_of(place, group, ranks) for group in listed)
        members: set[int] = set()
        for group in groups[name]:
            if members & set(group):
                raise BadInput(place, min(members & set(group)), "is a rank in two of its groups")
            members |= set(group)
    return groups


class _RankReader:
    """Makes the operations of a program those of one rank."""

    def __init__(self, rank: int, groups: Groups, flops_per_s: float, where: str) -> None:
        self._rank = rank
        self._flops_per_s = flops_per_s
        self._where = where
        self._group_of: dict[str, tuple[int, ...]] = {}
        for name, groups_of_name in groups.items():
            for group in groups_of_name:
                if rank in group:
                    self._group_of[name] = group

    def node(self, number: int, data: Any) -> common.Node:
        """Return operation `number`. BadInput if it makes no sense."""
        where = f"{self._where}: operation {number}"
        after: list[int] = []
        for position in _list(where, data, "after"):
            after.append(common.parse_whole(where, "position", position, most=number - 1 if number else 0))
        if number == 0 and after:
            raise BadInput(where, after, "is what it waits for, and must come before it")
        op = str(_item(where, data, "op"))
        if op not in OPERATIONS:
            raise BadInput(where, op, unknown_name_hint(op, OPERATIONS))
        if op == "compute":
            flops = common.parse_whole(where, "flops", _item(where, data, "flops"))
            return common.Node(where, common.Gap(flops / self._flops_per_s), tuple(after))
        action = self._action(where, op, data)
        return common.Node(f"{where} ({op} in {data['communicator']})", action, tuple(after))

    def _action(self, where: str, op: str, data: Mapping[str, Any]) -> common.Action:
        name = str(_item(where, data, "communicator"))
        if name not in self._group_of:
            raise BadInput(where, name, f"is a communicator that rank {self._rank} is in no group of")
        group = self._group_of[name]
        if op in ("send", "recv"):
            peer = group[self._place(where, data, "peer", group)]
            if peer == self._rank:
                raise BadInput(where, peer, "must be another rank: it is its peer")
            size = common.parse_whole(where, "bytes", _item(where, data, "bytes"))
            tag = common.parse_whole(where, "tag", data.get("tag", 0))
            return common.Send(peer, size, tag) if op == "send" else common.Recv(peer, size, tag)
        collective = COLLECTIVES[COLLECTIVES.index(op)]
        if op == "barrier":
            return common.Call(collective, group, group_name=name)
        if op in WITH_SPLITS:
            sends = self._splits(where, data, "sends", group)
            receives = self._splits(where, data, "receives", group)
            return common.Call(collective, group, sends=sends, receives=receives, group_name=name)
        size = common.parse_whole(where, "bytes", _item(where, data, "bytes"))
        root = group[self._place(where, data, "root", group)] if op in WITH_ROOT else None
        return common.Call(collective, group, size, root, group_name=name)

    def _place(self, where: str, data: Mapping[str, Any], key: str, group: tuple[int, ...]) -> int:
        return common.parse_whole(where, key, _item(where, data, key), most=len(group) - 1)

    def _splits(self, where: str, data: Mapping[str, Any], key: str, group: tuple[int, ...]) -> tuple[int, ...]:
        listed = _list(where, data, key)
        if len(listed) != len(group):
            raise BadInput(where, listed, f"is its {key}: one number for each of the group's {len(group)} ranks")
        return tuple(common.parse_whole(where, key, size) for size in listed)
