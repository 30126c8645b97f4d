"""SimAI's workload text, as AICB generates it, and ASTRA-sim's before it: one file, the same for all ranks.

Line 1 has the parallelism, line 2 the number of layers, each other a layer in 12 columns: name, dependency (unused),
then computing time (ns), collective and bytes of the forward pass, the input gradient and the weight gradient, and the
update's time. Ranks are numbered TP, PP, DP (MockNcclGroup.cc); EP groups are runs of a DP group, DP_EP groups its
ranks across those. Bytes are a collective's whole buffer (all-to-all: of all pairs). The order is that of Workload.cc:
layers forward, then backward; only the weight gradient's collective isn't waited for. One pass.
"""

import csv
import io
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces import common

POLICIES: Final = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA",
    "DATA", "MODEL", "MICRO",
)  # fmt: skip
OPS: Final[dict[str, common.Op]] = {
    "ALLREDUCE": "all-reduce", "ALLGATHER": "all-gather", "REDUCESCATTER": "reduce-scatter", "ALLTOALL": "all-to-all",
    "BROADCAST": "broadcast",
}  # fmt: skip
COLUMNS: Final = 12
NANOSECONDS: Final = 1e9  # in a second
PARTS: Final = ("fwd", "ig", "wg")
SIMAI_KEYS: Final = ("ep:", "pp:", "vpp:", "ga:", "all_gpus:", "pp_comm:", "pp_comm")
"""Keys of line 1 that ASTRA-sim doesn't have."""
# keys of line 1 that are read for a note only: SimAI's packet simulation sends nothing between stages either
LEFT_OUT_KEYS: Final = ("pp_comm:", "pp_comm", "ga:", "vpp:")
KINDS: Final = {"model": "TP", "data": "DP", "EP": "EP", "DP_EP": "DP"}
"""Kinds of traffic by the domain of a collective: the groups of ranks that share it."""


class _Comm(NamedTuple):
    op: common.Op
    domain: str
    bytes: int


Action = common.Gap | _Comm


class _Layer(NamedTuple):
    """A line: the computing and the collective of each part, and the update, where there is one."""

    line: int
    name: str
    gaps: dict[str, common.Gap | None]
    comms: dict[str, _Comm | None]
    update: common.Gap | None


@dataclass(frozen=True)
class _Header:
    """Division of the ranks.

    `group_size`: how many of the model's (HYBRID_MODEL_DATA: the data's) are neighbours.
    `is_simai`: whether the sizes are SimAI's, not ASTRA-sim's.
    `left_out`: keys that are only for a note, and their values.
    """

    policy: str
    ranks: int
    group_size: int
    stages: int
    experts: int
    checkpoints: tuple[int, ...]
    initiates: tuple[int, ...]
    is_simai: bool
    left_out: dict[str, int]

    def group(self, rank: int, domain: str) -> tuple[int, ...]:
        """The ranks with which a rank shares a collective."""
        first = rank - rank % self.group_size
        neighbours = tuple(range(first, first + self.group_size))
        stride = self.group_size * self.stages
        across = tuple(range(rank % stride, self.ranks, stride))
        if domain in ("model", "data"):
            neighbouring_domain = "data" if self.policy == "HYBRID_MODEL_DATA" else "model"
            return neighbours if domain == neighbouring_domain else across
        offset = across.index(rank)
        if domain == "EP":
            return across[offset - offset % self.experts :][: self.experts]
        return across[offset % self.experts :: self.experts]


class _Item(NamedTuple):
    """Something that every rank does: a gap, or a collective of its own group."""

    line: int
    layer: str
    part: str
    action: Action
    after: tuple[int, ...]


@common.TRACE_FORMATS.register("simai")
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
        lines = common.text_of(files.content[0], name).splitlines()
        first_line = lines[0] if lines else ""
        header = _header(first_line.split(), f"{name}: line 1", on.gpus, on.rails)
        items = _items(header, _layers(lines, name))
        common.check_operations(name, header.ranks, len(items))
        ranks: list[tuple[common.Node, ...]] = []
        for rank in range(header.ranks):
            nodes: list[common.Node] = []
            for item in items:
                where = f"{name}: line {item.line}, {item.part}"
                nodes.append(common.Node(where, _action(item.action, header, rank), item.after))
            ranks.append(tuple(nodes))
        rewrite = partial(_rewrite, files.name, items, header.ranks)
        return common.Trace(files.name, tuple(ranks), rewrite, _notes(header, items))


def _notes(header: _Header, items: "list[_Item]") -> tuple[str, ...]:
    """Say what of the file is left out, and by which tool's meaning ambiguous sizes are read."""
    notes = []
    boundary_bytes = header.left_out.get("pp_comm", 0)
    if header.stages > 1 or boundary_bytes:
        listed = ", ".join(f"{key}: {value}" for key, value in header.left_out.items())
        unsent = f"line 1 has {listed}, all left out" if listed else "line 1 has no pp_comm"
        notes.append(f"{header.stages} pipeline stages run side by side and send each other nothing: {unsent}")
    gathers = any(isinstance(item.action, _Comm) and item.action.op == "all-gather" for item in items)
    if gathers and not header.is_simai:
        notes.append("ALLGATHER's bytes are one rank's part, as in ASTRA-sim: line 1 has no key of SimAI's (all_gpus:)")
    return tuple(notes)


def _action(action: Action, header: _Header, rank: int) -> common.Gap | common.Call:
    if isinstance(action, common.Gap):
        return action
    op, domain, size = action
    group = header.group(rank, domain)
    kind = "collective" if header.policy == "MICRO" else KINDS[domain]
    root = group[0] if op == "broadcast" else None
    data_bytes: float = size
    if op == "all-to-all":
        data_bytes = size / len(group)
    elif op == "all-gather" and not header.is_simai:
        # Where line 1 has a key of SimAI's, the bytes are the gathered data; without one the text is ASTRA-sim's, which
        # takes them as one rank's own part (system/collective/Ring.cc).
        data_bytes = size * len(group)
    return common.Call(op, group, data_bytes, root, group_name=domain, kind=kind)


def _header(columns: list[str], where: str, gpus: int, rails: int) -> _Header:
    policy = columns[0] if columns else "nothing"
    if policy not in POLICIES:
        raise BadInput(where, policy, unknown_name_hint(policy, POLICIES))

    def number(key: str, default: int, minimum: int = 1) -> int:
        if key not in columns:
            return default
        following = columns[columns.index(key) + 1 :] or ["nothing"]
        return common.parse_whole(where, key, following[0], minimum)

    def numbers(key: str) -> tuple[int, ...]:
        count = number(key, 0, 0)
        listed: list[str] = []
        if key in columns:
            listed = columns[columns.index(key) + 2 :][:count]
        if len(listed) < count:
            raise BadInput(where, f"{key} {count}", f"announces {count} layers, and {len(listed)} follow")
        return tuple(common.parse_whole(where, key, word) for word in listed)

    ranks = number("all_gpus:", gpus)
    sizes = {"MODEL": ranks, "DATA": 1, "MICRO": 1, "HYBRID_DATA_MODEL": rails, "HYBRID_MODEL_DATA": rails}
    group_size = sizes.get(policy, number("model_parallel_NPU_group:", 1))
    checkpoints = numbers("checkpoints:")
    initiates = numbers("checkpoint_initiates:")
    is_simai = not set(columns).isdisjoint(SIMAI_KEYS)
    left_out = {key.removesuffix(":"): number(key, 0, 0) for key in LEFT_OUT_KEYS if key in columns}
    stages = number("pp:", 1)
    experts = number("ep:", 1)
    header = _Header(policy, ranks, group_size, stages, experts, checkpoints, initiates, is_simai, left_out)
    if ranks % (group_size * header.stages):
        raise BadInput(where, ranks, f"ranks can't be divided by {group_size} in a group and {header.stages} stages")
    replicas = ranks // (group_size * header.stages)
    if replicas % header.experts:
        raise BadInput(where, f"ep: {header.experts}", f"must divide the {replicas} ranks of a data-parallel group")
    return header


def _layers(lines: list[str], name: str) -> list[_Layer]:
    number = lines[1].strip() if len(lines) > 1 else "nothing"
    announced = common.parse_whole(f"{name}: line 2", "number of layers", number, 1)
    layers = []
    for line, text in enumerate(lines[2:], 3):
        columns = text.split()
        if not columns:
            continue
        where = f"{name}: line {line}"
        if len(columns) != COLUMNS:
            allowed = f"must have {COLUMNS} columns and has {len(columns)}: the file is cut off or damaged"
            raise BadInput(where, " ".join(columns)[:60], allowed)
        gaps = {}
        comms = {}
        for part, time, kind, size in zip(PARTS, columns[2:11:3], columns[3:11:3], columns[4:11:3], strict=True):
            gaps[part] = _gap(common.parse_whole(where, f"time of {part} in ns", time))
            comms[part] = _comm(kind, common.parse_whole(where, f"size of {part} in bytes", size), part, where)
        update = _gap(common.parse_whole(where, "update time in ns", columns[11]))
        layers.append(_Layer(line, columns[0], gaps, comms, update))
    if len(layers) != announced:
        allowed = f"layers are announced in line 2, and {len(layers)} follow: the file is cut off or damaged"
        raise BadInput(name, announced, allowed)
    return layers


def _gap(time_ns: int) -> common.Gap | None:
    """Return a gap, or None if nothing is computed."""
    # AICB writes 1 ns where nothing is computed
    if time_ns <= 1:
        return None
    return common.Gap(time_ns / NANOSECONDS)


def _comm(kind: str, size: int, part: str, where: str) -> _Comm | None:
    if kind == "NONE":
        return None
    base, _, group = kind.partition("_")
    if base not in OPS or group not in ("", "EP", "DP_EP"):
        allowed = f"{unknown_name_hint(base, [*OPS, 'NONE'])}, each but the last alone or with _EP or _DP_EP"
        raise BadInput(where, kind, allowed.replace("known", "a known collective", 1))
    if not size:
        return None
    domain = "data" if part == "wg" else "model"
    return _Comm(OPS[base], group or domain, size)


class _Program:
    """What every rank runs, item after item; each item waits for the last blocking one."""

    def __init__(self, header: _Header) -> None:
        self.items: list[_Item] = []
        self._header = header
        self._dependencies: tuple[int, ...] = ()  # of the next item

    def add(
        self,
        layer: _Layer,
        part: str,
        action: Action | None,
        blocking: bool = True,
        after: tuple[int, ...] | None = None,
    ) -> tuple[int, ...]:
        """Append what a layer has of a part; return its number, or nothing if it has none."""
        if action is None:
            return ()
        if after is None:
            after = self._dependencies
        self.items.append(_Item(layer.line, layer.name, part, action, after))
        added = (len(self.items) - 1,)
        if blocking:
            self._dependencies = added
        return added

    def wait_for(self, numbers: tuple[int, ...]) -> None:
        """Let the next item wait for these items too."""
        self._dependencies = tuple(dict.fromkeys((*self._dependencies, *numbers)))

    def add_forward(self, layers: list[_Layer]) -> None:
        """Append the forward passes of layers."""
        for layer in layers:
            self.add(layer, "fwd", layer.gaps["fwd"])
            if self._header.policy != "DATA":
                self.add(layer, "fwd", layer.comms["fwd"])

    def add_weight_gradient(self, layer: _Layer) -> None:
        """Append the weight gradient of a layer; nothing waits for its collective but the update."""
        self.add(layer, "wg", layer.gaps["wg"])
        if self._header.policy != "MODEL":
            reduced = self.add(layer, "wg", layer.comms["wg"], blocking=False)
            if reduced:
                self.add(layer, "update", layer.update, blocking=False, after=reduced)


def _items(header: _Header, layers: list[_Layer]) -> list[_Item]:
    """Return what every rank runs, in order."""
    program = _Program(header)
    if header.policy == "MICRO":
        for layer in layers:
            program.add(layer, "wg", layer.comms["wg"], blocking=False)
        return program.items
    program.add_forward(layers)
    is_transformer = header.policy.startswith("HYBRID_TRANSFORMER")
    for index, layer in reversed(list(enumerate(layers))):
        if index in header.initiates:
            # recompute from the last checkpoint on
            checkpoints = [number for number in header.checkpoints if number <= index]
            program.add_forward(layers[max(checkpoints, default=0) : index])
        if header.policy == "DATA":
            # has the weight gradient first
            program.add_weight_gradient(layer)
            if index > 0:
                program.add(layer, "ig", layer.gaps["ig"])
            continue
        # the plain hybrids compute the weight gradient beside the input gradient's collective
        program.add(layer, "ig", layer.gaps["ig"])
        overlapped: tuple[int, ...] = ()
        if index > 0 or is_transformer:
            overlapped = program.add(layer, "ig", layer.comms["ig"], blocking=is_transformer)
        program.add_weight_gradient(layer)
        program.wait_for(overlapped)
    return program.items


def _rewrite(name: str, items: list[_Item], ranks: int, measured: common.AllMeasured) -> dict[str, bytes]:
    """Return a table with the longest and shortest time of each line and part: the format has no such columns."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["line", "layer", "part", "operation", "group", "bytes", "longest_ns", "shortest_ns"])
    for position, item in enumerate(items):
        times: list[int] = []
        for rank in range(ranks):
            operation_of_rank = measured.get((rank, position))
            if operation_of_rank is not None:
                times.append(round(operation_of_rank.seconds * NANOSECONDS))
        if times:
            operation = ("compute", "", "") if isinstance(item.action, common.Gap) else item.action
            writer.writerow([*item[:3], *operation, max(times), min(times)])
    return {f"{name}.measured.csv": sink.getvalue().encode()}
