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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, get_args

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces.common import Call, Files, Gap, Measured, Node, NodeId, Op, Trace, parse_whole

Policy = Literal[
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA",
    "DATA", "MODEL", "MICRO",
]  # fmt: skip
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
OPS: Final[dict[str, Op]] = {
    "ALLREDUCE": "all-reduce",
    "ALLGATHER": "all-gather",
    "REDUCESCATTER": "reduce-scatter",
    "ALLTOALL": "all-to-all",
    "BROADCAST": "broadcast",
}
COLUMNS: Final = 12
NANOSECONDS: Final = 1e9  # in a second
ZERO_TIME_NS: Final = 1  # what AICB writes where nothing is computed

Part = Literal["fwd", "ig", "wg"]
Domain = Literal["model", "data", "EP", "DP_EP"]


@dataclass(frozen=True, slots=True)
class _Comm:
    op: Op
    domain: Domain
    bytes: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """A line. `times` in ns."""

    line: int
    name: str
    times: dict[Part, int]
    comms: dict[Part, _Comm | None]
    update_ns: int


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


@dataclass(frozen=True, slots=True)
class _Item:
    """Something that every rank does: a gap, or a collective of its own group."""

    line: int
    layer: str
    part: str
    action: Gap | _Comm
    after: tuple[int, ...]


def read_simai(files: Files, gpus: int, rails: int) -> Trace:
    """The workload on as many ranks as its first line says (`all_gpus:`), or on all `gpus`. BadInput says where."""
    name = files.names[0]
    try:
        lines = files.content[0].decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(name, "its content", "is no text in UTF-8") from error
    header = _header(lines[0].split() if lines else [], f"{name}: line 1", gpus, rails)
    items = _Sequence(header, _layers(lines, name)).items
    ranks = tuple(
        tuple(Node(f"{name}: line {i.line}, {i.part}", _action(i.action, header, rank), i.after) for i in items)
        for rank in range(header.ranks)
    )
    stage_note = f"{header.stages} pipeline stages run side by side: the file has no transfers between them"
    notes = (stage_note,) if header.stages > 1 else ()
    return Trace(files.name, "simai", ranks, partial(_rewrite, files.name, items, header.ranks), notes)


def _action(action: Gap | _Comm, header: _Header, rank: int) -> Gap | Call:
    if isinstance(action, Gap):
        return action
    group = header.group(rank, action.domain)
    kinds: dict[Domain, str] = {"model": "TP", "data": "DP", "EP": "EP", "DP_EP": "DP"}
    kind = "collective" if header.policy == "MICRO" else kinds[action.domain]
    data = action.bytes / len(group) if action.op == "all-to-all" else action.bytes
    root = group[0] if action.op == "broadcast" else None
    return Call(action.op, group, data, root, group_name=action.domain, kind=kind)


def _header(columns: list[str], where: str, gpus: int, rails: int) -> _Header:
    policy = next((p for p in POLICIES if columns and p == columns[0]), None)
    if policy is None:
        raise BadInput(
            where, columns[0] if columns else "nothing", unknown_name_hint(columns[0] if columns else "", POLICIES)
        )

    def number(key: str, default: int, minimum: int = 1) -> int:
        if key not in columns:
            return default
        return parse_whole(where, key, (columns[columns.index(key) + 1 :] or ["nothing"])[0], minimum)

    def numbers(key: str) -> tuple[int, ...]:
        count = number(key, 0, 0)
        listed = columns[columns.index(key) + 2 :][:count] if key in columns else []
        if len(listed) < count:
            raise BadInput(where, f"{key} {count}", f"announces {count} layers, and {len(listed)} follow")
        return tuple(parse_whole(where, key, word) for word in listed)

    ranks = number("all_gpus:", gpus)
    group_size = {"MODEL": ranks, "DATA": 1, "MICRO": 1, "HYBRID_DATA_MODEL": rails, "HYBRID_MODEL_DATA": rails}.get(
        policy, number("model_parallel_NPU_group:", 1)
    )
    header = _Header(
        policy=policy,
        ranks=ranks,
        group_size=group_size,
        stages=number("pp:", 1),
        experts=number("ep:", 1),
        checkpoints=numbers("checkpoints:"),
        initiates=numbers("checkpoint_initiates:"),
    )
    if ranks % (group_size * header.stages):
        raise BadInput(where, ranks, f"ranks can't be divided by {group_size} in a group and {header.stages} stages")
    replicas = ranks // (group_size * header.stages)
    if replicas % header.experts:
        raise BadInput(where, f"ep: {header.experts}", f"must divide the {replicas} ranks of a data-parallel group")
    return header


def _layers(lines: list[str], name: str) -> list[_Layer]:
    announced = parse_whole(f"{name}: line 2", "number of layers", lines[1].strip() if len(lines) > 1 else "nothing", 1)
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
    times: dict[Part, int] = {}
    comms: dict[Part, _Comm | None] = {}
    parts: tuple[Part, ...] = ("fwd", "ig", "wg")
    for offset, part in enumerate(parts):
        time, kind, size = columns[2 + 3 * offset : 5 + 3 * offset]
        times[part] = parse_whole(where, f"time of {part} in ns", time)
        comms[part] = _comm(kind, parse_whole(where, f"size of {part} in bytes", size), part, where)
    return _Layer(line, columns[0], times, comms, parse_whole(where, "update time in ns", columns[11]))


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
                self._comm(layer, "wg", blocking=False)
            return
        for layer in layers:
            self._forward(layer)
        last_initiate = None
        for index in reversed(range(len(layers))):
            if index in header.initiates and last_initiate != index:
                last_initiate = index
                first = max((c for c in header.checkpoints if c <= index), default=0)
                for layer in layers[first:index]:
                    self._forward(layer)
            self._backward(index)

    def _forward(self, layer: _Layer) -> None:
        self._gap(layer, "fwd")
        if self._policy != "DATA":
            self._comm(layer, "fwd", blocking=True)

    def _backward(self, index: int) -> None:
        """DATA has the weight gradient first; the plain hybrids compute it beside the input gradient's collective."""
        layer = self._layers[index]
        if self._policy == "DATA":
            self._weight_gradient(layer)
            if index > 0:
                self._gap(layer, "ig")
            return
        self._gap(layer, "ig")
        transformer = self._policy.startswith("HYBRID_TRANSFORMER")
        overlapped = () if index == 0 and not transformer else self._comm(layer, "ig", blocking=transformer)
        self._weight_gradient(layer)
        self._dependencies = tuple(dict.fromkeys((*self._dependencies, *overlapped)))

    def _weight_gradient(self, layer: _Layer) -> None:
        self._gap(layer, "wg")
        if self._policy == "MODEL":
            return
        reduced = self._comm(layer, "wg", blocking=False)
        if reduced and layer.update_ns > ZERO_TIME_NS:
            self.items.append(_Item(layer.line, layer.name, "update", Gap(layer.update_ns / NANOSECONDS), reduced))

    def _gap(self, layer: _Layer, part: Part) -> None:
        if layer.times[part] > ZERO_TIME_NS:
            self._add(
                _Item(layer.line, layer.name, part, Gap(layer.times[part] / NANOSECONDS), self._dependencies), True
            )

    def _comm(self, layer: _Layer, part: Part, blocking: bool) -> tuple[int, ...]:
        comm = layer.comms[part]
        if comm is None:
            return ()
        return self._add(_Item(layer.line, layer.name, part, comm, self._dependencies), blocking)

    def _add(self, item: _Item, blocking: bool) -> tuple[int, ...]:
        self.items.append(item)
        added = (len(self.items) - 1,)
        if blocking:
            self._dependencies = added
        return added


def _rewrite(name: str, items: list[_Item], ranks: int, measured: Mapping[NodeId, Measured]) -> dict[str, bytes]:
    """The text has no column for a collective's time, so there is a table beside it: a row a line and part.

    Times are of the rank that took longest, and of the one that took least.
    """
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["line", "layer", "part", "operation", "group", "bytes", "longest_ns", "shortest_ns"])
    for position, item in enumerate(items):
        times = [round(m.seconds * NANOSECONDS) for r in range(ranks) if (m := measured.get((r, position))) is not None]
        if times:
            a = item.action
            operation = ("compute", "", "") if isinstance(a, Gap) else (a.op, a.domain, a.bytes)
            writer.writerow([item.line, item.layer, item.part, *operation, max(times), min(times)])
    return {f"{name}.measured.csv": sink.getvalue().encode()}
