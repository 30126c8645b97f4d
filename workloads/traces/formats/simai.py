"""SimAI's workload text, as AICB generates it, and ASTRA-sim's before it: one file, the same for all ranks.

The first line has the parallelism, the second the number of layers, each other a layer in 12 columns: name, dependency
(unused), then computing time (ns), collective and bytes of the forward pass, of the input gradient and of the weight
gradient, and the update's time. Ranks are numbered TP first, then PP, then DP, as SimAI does (MockNcclGroup.cc); EP
groups are runs of a DP group, DP_EP groups its ranks across those. Bytes are the whole buffer of a collective, of an
AllGather the gathered one; a pair of an all-to-all gets its share.

What runs when is SimAI's (Workload.cc): layers forward; then backward, each with the input gradient, its collective
waited for, the weight gradient, its collective not waited for. One pass.
"""

import csv
import io
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, get_args

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces import common

Policy = Literal[
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA",
    "DATA", "MODEL", "MICRO",
]  # fmt: skip
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
OPS: Final[dict[str, common.Op]] = {
    "ALLREDUCE": "all-reduce",
    "ALLGATHER": "all-gather",
    "REDUCESCATTER": "reduce-scatter",
    "ALLTOALL": "all-to-all",
    "BROADCAST": "broadcast",
}
COLUMNS: Final = 12
NANOSECONDS: Final = 1e9  # in a second

Part = Literal["fwd", "ig", "wg"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
Domain = Literal["model", "data", "EP", "DP_EP"]


class _Comm(NamedTuple):
    op: common.Op
    domain: Domain
    bytes: int


Action = common.Gap | _Comm


class _Layer(NamedTuple):
    """A line: the computing and the collective of each part, and the update, where there is one."""

    line: int
    name: str
    gaps: dict[Part, common.Gap | None]
    comms: dict[Part, _Comm | None]
    update: common.Gap | None


@dataclass(frozen=True)
class _Header:
    """Division of the ranks. `group_size`: the model's (or, for HYBRID_MODEL_DATA, the data's) ranks are
    neighbours."""

    policy: Policy
    ranks: int
    group_size: int
    stages: int
    experts: int
    checkpoints: tuple[int, ...]
    initiates: tuple[int, ...]

    def group(self, rank: int, domain: Domain) -> tuple[int, ...]:
        """The ranks with which a rank shares a collective."""
        neighbours = tuple(range(rank - rank % self.group_size, rank - rank % self.group_size + self.group_size))
        stride = self.group_size * self.stages
        others = tuple(range(rank % stride, self.ranks, stride))
        if domain == "model":
            return others if self.policy == "HYBRID_MODEL_DATA" else neighbours
        if domain == "data":
            return neighbours if self.policy == "HYBRID_MODEL_DATA" else others
        offset = others.index(rank)
        if domain == "EP":
            return others[offset - offset % self.experts :][: self.experts]
        return others[offset % self.experts :: self.experts]


class _Item(NamedTuple):
    """Something that every rank does: a gap, or a collective of its own group."""

    line: int
    layer: str
    part: str
    action: Action
    after: tuple[int, ...]


class SimAi(common.TraceFormat):
    """SimAI's workload text, on as many ranks as its first line says (`all_gpus:`), or on all GPUs."""

    def recognizes(self, files: common.Files) -> bool:
        """Return whether it is one file, neither protobuf nor JSON."""
        return files.shared and files.suffix not in (".et", ".json")

    def read(self, files: common.Files, on: common.ReplayOn) -> common.Trace:
        """Return the trace, in which each rank has the operations of all layers."""
        name = files.names[0]
        if not files.shared:
            raise BadInput(name, files.name, "must be one file: a SimAI workload is the same for all ranks")
        try:
            lines = files.content[0].decode().splitlines()
        except UnicodeDecodeError as error:
            raise BadInput(name, "its content", "is no text in UTF-8") from error
        header = _header(lines[0].split() if lines else [], f"{name}: line 1", on.gpus, on.rails)
        items = _Sequence(header, _layers(lines, name)).items
        ranks = tuple(
            tuple(
                common.Node(f"{name}: line {i.line}, {i.part}", _action(i.action, header, rank), i.after) for i in items
            )
            for rank in range(header.ranks)
        )
        stage_note = f"{header.stages} pipeline stages run side by side: the file has no transfers between them"
        notes = (stage_note,) if header.stages > 1 else ()
        return common.Trace(files.name, ranks, partial(_rewrite, files.name, items, header.ranks), notes)


common.TRACE_FORMATS.add("simai", SimAi())


def _action(action: Action, header: _Header, rank: int) -> common.Gap | common.Call:
    if isinstance(action, common.Gap):
        return action
    op, domain, size = action
    group = header.group(rank, domain)
    kinds: dict[Domain, str] = {"model": "TP", "data": "DP", "EP": "EP", "DP_EP": "DP"}
    kind = "collective" if header.policy == "MICRO" else kinds[domain]
    root = group[0] if op == "broadcast" else None
    data_bytes = size / len(group) if op == "all-to-all" else size
    return common.Call(op, group, data_bytes, root, group_name=domain, kind=kind)


def _header(columns: list[str], where: str, gpus: int, rails: int) -> _Header:
    policy = next((p for p in POLICIES if columns[:1] == [p]), None)
    if policy is None:
        raise BadInput(where, (columns or ["nothing"])[0], unknown_name_hint((columns or [""])[0], POLICIES))

    def number(key: str, default: int, minimum: int = 1) -> int:
        if key not in columns:
            return default
        return common.parse_whole(where, key, (columns[columns.index(key) + 1 :] or ["nothing"])[0], minimum)

    def numbers(key: str) -> tuple[int, ...]:
        count = number(key, 0, 0)
        listed = columns[columns.index(key) + 2 :][:count] if key in columns else []
        if len(listed) < count:
            raise BadInput(where, f"{key} {count}", f"announces {count} layers, and {len(listed)} follow")
        return tuple(common.parse_whole(where, key, word) for word in listed)

    ranks = number("all_gpus:", gpus)
    sizes = {"MODEL": ranks, "DATA": 1, "MICRO": 1, "HYBRID_DATA_MODEL": rails, "HYBRID_MODEL_DATA": rails}
    group_size = sizes.get(policy, number("model_parallel_NPU_group:", 1))
    checkpoints, initiates = numbers("checkpoints:"), numbers("checkpoint_initiates:")
    header = _Header(policy, ranks, group_size, number("pp:", 1), number("ep:", 1), checkpoints, initiates)
    if ranks % (group_size * header.stages):
        raise BadInput(where, ranks, f"ranks can't be divided by {group_size} in a group and {header.stages} stages")
    replicas = ranks // (group_size * header.stages)
    if replicas % header.experts:
        raise BadInput(where, f"ep: {header.experts}", f"must divide the {replicas} ranks of a data-parallel group")
    return header


def _layers(lines: list[str], name: str) -> list[_Layer]:
    announced = common.parse_whole(
        f"{name}: line 2", "number of layers", lines[1].strip() if len(lines) > 1 else "nothing", 1
    )
    found = [_layer(line.split(), number, name) for number, line in enumerate(lines[2:], 3) if line.strip()]
    if len(found) != announced:
        allowed = f"layers are announced in line 2, and {len(found)} follow: the file is cut off or damaged"
        raise BadInput(name, announced, allowed)
    return found


def _layer(columns: list[str], line: int, name: str) -> _Layer:
    where = f"{name}: line {line}"
    if len(columns) != COLUMNS:
        allowed = f"must have {COLUMNS} columns and has {len(columns)}: the file is cut off or damaged"
        raise BadInput(where, " ".join(columns)[:60], allowed)
    gaps: dict[Part, common.Gap | None] = {}
    comms: dict[Part, _Comm | None] = {}
    for part, *cells in zip(PARTS, columns[2:11:3], columns[3:11:3], columns[4:11:3], strict=True):
        time, kind, size = cells
        gaps[part] = _gap(common.parse_whole(where, f"time of {part} in ns", time))
        comms[part] = _comm(kind, common.parse_whole(where, f"size of {part} in bytes", size), part, where)
    return _Layer(line, columns[0], gaps, comms, _gap(common.parse_whole(where, "update time in ns", columns[11])))


def _gap(time_ns: int) -> common.Gap | None:
    """A gap; None for the time that AICB writes where nothing is computed."""
    return common.Gap(time_ns / NANOSECONDS) if time_ns > 1 else None


def _comm(kind: str, size: int, part: Part, where: str) -> _Comm | None:
    if kind == "NONE":
        return None
    base, _, group = kind.partition("_")
    if base not in OPS or group not in ("", "EP", "DP_EP"):
        allowed = f"{unknown_name_hint(base, [*OPS, 'NONE'])}, each but the last alone or with _EP or _DP_EP"
        raise BadInput(where, kind, allowed.replace("known", "a known collective", 1))
    if size == 0:
        return None
    default_domain: Domain = "data" if part == "wg" else "model"
    return _Comm(OPS[base], "EP" if group == "EP" else "DP_EP" if group else default_domain, size)


class _Sequence:
    """Items that every rank runs, in order. `_dependencies`: those that the next one waits for."""

    def __init__(self, header: _Header, layers: list[_Layer]) -> None:
        self.items: list[_Item] = []
        self._dependencies: tuple[int, ...] = ()
        self._policy, self._layers = header.policy, layers
        if self._policy == "MICRO":
            for layer in layers:
                self._add(layer, "wg", layer.comms["wg"], blocking=False)
            return
        self._forward(layers)
        last_initiate = None
        for index in reversed(range(len(layers))):
            if index in header.initiates and last_initiate != index:
                last_initiate = index
                first = max((c for c in header.checkpoints if c <= index), default=0)
                self._forward(layers[first:index])
            self._backward(index)

    def _forward(self, layers: list[_Layer]) -> None:
        for layer in layers:
            self._add(layer, "fwd", layer.gaps["fwd"])
            if self._policy != "DATA":
                self._add(layer, "fwd", layer.comms["fwd"])

    def _backward(self, index: int) -> None:
        """DATA has the weight gradient first; the plain hybrids compute it beside the input gradient's collective."""
        layer = self._layers[index]
        if self._policy == "DATA":
            self._weight_gradient(layer)
            if index > 0:
                self._add(layer, "ig", layer.gaps["ig"])
            return
        self._add(layer, "ig", layer.gaps["ig"])
        transformer = self._policy.startswith("HYBRID_TRANSFORMER")
        has_overlap = index > 0 or transformer
        overlapped = self._add(layer, "ig", layer.comms["ig"], blocking=transformer) if has_overlap else ()
        self._weight_gradient(layer)
        self._dependencies = tuple(dict.fromkeys((*self._dependencies, *overlapped)))

    def _weight_gradient(self, layer: _Layer) -> None:
        self._add(layer, "wg", layer.gaps["wg"])
        if self._policy != "MODEL":
            reduced = self._add(layer, "wg", layer.comms["wg"], blocking=False)
            if reduced and layer.update:
                self.items.append(_Item(layer.line, layer.name, "update", layer.update, reduced))

    def _add(self, layer: _Layer, part: Part, action: Action | None, blocking: bool = True) -> tuple[int, ...]:
        """Append what a layer has of a part; return its number, or nothing if it has none."""
        if action is None:
            return ()
        self.items.append(_Item(layer.line, layer.name, part, action, self._dependencies))
        added = (len(self.items) - 1,)
        if blocking:
            self._dependencies = added
        return added


def _rewrite(name: str, items: list[_Item], ranks: int, measured: common.AllMeasured) -> dict[str, bytes]:
    """A table, since the text has no column for a collective's time: of each line and part the longest and shortest."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["line", "layer", "part", "operation", "group", "bytes", "longest_ns", "shortest_ns"])
    for position, item in enumerate(items):
        times = [round(m.seconds * NANOSECONDS) for r in range(ranks) if (m := measured.get((r, position))) is not None]
        if times:
            operation = ("compute", "", "") if isinstance(item.action, common.Gap) else item.action
            writer.writerow([*item[:3], *operation, max(times), min(times)])
    return {f"{name}.measured.csv": sink.getvalue().encode()}
